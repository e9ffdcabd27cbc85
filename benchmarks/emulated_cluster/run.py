"""
Measured benefit of a placement: plans on an emulated cluster.

``python -m benchmarks.emulated_cluster.run`` needs root on Linux. For each scenario and seed it makes a network of
namespaces, measures its links with ``pipette-opt profile links``, and solves the job. Then it times a training step
over gloo in the identity order, in random orders, in annealing's order and in the plan's. The plan's is also started by
the exported script. All orders have equal degrees, so only the placement differs. Orders are compared in rounds, each
measured once a round, so that a disturbance affects all of them.
"""

import itertools
import json
import platform
import statistics
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import numpy as np
import typer

sys.path.insert(0, str(Path(__file__).parent))

from network import Network, why_not
from processes import STEP, Servers, run_everywhere
from scenarios import GPU, LAYER_S, MODEL, NUM_USED, PROFILE, SCENARIOS, TRAINING, rates_of
from training_step import Job

from pipette_opt import __version__
from pipette_opt.annealing.anneal import AnnealingParams, anneal
from pipette_opt.baselines.compare import learned_problem, searched
from pipette_opt.candidates import SearchSpace
from pipette_opt.costs.messages import p2p_bytes
from pipette_opt.costs.placed import placed_times
from pipette_opt.costs.stage import stage_parameters
from pipette_opt.export.targets import export
from pipette_opt.optimize import OptimizeParams, optimize
from pipette_opt.parallel import ParallelConfig, Placement, tile_placement
from pipette_opt.plans.plan import Plan
from pipette_opt.plans.watcher import Watcher
from pipette_opt.prepare import Question, prepare
from pipette_opt.read.cluster import read_cluster
from pipette_opt.simulate.estimate import estimate
from pipette_opt.specs import Instance

SPACE = SearchSpace(
    num_gpus=NUM_USED,
    tensor_parallel=(1,),
    pipeline_parallel=(4,),
    data_parallel=(2,),
    virtual_pipeline=(1,),
    micro_batch_size=(1,),
    use_distributed_optimizer=(False,),
    recompute=(None,),
    uneven_layers=False,
    context_parallel=(1,),
    overlap_grad_reduce=False,
)
SEARCH_S = 10.0
"""Time limit of the search, and of annealing, seconds. Chosen."""

NEAR = 0.15
"""Maximum relative error with which a predicted time counts as near. Chosen."""

NOISE, MIN_ROUNDS = 0.01, 7
"""Significance level of a difference between orders, and the minimum number of rounds that can reach it. Chosen."""


@dataclass(slots=True, kw_only=True)
class Order:
    """
    Placement with its predicted and measured times.

    Parameters
    ----------
    by_round
        Mean seconds of an iteration in each round.
    """

    name: str
    placement: Placement
    predicted_s: float
    by_round: list[float] = field(default_factory=list)

    @property
    def measured_s(self) -> float:
        """Median over the rounds, seconds."""
        return statistics.median(self.by_round)

    @property
    def error(self) -> float:
        """Predicted over measured time, minus 1."""
        return self.predicted_s / self.measured_s - 1


@dataclass(slots=True, kw_only=True)
class Outcome:
    """Result of one scenario with one seed."""

    scenario: str
    seed: int
    link_errors: list[float]
    named: list[Order]
    random: list[Order]
    launched_s: float
    gap: float

    def row(self) -> list[str]:
        """Return the row of the results table."""
        ours = self.order("ours")
        cells = [self.scenario, str(self.seed), f"{self.gap:.2%}"]
        for name in ("identity", "best of random", "annealing", "ours"):
            order = self.order(name)
            cells.append(f"{order.measured_s:.3f} ({order.predicted_s:.3f})")
        cells.append(f"{self.launched_s:.3f}")
        cells += [f"{self.order('identity').measured_s / ours.measured_s - 1:+.1%}", self.verdict()]
        return cells

    def order(self, name: str) -> Order:
        """Return the named order."""
        return next(order for order in self.named if order.name == name)

    def verdict(self) -> str:
        """Return the orders that are significantly faster than the plan, by more than 1 %, as text."""
        ours = self.order("ours")
        slower = [
            other.name
            for other in self.named
            if other is not ours
            and chance(ours.by_round, other.by_round) <= NOISE
            and statistics.fmean(ours.by_round) > 1.01 * statistics.fmean(other.by_round)
        ]
        return f"slower than {', '.join(slower)}" if slower else "never slower"

    def near(self) -> tuple[int, int]:
        """Return the number of orders predicted within 15 %, and the number of all orders."""
        every = [*self.named, *self.random]
        return sum(abs(order.error) <= NEAR for order in every), len(every)


def chance(ours: Sequence[float], others: Sequence[float]) -> float:
    """
    Return the p-value of paired rounds in which ours is slower (exact sign-flip test, one-sided).

    It is the fraction of all sign patterns of the rounds' differences with a mean at least as large as the measured
    one.
    ``n`` rounds can reach ``2 ** -n``.
    """
    differences = np.subtract(ours, others)
    signs = np.array(list(itertools.product((-1.0, 1.0), repeat=len(differences))))
    return float((signs @ differences >= differences.sum() - 1e-12).mean())


def run_one(scenario: str, seed: int, rounds: int, num_random: int, folder: Path) -> Outcome:
    """Measure the links, solve the job, and measure the orders."""
    rates = rates_of(scenario, seed)
    hosts = [f"node{index}" for index in range(len(rates))]
    with Network(hosts=hosts, bytes_per_s=rates) as network:
        say(f"{scenario}, seed {seed}: measuring {len(hosts)} hosts with profile links")
        cluster_file = profile(network, folder)
        cluster = read_cluster(cluster_file)
        measured = cluster.link_matrices[0].bytes_per_s
        errors = (measured / rates - 1)[~np.isnan(rates)].tolist()
        instance = Instance(model=MODEL, cluster=cluster, training=TRAINING, profile=PROFILE, launcher="torchrun")
        inputs = {"model": asdict(MODEL), "training": asdict(TRAINING)}
        plan = optimize(instance, SPACE, OptimizeParams(time_limit_s=SEARCH_S, seed=seed), inputs=inputs)
        named = [
            order(instance, plan.config, "identity", identity(plan)),
            order(instance, plan.config, "annealing", annealed(instance, seed)),
            order(instance, plan.config, "ours", plan.placement),
        ]
        random = np.random.default_rng(seed)
        others = [
            order(instance, plan.config, f"random {index}", shuffled(instance, plan, random))
            for index in range(num_random)
        ]
        with Servers(network) as servers:
            for index, random_order in enumerate(others):
                random_order.by_round.append(
                    measure(servers, instance, plan.config, random_order.placement, iterations=1)
                )
                if (index + 1) % 20 == 0:
                    say(f"  {index + 1} of {num_random} random orders")
            best = min(others, key=lambda random_order: random_order.by_round[0])
            named.insert(1, Order(name="best of random", placement=best.placement, predicted_s=best.predicted_s))
            for _ in range(rounds):
                for index in random.permutation(len(named)):
                    named[index].by_round.append(measure(servers, instance, plan.config, named[index].placement))
        launched_s = launched(network, instance, plan, folder)
    outcome = Outcome(
        scenario=scenario,
        seed=seed,
        link_errors=errors,
        named=named,
        random=others,
        launched_s=launched_s,
        gap=plan.certificate.gap,
    )
    say("  " + ", ".join(f"{run.name} {run.measured_s:.3f} s (predicted {run.predicted_s:.3f})" for run in named))
    return outcome


def profile(network: Network, folder: Path) -> Path:
    """Return the cluster file that ``pipette-opt profile links`` writes from all hosts."""
    out = folder / "cluster.yaml"
    command = [sys.executable, "-m", "pipette_opt", "profile", "links", "-o", str(out), "--sizes", "1,2"]
    settings = {
        host: {
            "RANK": str(rank),
            "WORLD_SIZE": str(len(network.hosts)),
            "LOCAL_RANK": "0",
            "LOCAL_WORLD_SIZE": "1",
            "MASTER_ADDR": network.address(network.hosts[0]),
            "MASTER_PORT": "19999",
        }
        for rank, host in enumerate(network.hosts)
    }
    commands = {host: [*command, "--host", host, "--gpu", GPU, "--gpus-per-node", "1"] for host in network.hosts}
    run_everywhere(network, commands, settings)
    return out


def order(instance: Instance, config: ParallelConfig, name: str, placement: Placement) -> Order:
    """Return a placement with its predicted time."""
    return Order(name=name, placement=placement, predicted_s=estimate(instance, config, placement).iteration_time_s)


def identity(plan: Plan) -> Placement:
    """Return the placement on the first hosts in listed order."""
    return on_hosts(plan, np.arange(NUM_USED))


def shuffled(instance: Instance, plan: Plan, random: np.random.Generator) -> Placement:
    """Return a placement on random hosts in random order."""
    return on_hosts(plan, random.permutation(instance.cluster.num_nodes)[:NUM_USED])


def on_hosts(plan: Plan, nodes: np.ndarray) -> Placement:
    """Return the plan's placement with its ranks on these hosts, one GPU each."""
    return Placement(order=plan.placement.order, node=nodes, local_rank=np.zeros(NUM_USED, dtype=np.int64))


def annealed(instance: Instance, seed: int) -> Placement:
    """Return the placement that annealing alone finds in the search's time, on the relaxations of a search."""
    params = OptimizeParams(time_limit_s=SEARCH_S, seed=seed)
    data = learned_problem(searched(prepare(Question(instance, SPACE, 0.01)), params, Watcher()))
    found = anneal(data, AnnealingParams(time_limit_s=SEARCH_S, seed=seed)).solution
    assert found is not None
    candidate = data.candidates[found.candidate]
    return tile_placement(candidate.config, candidate.tile, found.nodes)


def job_of(instance: Instance, config: ParallelConfig, placement: Placement, iterations: int) -> Job:
    """Return the job of the processes: compute times and bytes from the cost model, without transfer times."""
    times = placed_times(instance, config, placement)
    return Job(
        pipeline_parallel=config.pipeline_model_parallel_size,
        data_parallel=config.data_parallel_size,
        num_microbatches=config.num_microbatches(instance.training.global_batch_size),
        forward_s=times.forward_s[0, :, 0].tolist(),
        backward_s=times.backward_s[0, :, 0].tolist(),
        message_bytes=int(p2p_bytes(instance.model, instance.training, config)),
        gradient_bytes=[int(4 * count) for count in stage_parameters(instance.model, config).own],
        iterations=iterations,
    )


def measure(
    servers: Servers, instance: Instance, config: ParallelConfig, placement: Placement, iterations: int = 2
) -> float:
    """Return the mean seconds of an iteration."""
    hosts = [instance.cluster.hosts[node] for node in placement.node]
    return statistics.fmean(servers.measure(job_of(instance, config, placement, iterations), hosts))


def launched(network: Network, instance: Instance, plan: Plan, folder: Path) -> float:
    """
    Return the seconds of an iteration of the plan, started by the exported torchrun script on every host.

    Raises ``AssertionError`` if a rank runs on another host than in the plan.
    """
    target = folder / "launch"
    target.mkdir(exist_ok=True)
    for name, text in export(plan, "torchrun").items():
        (target / name).write_text(text)
    job = target / "job.json"
    job.write_text(json.dumps(asdict(job_of(instance, plan.config, plan.placement, 5))))
    nodes = (target / "nodes.txt").read_text().split()
    commands = {host: ["bash", str(target / "launch.sh"), str(rank)] for rank, host in enumerate(nodes)}
    setting = {"PRETRAIN": str(STEP), "EMULATED_JOB": str(job), "MASTER_ADDR": network.address(nodes[0])}
    run_everywhere(network, commands, dict.fromkeys(nodes, setting))
    answers = [json.loads((target / f"rank{rank}.json").read_text()) for rank in range(NUM_USED)]
    for rank, answer in enumerate(answers):
        expected = plan.hosts[plan.placement.node[rank]]
        if answer["host"] != expected:
            raise AssertionError(f"rank {rank} ran on {answer['host']}, the plan says {expected}")
    return statistics.median(max(seconds) for seconds in zip(*(answer["seconds"] for answer in answers), strict=True))


def page(outcomes: Sequence[Outcome], rounds: int) -> str:
    """Return the results as a Markdown page."""
    near, every = (sum(numbers) for numbers in zip(*(outcome.near() for outcome in outcomes), strict=True))
    errors = sorted(abs(error) for outcome in outcomes for error in outcome.link_errors)
    head = (
        f"# Emulated cluster, {datetime.now(UTC).date()}\n\n"
        f"pipette-opt {__version__}, Python {platform.python_version()}, {platform.machine()}. Made by "
        f"`python -m benchmarks.emulated_cluster.run --seeds {len({outcome.seed for outcome in outcomes})} "
        f"--rounds {rounds} --num-random {len(outcomes[0].random)}`.\n\n"
        "Hosts are network namespaces with a rate for every directed pair (tc htb); one training step of pipeline 4 x "
        "data 2 runs over gloo with real messages in Megatron-Core's 1F1B order. Compute is a tiny forward and "
        f"backward and then sleep: {LAYER_S[0] * 1e3:g} and {LAYER_S[1] * 1e3:g} ms a layer. Seconds of an iteration, "
        f"medians of {rounds} rounds, predicted in brackets; ours was also started by the exported torchrun script. "
        f"Of random orders there were {len(outcomes[0].random)}, each measured once, the best of them again. "
        f"Beyond noise: slower by more than 1 %, and by more than chance makes of the rounds in {NOISE:.0%} of cases "
        "(exact sign-flip test).\n\n"
    )
    columns = [
        "scenario", "seed", "gap", "identity", "best of random", "annealing", "ours", "ours, by launch.sh",
        "faster than identity", "beyond noise",
    ]  # fmt: skip
    rows = [columns, ["---"] * len(columns), *(outcome.row() for outcome in outcomes)]
    table = "\n".join("| " + " | ".join(row) + " |" for row in rows)
    tail = (
        f"\n\nPredicted within {NEAR:.0%} of measured: {near} of {every} orders ({near / every:.1%}). "
        f"`profile links` against the rates that were set: median error {np.median(errors):.1%}, "
        f"p90 {np.quantile(errors, 0.9):.1%} (TCP's and IP's headers alone take 4 %).\n"
    )
    return head + table + tail


def say(text: str) -> None:
    """Print a line of progress to standard error."""
    typer.echo(text, err=True)


def main(
    seeds: Annotated[int, typer.Option(help="Number of seeds per scenario.", min=1)] = 3,
    scenario: Annotated[list[str] | None, typer.Option(help="Only these scenarios.")] = None,
    rounds: Annotated[int, typer.Option(help="Number of paired rounds.", min=MIN_ROUNDS)] = 8,
    num_random: Annotated[int, typer.Option(help="Number of random orders.", min=1)] = 100,
    out: Annotated[Path | None, typer.Option("--out", "-o", help="File for the page.")] = None,
) -> None:
    """Measure plans on emulated clusters; needs root."""
    reason = why_not()
    if reason is not None:
        say(f"An emulated cluster {reason}.")
        raise typer.Exit(2)
    chosen = scenario or list(SCENARIOS)
    unknown = [name for name in chosen if name not in SCENARIOS]
    if unknown:
        say(f"--scenario {unknown[0]!r} is unknown; there are: {', '.join(SCENARIOS)}.")
        raise typer.Exit(2)
    outcomes = []
    for name in chosen:
        for seed in range(seeds):
            with tempfile.TemporaryDirectory() as folder:
                outcomes.append(run_one(name, seed, rounds, num_random, Path(folder)))
            text = page(outcomes, rounds)
            if out is not None:
                out.write_text(text)
    typer.echo(page(outcomes, rounds))


if __name__ == "__main__":
    typer.run(main)

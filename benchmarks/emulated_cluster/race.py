"""
Race on an emulated cluster: the fastest of all layouts of a job after three trials of ``tune``.

``python -m benchmarks.emulated_cluster.race`` needs root on Linux. For each scenario and seed it makes a network of
namespaces and measures its links with ``pipette-opt profile links``. A drawn stack computes slower or faster than its
profile says, by micro-batch. ``tune`` exports each trial for torchrun, the benchmark starts it on all hosts and writes
the log of its run. Then every layout is timed, so that the regret is known.
"""

import json
import platform
import statistics
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import numpy as np
import typer

sys.path.insert(0, str(Path(__file__).parent))

from network import Network, why_not
from processes import STEP, Servers, run_everywhere
from run import job_of, profile, say
from scenarios import GPU, LAYER_S, MODEL, NUM_USED, SCENARIOS, rates_of
from training_step import Job

from pipette_opt import __version__
from pipette_opt.base.units import counted, percent
from pipette_opt.candidates import SearchSpace
from pipette_opt.optimize import OptimizeParams
from pipette_opt.parallel import ParallelConfig
from pipette_opt.plans.plan import Plan
from pipette_opt.plans.watcher import Watcher
from pipette_opt.read.cluster import read_cluster
from pipette_opt.report.plan_file import read_plan
from pipette_opt.specs import ComputeProfile, Instance, ProfileKey, TrainingSpec
from pipette_opt.tune.folder import PLAN, TuneFolder
from pipette_opt.tune.listing import plan_of
from pipette_opt.tune.logs import expected_arguments
from pipette_opt.tune.loop import Progress, Tuned, Tuner
from pipette_opt.tune.settings import TuneSettings
from pipette_opt.worlds.worlds import Worlds

NUM_TRIALS = 3

MICRO_BATCHES = (1, 2, 4)

RACED = replace(MODEL, num_layers=8)
"""Model of the race; with a layer a stage on eight hosts."""

TRAINING = TrainingSpec(global_batch_size=16, seq_length=1024)

PROFILE = ComputeProfile(
    layers={
        ProfileKey(gpu=GPU, tensor_model_parallel_size=1, micro_batch_size=size, seq_length=TRAINING.seq_length): (
            LAYER_S[0] / 2 * size**0.9,
            LAYER_S[1] / 2 * size**0.9,
        )
        for size in MICRO_BATCHES
    }
)

SPACE = SearchSpace(
    num_gpus=NUM_USED,
    tensor_parallel=(1,),
    context_parallel=(1,),
    pipeline_parallel=(1, 2, 4, 8),
    virtual_pipeline=(1,),
    micro_batch_size=MICRO_BATCHES,
    use_distributed_optimizer=(False,),
    recompute=(None,),
    uneven_layers=False,
    overlap_grad_reduce=False,
)

SHIFT, SLOPE = 0.2, 0.15
"""Standard deviations of the drawn stack: logarithm of its compute time over the profile, and of that per doubling of
the micro-batch. Chosen."""

STEPS, WARM_UP = 5, 1
"""Iterations of a trial, and those of them that do not count. Chosen."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stack:
    """Computing speed of a drawn stack: logarithm of its time over the profile, and per doubling of the micro-batch."""

    shift: float
    slope: float

    def job(self, instance: Instance, plan: Plan, iterations: int) -> Job:
        """Return the job of the processes, with the compute times of the stack."""
        job = job_of(instance, plan.config, plan.placement, iterations)
        factor = float(np.exp(self.shift + self.slope * np.log2(plan.config.micro_batch_size)))
        return replace(
            job,
            forward_s=[factor * seconds for seconds in job.forward_s],
            backward_s=[factor * seconds for seconds in job.backward_s],
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Race:
    """
    Result of a scenario with a seed.

    Parameters
    ----------
    times_s
        Measured seconds of an iteration of every layout.
    predicted_s
        Simulated seconds of an iteration of every layout.
    tried
        Layouts that ``tune`` tried, in order.
    stated
        Regret that ``tune`` stated at its end.
    """

    scenario: str
    seed: int
    times_s: dict[ParallelConfig, float]
    predicted_s: dict[ParallelConfig, float]
    tried: tuple[ParallelConfig, ...]
    stated: float

    def regrets(self, order: Sequence[ParallelConfig]) -> list[float]:
        """Return the regret of the best layout after each of the first trials in an order."""
        least_s = min(self.times_s.values())
        return [
            min(self.times_s[config] for config in order[: number + 1]) / least_s - 1 for number in range(NUM_TRIALS)
        ]

    def predicted_order(self) -> list[ParallelConfig]:
        """Return the layouts by predicted time, the fastest first."""
        return sorted(self.times_s, key=lambda config: self.predicted_s[config])

    def row(self) -> list[str]:
        """Return the row of the results table."""
        times_s = sorted(self.times_s.values())
        orders = (self.regrets(self.tried), self.regrets(self.predicted_order()))
        shown = [" ".join(percent(regret) for regret in regrets) for regrets in orders]
        ratios = [self.times_s[config] / self.predicted_s[config] for config in self.times_s]
        return [
            self.scenario,
            str(self.seed),
            str(len(times_s)),
            f"{times_s[0]:.3g} to {times_s[-1]:.3g}",
            f"{min(ratios):.2f} to {max(ratios):.2f}",
            *shown,
            percent(self.stated),
        ]


def race(scenario: str, seed: int, rounds: int, folder: Path) -> Race:
    """Measure the links, let ``tune`` try three layouts, and time every layout."""
    rates = rates_of(scenario, seed)
    hosts = [f"node{index}" for index in range(len(rates))]
    random = np.random.default_rng((7, seed))
    stack = Stack(shift=random.normal(0.0, SHIFT), slope=random.normal(0.0, SLOPE))
    with Network(hosts=hosts, bytes_per_s=rates) as network:
        say(f"{scenario}, seed {seed}: measuring {len(hosts)} hosts with profile links")
        cluster = read_cluster(profile(network, folder))
        instance = Instance(model=RACED, cluster=cluster, training=TRAINING, profile=PROFILE, launcher="torchrun")
        say("  links are measured; tuning")
        search = tuner(network, instance, stack, folder / "tuning")
        tuned = search.run()
        say("  timing all layouts")
        plans = {config: planned(instance, config) for config in search.listing.configs}
        with Servers(network) as servers:
            by_round: dict[ParallelConfig, list[float]] = {config: [] for config in plans}
            for _ in range(rounds):
                for index in random.permutation(len(plans)):
                    plan = list(plans.values())[index]
                    ours = [instance.cluster.hosts[node] for node in plan.placement.node]
                    seconds = servers.measure(stack.job(instance, plan, 2), ours)
                    by_round[plan.config].append(statistics.fmean(seconds))
    return outcome(scenario, seed, tuned, plans, by_round)


def outcome(
    scenario: str,
    seed: int,
    tuned: Tuned,
    plans: dict[ParallelConfig, Plan],
    by_round: dict[ParallelConfig, list[float]],
) -> Race:
    """Return the result of a race from its trials and from the times of all layouts."""
    return Race(
        scenario=scenario,
        seed=seed,
        times_s={config: statistics.median(seconds) for config, seconds in by_round.items()},
        predicted_s={config: plan.estimate.iteration_time_s for config, plan in plans.items()},
        tried=tuple(record.config for record in tuned.records),
        stated=tuned.regret,
    )


def tuner(network: Network, instance: Instance, stack: Stack, folder: Path) -> Tuner:
    """Return a search whose trials this benchmark starts, as a user without ``--run`` does."""
    trials = TuneFolder(folder)

    def start(progress: Progress) -> None:
        for record in progress.records:
            if record.status == "started" and not (trials.trial(record.trial) / "run.log").exists():
                say(f"  trial {record.trial}: {record.config.label()}")
                launched(network, instance, stack, trials.trial(record.trial))

    return Tuner(
        instance,
        SPACE,
        {"model": asdict(instance.model), "training": asdict(instance.training)},
        worlds=Worlds.load(),
        folder=trials,
        settings=TuneSettings(
            budget=NUM_TRIALS, until=None, steps=STEPS, warm_up=WARM_UP, format="torchrun", log="{dir}/run.log"
        ),
        report=start,
    )


def planned(instance: Instance, config: ParallelConfig) -> Plan:
    """Return the placed plan of a layout."""
    return plan_of(instance, config, OptimizeParams(time_limit_s=5.0, workers=1), Watcher(), {})


def launched(network: Network, instance: Instance, stack: Stack, trial: Path) -> None:
    """Start the exported script of a trial on every host, and write what Megatron-LM would print."""
    plan = read_plan(trial / PLAN)
    job = trial / "job.json"
    job.write_text(json.dumps(asdict(stack.job(instance, plan, STEPS))))
    nodes = (trial / "nodes.txt").read_text().split()
    commands = {host: ["bash", str(trial / "launch.sh"), str(rank)] for rank, host in enumerate(nodes)}
    setting = {"PRETRAIN": str(STEP), "EMULATED_JOB": str(job), "MASTER_ADDR": network.address(nodes[0])}
    run_everywhere(network, commands, dict.fromkeys(nodes, setting))
    answers = [json.loads((trial / f"rank{rank}.json").read_text())["seconds"] for rank in range(NUM_USED)]
    times_s = [max(seconds) for seconds in zip(*answers, strict=True)]
    (trial / "run.log").write_text(log_of(plan.config, times_s))


def log_of(config: ParallelConfig, times_s: Sequence[float]) -> str:
    """Return the log of a run as Megatron-LM prints it."""
    arguments = expected_arguments(config, TRAINING.global_batch_size, TRAINING.seq_length)
    lines = ["------------------------ arguments ------------------------"]
    lines += [f"  {name} {'.' * (48 - len(name))} {value}" for name, value in arguments.items()]
    lines.append("-------------------- end of arguments ---------------------")
    lines += [
        f" iteration {step:8d}/{len(times_s):8d} | elapsed time per iteration (ms): {1e3 * seconds:.1f} | "
        f"global batch size: {TRAINING.global_batch_size:5d} |"
        for step, seconds in enumerate(times_s, start=1)
    ]
    return "\n".join(lines) + "\n"


def page(races: Sequence[Race], rounds: int) -> str:
    """Return the results as a Markdown page."""
    after = [float(np.mean([race.regrets(race.tried)[number] for race in races])) for number in range(NUM_TRIALS)]
    fastest = [float(np.mean([race.regrets(race.predicted_order())[end] for race in races])) for end in (0, -1)]
    holds = sum(race.regrets(race.tried)[-1] <= race.stated + 1e-9 for race in races)
    head = (
        f"# Race on an emulated cluster, {datetime.now(UTC).date()}\n\n"
        f"After {NUM_TRIALS} trials of `tune` the best layout is {percent(after[-1])} slower than the fastest in the "
        f"mean of {counted(len(races), 'race')}; after one {percent(after[0])}. In the order of "
        f"predicted times it is {percent(fastest[0])} after one trial and {percent(fastest[1])} after {NUM_TRIALS}. "
        f"The stated regret holds in {holds} of {len(races)}.\n\n"
    )
    columns = [
        "scenario", "seed", "layouts", "seconds", "measured over predicted", "regret after 1, 2, 3 trials",
        "fastest predicted first", "stated at the end",
    ]  # fmt: skip
    rows = [columns, ["---"] * len(columns), *(race.row() for race in races)]
    table = "\n".join("| " + " | ".join(row) + " |" for row in rows)
    tail = (
        f"\n\n- Hosts are network namespaces with a rate for every directed pair; pipelines of 1, 2, 4 and 8 stages, "
        f"micro-batches {', '.join(map(str, MICRO_BATCHES))}, real messages over gloo in Megatron-Core's 1F1B order.\n"
        f"- Compute is sleep. A drawn stack is slower or faster than its profile by {SHIFT:.0%}, and by {SLOPE:.0%} "
        "per doubling of the micro-batch (standard deviations); `tune` does not know it.\n"
        f"- Each trial ran by the exported `launch.sh` of torchrun, {STEPS} iterations. The times of all layouts are "
        f"medians of {rounds} rounds afterwards.\n"
        f"- pipette-opt {__version__}, Python {platform.python_version()}, {platform.machine()}: `python -m "
        f"benchmarks.emulated_cluster.race --seeds {len({race.seed for race in races})} --rounds {rounds}`.\n"
    )
    return head + table + tail


def main(
    seeds: Annotated[int, typer.Option(help="Number of seeds per scenario.", min=1)] = 2,
    scenario: Annotated[list[str] | None, typer.Option(help="Only these scenarios.")] = None,
    rounds: Annotated[int, typer.Option(help="Times that every layout is timed.", min=1)] = 3,
    out: Annotated[Path | None, typer.Option("--out", "-o", help="File for the page.")] = None,
) -> None:
    """Race on emulated clusters; needs root."""
    reason = why_not()
    if reason is not None:
        say(f"An emulated cluster {reason}.")
        raise typer.Exit(2)
    chosen = scenario or list(SCENARIOS)
    unknown = [name for name in chosen if name not in SCENARIOS]
    if unknown:
        say(f"--scenario {unknown[0]!r} is unknown; there are: {', '.join(SCENARIOS)}.")
        raise typer.Exit(2)
    races = []
    for name in chosen:
        for seed in range(seeds):
            with tempfile.TemporaryDirectory() as folder:
                races.append(race(name, seed, rounds, Path(folder)))
            say("  " + " | ".join(races[-1].row()))
            if out is not None:
                out.write_text(page(races, rounds))
    typer.echo(page(races, rounds))


if __name__ == "__main__":
    typer.run(main)

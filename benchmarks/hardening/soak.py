"""
Random jobs: solved, verified, simulated again, and compared with random plans or with all plans.

``python benchmarks/hardening/soak.py --instances 1000`` makes clusters of one to six hosts (one or two GPU types,
directed links, some missing), models with and without experts, and batches. Each job is solved in a few seconds. Then:

- ``verify`` derives every figure of the plan again;
- the simulator must give the plan's time again;
- no plan may be below the bound, except plans that the search left out for its time limit. For small jobs, every
  configuration on every placement is simulated; for larger ones, random plans, with splits of the layers that the
  search may not have listed;
- a job without a plan must have no configuration that is legal, fits and can be placed.

``--small`` makes clusters of up to three hosts of one or two GPUs and short models, for which all plans can be
simulated. ``--regions`` makes links between two halves of the hosts slower by a factor of 3 to 100. ``--domains`` puts
neighbouring hosts into NVLink domains, with links of 50 to 250 GB/s inside.
``--log soak.jsonl`` keeps a line for each job; the same command continues after the last of them.

The exit code is 1 after any disagreement. The seed of an instance makes it again: ``--seed 17 --instances 1``.
"""

import argparse
import itertools
import json
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np

from pipette_opt.base.errors import InfeasibleError, InputError, NoPlanInTimeError, PipetteError
from pipette_opt.base.units import GB, US
from pipette_opt.candidates import SearchSpace, check_legal, enumerate_candidates, overlap_choices
from pipette_opt.memory.fewest import check_memory
from pipette_opt.optimize import OptimizeParams, optimize
from pipette_opt.parallel import HostTile, ParallelConfig, host_tiles, tile_placement
from pipette_opt.plans.plan import Plan
from pipette_opt.prepare import load_predictor
from pipette_opt.read.gpus import read_gpu_entry
from pipette_opt.simulate.estimate import estimate
from pipette_opt.specs import ClusterSpec, Instance, LinkMatrix, ModelSpec, NodeSpec, TrainingSpec
from pipette_opt.specs.levels import Level
from pipette_opt.verify import verify
from pipette_opt.verify.space import recorded_space

KINDS = ("a100-80gb", "a100-40gb", "h100", "v100-32gb")
"""GPU types, of which a cluster has one or two."""

MAX_JUDGED = 400
"""Maximum number of plans that are simulated to compare with each plan; all plans if a job has fewer. Chosen."""

ROUNDING = 1e-9
"""Relative difference of two sums of equal times in different order."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """
    Result of one job.

    Parameters
    ----------
    outcome
        Status of the certificate, ``infeasible``, ``refused`` (the job is no legal input) or ``error``.
    judged
        Number of other plans that were simulated.
    whole
        Whether these are all plans of the job.
    gap
        Relative gap of the certificate; 0 without a plan.
    problems
        Disagreements.
    """

    seed: int
    outcome: str
    judged: int = 0
    whole: bool = False
    gap: float = 0.0
    problems: tuple[str, ...] = ()


def made_instance(seed: int, small: bool = False, regions: bool = False, domains: bool = False) -> Instance:
    """Return a random job, equal for equal seeds."""
    rng = np.random.default_rng(seed)
    num, gpus = int(rng.integers(1, 4 if small else 7)), int(rng.choice([1, 2] if small else [1, 2, 4, 8]))
    kinds = rng.choice(len(KINDS), size=2, replace=False)[: 1 + int(rng.random() < 0.3)]
    of_host = [KINDS[kinds[index % len(kinds)]] for index in range(num)]
    rates = rng.uniform(5.0, 40.0) * rng.uniform(0.4, 1.0, (num, num))
    if num > 2 and rng.random() < 0.3:
        rates[rng.random((num, num)) < 0.1] = np.nan
    np.fill_diagonal(rates, np.nan)
    if regions:
        far = np.arange(num) % 2 == 0
        rates[far[:, None] != far] /= np.random.default_rng((seed, 2)).uniform(3.0, 100.0)
    levels: tuple[Level, ...] = ()
    if domains:
        levels = (random_domains(np.random.default_rng((seed, 3)), num),)
        of_node = levels[0].group_of_node
        rates[of_node[:, None] == of_node] = np.nan
    cluster = ClusterSpec(
        name=f"soak-{seed}",
        nodes=tuple(
            NodeSpec(host=f"n{index}", gpu=read_gpu_entry(kind).gpu, num_gpus=gpus)
            for index, kind in enumerate(of_host)
        ),
        intra_node_bytes_per_s=float(rng.choice([30.0, 120.0, 240.0])) * GB,
        intra_node_latency_s=float(rng.uniform(2, 15)) * US,
        inter_node_latency_s=float(rng.uniform(5, 40)) * US,
        nics_per_node=int(rng.choice([1, 2, gpus])),
        link_matrices=(LinkMatrix(concurrent_flows=1, bytes_per_s=rates * GB),) if num > 1 else (),
        levels=levels,
    )
    heads = int(rng.choice([8, 16, 24]))
    experts = {}
    if rng.random() < 0.25:
        experts = {
            "num_experts": int(rng.choice([4, 8])),
            "moe_router_topk": 2,
            "num_dense_layers": int(rng.integers(2)),
        }
    model = ModelSpec(
        name=f"soak-{seed}",
        num_layers=int(rng.integers(2, 6 if small else 17)),
        hidden_size=heads * 128,
        ffn_hidden_size=heads * 128 * int(rng.choice([2, 4])),
        num_attention_heads=heads,
        num_query_groups=int(rng.choice([heads, 8])),
        kv_channels=128,
        vocab_size=int(rng.choice([32000, 128256])),
        max_position_embeddings=8192,
        gated_linear_unit=bool(rng.random() < 0.6),
        normalization="RMSNorm",
        position_embedding_type="rope",
        untie_embeddings_and_output_weights=bool(rng.random() < 0.5),
        add_bias_linear=False,
        add_qkv_bias=False,
        **experts,
    )
    training = TrainingSpec(
        global_batch_size=int(rng.choice([4, 6, 8] if small else [8, 24, 32, 64])),
        seq_length=int(rng.choice([1024, 2048, 4096])),
        precision="fp16" if any("v100" in kind for kind in of_host) else "bf16",
    )
    return Instance(model=model, cluster=cluster, training=training)


def random_domains(rng: np.random.Generator, num_hosts: int) -> Level:
    """Return NVLink domains of neighbouring hosts, of random sizes."""
    begins = rng.random(num_hosts - 1) < 0.4
    of_node = np.array([0, *np.cumsum(begins)], dtype=np.int64)
    return Level(
        name="nvlink-domain",
        group_of_node=of_node,
        bytes_per_s=float(rng.uniform(50.0, 250.0)) * GB,
        latency_s=2 * US,
        scale_up=True,
    )


def configurations(instance: Instance, space: SearchSpace, rng: np.random.Generator) -> list[ParallelConfig]:
    """Return the legal configurations of the space with every overlap, and some with random splits of layers."""
    listed = enumerate_candidates(instance, space)
    found = [other for config in listed for other in overlap_choices(space, config)]
    for index in rng.permutation(len(found))[: MAX_JUDGED // 4]:
        config = found[index]
        pp = config.pipeline_model_parallel_size
        if pp == 1 or config.num_chunks > 1 or config.recomputation == "block":
            continue
        cuts = np.sort(rng.choice(np.arange(1, instance.model.num_layers), pp - 1, replace=False))
        layers = tuple(np.diff([0, *cuts, instance.model.num_layers]).tolist())
        try:
            dealt = replace(config, layers_per_stage=layers)
        except ValueError:
            continue
        if not check_legal(instance.model, instance.training, dealt):
            found.append(dealt)
    return list(dict.fromkeys(found))


def others(
    instance: Instance, space: SearchSpace, risk: float, rng: np.random.Generator
) -> tuple[list[tuple[float, str]], bool]:
    """Return simulated time and name of other plans that fit, and whether they are all plans of the job."""
    memory = check_memory(instance, configurations(instance, space, rng), load_predictor(risk, instance), risk)
    num = instance.cluster.num_nodes
    shapes: list[tuple[ParallelConfig, HostTile, np.ndarray]] = []
    for checked in memory.fitting:
        for tile in host_tiles(checked.config, instance.cluster.gpus_per_node, instance.launcher):
            shapes.append((checked.config, tile, checked.need_bytes))
    placements = max(
        (int(np.prod(np.arange(num - min(_cells(shape), num) + 1, num + 1))) for shape in shapes), default=0
    )
    whole = len(shapes) * placements <= MAX_JUDGED
    drawn = shapes if whole else [shapes[index] for index in rng.integers(len(shapes), size=MAX_JUDGED)]
    times = []
    for config, tile, need in drawn:
        grid = tile.node_grid(config)
        cells = int(np.prod(grid))
        if cells > num:
            continue
        ways = itertools.permutations(range(num), cells) if whole else [tuple(rng.permutation(num)[:cells])]
        for hosts in ways:
            nodes = np.array(hosts).reshape(grid)
            room = memory.capacity_bytes[nodes].min(axis=(1, 2)).repeat(tile.stages)
            if (need > room).any():
                continue
            try:
                seconds = estimate(instance, config, tile_placement(config, tile, nodes)).iteration_time_s
            except InputError:  # a link that was not measured
                continue
            times.append((seconds, f"{config} on {hosts}"))
    return times, whole


def _cells(shape: tuple[ParallelConfig, HostTile, np.ndarray]) -> int:
    config, tile, _ = shape
    return int(np.prod(tile.node_grid(config)))


def soak(seed: int, seconds: float, small: bool, regions: bool, domains: bool = False) -> Found:
    """Return the result of one job."""
    instance, space = made_instance(seed, small, regions, domains), SearchSpace()
    params = OptimizeParams(time_limit_s=seconds, seed=seed)
    plan: Plan | None = None
    try:
        plan = optimize(instance, space, params)
    except NoPlanInTimeError:
        return Found(seed=seed, outcome="no plan in time")
    except InfeasibleError:
        pass
    except InputError:
        return Found(seed=seed, outcome="refused")
    judged = space if plan is None else promised_space(space, recorded_space(plan))
    compared, whole = others(instance, judged, params.max_oom_risk, np.random.default_rng((seed, 1)))
    if plan is None:
        problems = (f"infeasible, but {min(compared)}",) if compared else ()
        return Found(seed=seed, outcome="infeasible", judged=len(compared), whole=whole, problems=problems)
    return Found(
        seed=seed,
        outcome=plan.certificate.status,
        judged=len(compared),
        whole=whole,
        gap=plan.certificate.gap,
        problems=tuple(disagreements(instance, plan, compared)),
    )


def promised_space(given: SearchSpace, recorded: SearchSpace) -> SearchSpace:
    """Return the given space without the values that a search left out for its time limit, as its certificate says."""
    return replace(given, **{name: getattr(recorded, name) for name in recorded.narrowed})


def disagreements(instance: Instance, plan: Plan, compared: list[tuple[float, str]]) -> Iterator[str]:
    """Yield the disagreements of ``verify``, the other plans and the simulator with a plan."""
    try:
        verify(instance, plan)
    except PipetteError as error:
        yield str(error)
    bound = plan.certificate.lower_bound_s
    if compared and min(compared)[0] < bound * (1 - ROUNDING):
        yield f"bound {bound}, but {min(compared)}"
    again = estimate(instance, plan.config, plan.placement).iteration_time_s
    if abs(again - plan.estimate.iteration_time_s) > ROUNDING * again:
        yield f"{plan.estimate.iteration_time_s} s, simulated again {again} s"


def logged(path: Path | None) -> list[Found]:
    """Return the results of an earlier run."""
    if path is None or not path.exists():
        return []
    return [Found(**json.loads(line)) for line in path.read_text().splitlines()]


def main() -> None:
    """Parse the arguments, test the jobs, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--instances", type=int, default=50)
    parser.add_argument("--seed", type=int, default=0, help="seed of the first instance")
    parser.add_argument("--time-limit", type=float, default=2.0, help="time limit of each search, seconds")
    parser.add_argument("--minutes", type=float, default=float("inf"), help="start no job after this number of minutes")
    parser.add_argument("--small", action="store_true", help="small jobs, for which all plans can be simulated")
    parser.add_argument("--regions", action="store_true", help="two groups of hosts with slow links between them")
    parser.add_argument("--domains", action="store_true", help="NVLink domains over several hosts")
    parser.add_argument("--log", type=Path, help="file with a line for each job; jobs in it are not run again")
    given = parser.parse_args()
    found, begin = logged(given.log), time.monotonic()
    done = {result.seed for result in found}
    for seed in range(given.seed, given.seed + given.instances):
        if seed in done or time.monotonic() - begin > 60 * given.minutes:
            continue
        try:
            result = soak(seed, given.time_limit, given.small, given.regions, given.domains)
        except Exception as error:
            result = Found(seed=seed, outcome="error", problems=(f"{type(error).__name__}: {error}",))
        found.append(result)
        if given.log:
            with given.log.open("a") as log:
                log.write(json.dumps(asdict(result)) + "\n")
        for problem in result.problems:
            print(f"seed {seed}: {problem}", flush=True)
    print("\n| outcome | jobs | of them compared with all plans | plans simulated |\n|---|---|---|---|")
    for name in sorted({result.outcome for result in found}):
        of_outcome = [result for result in found if result.outcome == name]
        print(
            f"| {name} | {len(of_outcome)} | {sum(result.whole for result in of_outcome)} "
            f"| {sum(result.judged for result in of_outcome):,} |"
        )
    gaps = 100 * np.array([result.gap for result in found] or [0.0])
    print(f"\nGap: mean {gaps.mean():.2f} %, worst {gaps.max():.2f} %.")
    wrong = sum(bool(result.problems) for result in found)
    print(f"Disagreements: {wrong} of {len(found)}.")
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()

"""
Plans for mixed GPU types against an enumeration: ``python -m benchmarks.mixed [--cases N] [--large N] [--out PAGE]``.

Clusters have four hosts of two GPU types, drawn from seeds: 3 + 1, 2 + 2 or 1 + 3 hosts, 4 or 8 GPUs a host. Links
differ between all hosts and are slower between types. Models have 7 to 13 billion parameters. ``optimize`` has 60 s for
each case. Then the simulator enumerates every split of the layers, on every placement, of every configuration of the
space, without the solver and its model. `above` is the plan's excess over that optimum. `bound` is how far the
certificate's bound is below the optimum; a bound above it would be a false proof.

The enumeration leaves out splits that a cheap bound shows to be no faster than the fastest so far. The bound of a
placed pipeline adds the first micro-batch's way to a stage, the stage's work on all micro-batches, and the last
gradient's way back. Its times are the simulator's own for that placement and that number of layers. Every simulated
plan is compared with its bound. The enumeration gives every chunk of a stage equally many layers. A plan with unequal
chunks may be faster than its optimum, which is a negative `above`.

AMP (its own programme for the layers, its annealing of hosts), Varuna (no tensor groups) and Megatron's rule of thumb
choose a plan on the same clusters, without interleaving, which they do not support. The same simulator times their
plans, and the percentage is over the optimum.

The second table has clusters of 16 hosts of two GPU types with the default space: the gap after 60 s, without
enumeration.
"""

import argparse
import itertools
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from benchmarks.page import made_by, option, run_page, say
from pipette_opt.base.errors import InfeasibleError, InputError
from pipette_opt.base.types import BoolArray, FloatArray, IntArray
from pipette_opt.base.units import GB, US
from pipette_opt.baselines.amp import amp
from pipette_opt.baselines.amp_layers import with_amp_splits
from pipette_opt.baselines.compare import simulated_plans
from pipette_opt.baselines.megatron import megatron_rule
from pipette_opt.baselines.varuna import varuna
from pipette_opt.candidates import SearchSpace, enumerate_candidates, overlap_choices
from pipette_opt.costs.placed import placed_batch
from pipette_opt.memory.filter import predicted_memory, usable_bytes
from pipette_opt.memory.predictor import MemoryPredictor
from pipette_opt.optimize import OptimizeParams, optimize
from pipette_opt.parallel import HostTile, ParallelConfig, Placement, host_tiles, tile_placement, without_overlap
from pipette_opt.plans.plan import Plan
from pipette_opt.prepare import Question, load_predictor, prepare
from pipette_opt.read.gpus import read_gpu_entry
from pipette_opt.read.model import read_model
from pipette_opt.simulate.many import estimate_many
from pipette_opt.specs import ClusterSpec, Instance, LinkMatrix, NodeSpec, TrainingSpec

RISK = 0.01
"""Accepted risk of running out of memory, the default of ``solve``."""

ENUMERATED = (None, "selective", "full")
"""Recomputation of the jobs; the enumeration has no block recomputation."""

PAIRS = (
    ("a100-80gb", "v100-32gb"),
    ("h100-80gb", "a100-80gb"),
    ("a100-40gb", "a100-80gb"),
    ("h100-80gb", "l40s"),
    ("b200", "h100-80gb"),
    ("a100-40gb", "v100-32gb"),
)
"""Pairs of GPU types of the catalogue that form a cluster."""

COUNTS = ((3, 1), (2, 2), (1, 3))
"""Number of hosts of each type, four in total."""

MODELS = ("llama-2-7b", "llama-2-13b", "llama-3-8b", "mistral-7b")
"""Models, with 32 or 40 layers."""

OFTEN = 4096
"""Number of placed plans that the simulator times in one call. Chosen."""

MAX_PLANS = 400_000
"""Maximum number of plans simulated per cluster; the page marks clusters that reach it. Chosen."""

FIRST, FIRST_ABOVE = 24, 1.3
"""
Number of placements, and of plans on each, that are simulated for a first upper bound; maximum of a plan's bound over
the placement's least time. Chosen.
"""

LISTED = 200_000
"""Maximum number of splits listed for one placement. Chosen."""

CLOSE = 1e-4
"""Relative distance within which a plan counts as optimal. Chosen."""


@dataclass(frozen=True, kw_only=True)
class Case:
    """Cluster with a job and a search space."""

    name: str
    instance: Instance
    space: SearchSpace


def made_cluster(rng: np.random.Generator, pair: tuple[str, str], counts: Sequence[int], gpus: int) -> ClusterSpec:
    """
    Return hosts of two GPU types in random order, with random links that are slower between types.

    Parameters
    ----------
    counts
        Number of hosts of each type.
    gpus
        GPUs per host.
    """
    kinds = rng.permutation(np.repeat([0, 1], counts))
    num = len(kinds)
    rate = rng.uniform(20.0, 45.0) * rng.uniform(0.8, 1.0, (num, num))
    rate *= np.where(kinds[:, None] == kinds[None, :], 1.0, rng.uniform(0.3, 0.9))
    specs = [read_gpu_entry(name).gpu for name in pair]
    return ClusterSpec(
        name="-".join(pair),
        nodes=tuple(
            NodeSpec(host=f"{pair[kind]}-{index}", gpu=specs[kind], num_gpus=gpus) for index, kind in enumerate(kinds)
        ),
        intra_node_bytes_per_s=float(rng.choice([60.0, 120.0, 240.0])) * GB,
        intra_node_latency_s=5 * US,
        inter_node_latency_s=15 * US,
        nics_per_node=4,
        link_matrices=(LinkMatrix(concurrent_flows=4, bytes_per_s=rate * GB),),
    )


def made_job(rng: np.random.Generator, cluster: ClusterSpec, batch: int) -> Instance:
    """Return a job of a random model on the cluster, with a precision that both GPU types support."""
    bf16 = all("bf16" in gpu.peak_flops for gpu in cluster.gpu_kinds)
    return Instance(
        model=read_model(MODELS[int(rng.integers(len(MODELS)))]),
        cluster=cluster,
        training=TrainingSpec(
            global_batch_size=batch,
            seq_length=int(rng.choice([2048, 4096])),
            precision="bf16" if bf16 else "fp16",
            accumulate_allreduce_grads_in_fp32=bf16,
        ),
    )


def small_cases(count: int) -> Iterator[Case]:
    """Yield ``count`` cases with four hosts."""
    for seed in range(count):
        rng = np.random.default_rng(seed)
        pair, counts, gpus = PAIRS[seed % len(PAIRS)], COUNTS[seed % 7 % 3], (8, 4)[seed // 2 % 2]
        cluster = made_cluster(rng, pair, counts, gpus)
        job = made_job(rng, cluster, int(rng.choice([64, 128])))
        pinned = SearchSpace(
            tensor_parallel=((4, 8), (2, 4))[gpus == 4],
            pipeline_parallel=(1, 2, 4),
            context_parallel=(1,),
            micro_batch_size=(1, 2),
            virtual_pipeline=(1, 2),
            recompute=ENUMERATED,
        )
        yield Case(name=f"{seed}: {_told(pair, counts, gpus)}", instance=job, space=pinned)


def documented_case() -> Case:
    """Return the case of docs/certificate.md: three hosts of A100 and one of V100."""
    specs = [read_gpu_entry(name).gpu for name in ("a100-80gb",) * 3 + ("v100-32gb",)]
    cluster = ClusterSpec(
        name="documented",
        nodes=tuple(NodeSpec(host=f"{gpu.name}-{index}", gpu=gpu, num_gpus=8) for index, gpu in enumerate(specs)),
        intra_node_bytes_per_s=120 * GB,
        intra_node_latency_s=8 * US,
        inter_node_latency_s=12 * US,
        nics_per_node=4,
        link_matrices=(
            LinkMatrix(concurrent_flows=1, bytes_per_s=np.where(np.eye(4, dtype=np.bool_), np.nan, 12.0) * GB),
        ),
    )
    job = Instance(
        model=read_model("llama-2-13b"),
        cluster=cluster,
        training=TrainingSpec(
            global_batch_size=256, seq_length=2048, precision="fp16", accumulate_allreduce_grads_in_fp32=False
        ),
    )
    space = SearchSpace(context_parallel=(1,), micro_batch_size=(1, 2, 4), recompute=ENUMERATED)
    return Case(name="documented: 3 x a100-80gb + 1 x v100-32gb, 8 GPUs, equal links", instance=job, space=space)


def large_cases(count: int) -> Iterator[Case]:
    """Yield ``count`` cases with 16 hosts: 12 + 4, 8 + 8 or 4 + 12."""
    for seed in range(count):
        rng = np.random.default_rng(100 + seed)
        pair, counts = PAIRS[seed % len(PAIRS)], tuple(4 * count for count in COUNTS[seed % 3])
        job = made_job(rng, made_cluster(rng, pair, counts, 8), 256)
        yield Case(name=f"{seed}: {_told(pair, counts, 8)}", instance=job, space=SearchSpace(recompute=ENUMERATED))


def _told(pair: tuple[str, str], counts: Sequence[int], gpus: int) -> str:
    return f"{counts[0]} x {pair[0]} + {counts[1]} x {pair[1]}, {gpus} GPUs"


@dataclass(kw_only=True)
class Enumerated:
    """Optimum of the enumeration by the simulator, with the effort that it took."""

    seconds: float = float("inf")
    config: ParallelConfig | None = None
    simulated: int = 0
    bounded: int = 0
    is_whole: bool = True
    memory_binds: bool = False
    """True if memory rejected a split whose bound is below the optimum."""


@dataclass(kw_only=True)
class _Placed:
    """Configuration without a split of its layers, on one placement; no split of it is faster than ``least_s``."""

    base: ParallelConfig
    choices: list[ParallelConfig]
    tile: HostTile
    placement: Placement
    nodes: IntArray
    work_s: FloatArray
    """Seconds of all chunks of a stage for one micro-batch, by layers per chunk less 1; shape ``(units, pp, dp)``."""
    pass_s: FloatArray
    """Seconds of the first chunk of a stage and its transfers to and from the next stage; shape ``(units, pp, dp)``."""
    optimizer_s: float
    room: BoolArray
    """Mask of stages that fit in memory, by layers per chunk, shape ``(units, pp)``."""
    least_s: float = 0.0

    @property
    def num_units(self) -> int:
        return len(self.work_s)

    def bound_s(self, units: IntArray, microbatches: int) -> FloatArray:
        """
        Return the lower bound on the iteration time of each split, seconds; ``units`` are layers per chunk, ``(n,
        pp)``.
        """
        stages = np.arange(units.shape[1])
        work, passes = self.work_s[units - 1, stages], self.pass_s[units - 1, stages]
        before = np.cumsum(passes, axis=1) - passes
        found: FloatArray = (before + microbatches * work).max(axis=(1, 2)) + self.optimizer_s
        return found

    def most_units(self, ceiling_s: float, microbatches: int) -> IntArray:
        """Return the most layers per chunk of each stage whose own bound is below ``ceiling_s``, shape ``(pp,)``."""
        least = self.pass_s[0]
        alone = (np.cumsum(least, axis=0) - least)[None] + microbatches * self.work_s
        fits = alone.max(axis=2) + self.optimizer_s < ceiling_s
        most: IntArray = np.where(fits.all(axis=0), self.num_units, fits.argmin(axis=0))
        return most


_Bounded = tuple[_Placed, ParallelConfig, float]
"""Placement, configuration, and lower bound on its iteration time in seconds."""


def enumerate_plans(case: Case) -> Enumerated:
    """Return the optimum by the simulator over all configurations, placements and splits of the layers."""
    instance, found = case.instance, Enumerated()
    predictor = load_predictor(RISK, instance)
    placed = sorted(_all_placed(case, predictor), key=lambda placed_config: placed_config.least_s)
    batch: list[_Bounded] = []
    for placed_config in placed[:FIRST]:  # a time to beat
        batch = list(itertools.islice(_plans(case, placed_config, FIRST_ABOVE * placed_config.least_s), FIRST))
        _judge(instance, predictor, batch, found)
    batch = []
    for placed_config in placed:
        if placed_config.least_s >= found.seconds:
            break
        for plan in _plans(case, placed_config, found.seconds, found):
            batch.append(plan)
            if len(batch) >= OFTEN:
                _judge(instance, predictor, batch, found)
                batch = []
                if found.simulated >= MAX_PLANS:
                    found.is_whole = False
                    return found
    _judge(instance, predictor, batch, found)
    found.memory_binds = any(_is_bound_by_memory(placed_config, found.seconds, instance) for placed_config in placed)
    return found


def _plans(case: Case, placed_config: _Placed, ceiling_s: float, found: Enumerated | None = None) -> Iterator[_Bounded]:
    """Yield the plans on a placement whose bound is below ``ceiling_s``, the least bound first."""
    m = placed_config.base.num_microbatches(case.instance.training.global_batch_size)
    splits, is_whole = _splits_below(placed_config, ceiling_s, m)
    if found is not None:
        found.is_whole &= is_whole
    bounds = placed_config.bound_s(splits, m)
    for row in np.argsort(bounds, kind="stable").tolist():
        if bounds[row] >= (ceiling_s if found is None else found.seconds):
            return
        if all(placed_config.room[units - 1, stage] for stage, units in enumerate(splits[row].tolist())):
            layers = tuple(int(units) * placed_config.base.num_chunks for units in splits[row])
            for choice in placed_config.choices:
                yield placed_config, replace(choice, layers_per_stage=layers), float(bounds[row])


def _all_placed(case: Case, predictor: MemoryPredictor) -> Iterator[_Placed]:
    """Yield every configuration on every placement, without a split of its layers."""
    instance = case.instance
    capacity = usable_bytes(instance.cluster, predictor)
    seen: dict[ParallelConfig, list[ParallelConfig]] = {}
    for config in enumerate_candidates(instance, case.space):
        chunks, pp = config.num_chunks, config.pipeline_model_parallel_size
        if instance.model.num_layers % chunks == 0 and instance.model.num_layers // chunks >= pp:
            base = replace(without_overlap(config), layers_per_stage=(chunks,) * pp)
            seen.setdefault(base, overlap_choices(case.space, base))
    for base, choices in seen.items():
        pp, chunks = base.pipeline_model_parallel_size, base.num_chunks
        sizes = instance.model.num_layers // chunks - pp + 1
        sized = [replace(base, layers_per_stage=(chunks * units,) * pp) for units in range(1, sizes + 1)]
        needed = predicted_memory(instance, predictor, sized, RISK)
        upper = np.stack([memory.upper_bytes for memory in needed])  # (units, pp)
        m = base.num_microbatches(instance.training.global_batch_size)
        for tile in host_tiles(base, instance.cluster.gpus_per_node, instance.launcher):
            grid = tile.node_grid(base)
            for hosts in itertools.permutations(range(instance.cluster.num_nodes), int(np.prod(grid))):
                nodes = np.array(hosts).reshape(grid)
                if grid[1:] == (2, 1) and nodes[0, 0, 0] > nodes[0, 1, 0]:
                    continue  # the ring of two replicas is the same the other way round
                placement = tile_placement(base, tile, nodes)
                times = placed_batch(instance, [(config, placement) for config in sized])
                forward, backward = times.forward_s, times.backward_s
                sends = times.send_forward_s[0] + times.send_backward_s[0]
                row = np.arange(pp) // tile.stages
                least_room = capacity[nodes.reshape(grid[0], -1)].min(axis=1)[row]
                placed_config = _Placed(
                    base=base,
                    choices=choices,
                    tile=tile,
                    placement=placement,
                    nodes=nodes,
                    work_s=(forward + backward).sum(axis=1),
                    pass_s=(forward + backward)[:, 0] + sends,
                    optimizer_s=float(times.optimizer_s.min()),
                    room=upper <= least_room,
                )
                placed_config.least_s = _least_s(placed_config, m, instance.model.num_layers // chunks)
                if placed_config.least_s < float("inf"):
                    yield placed_config


def _least_s(placed_config: _Placed, microbatches: int, num_units: int) -> float:
    """Return the least time in which the stages, each for itself, can hold all layers, seconds."""
    low, high = (
        0.0,
        2.0
        * float(
            placed_config.bound_s(np.full((1, placed_config.room.shape[1]), placed_config.num_units), microbatches)[0]
        ),
    )
    for _ in range(40):
        middle = (low + high) / 2
        low, high = (
            (low, middle) if placed_config.most_units(middle, microbatches).sum() >= num_units else (middle, high)
        )
    return low


def _splits_below(placed_config: _Placed, ceiling_s: float, microbatches: int) -> tuple[IntArray, bool]:
    """
    Return the splits in which each stage's own bound is below ``ceiling_s``, and whether the list is complete.

    The splits have shape ``(n, pp)``, in layers per chunk.
    """
    pp, is_whole = placed_config.room.shape[1], True
    total = placed_config.num_units + pp - 1
    caps = np.minimum(placed_config.most_units(ceiling_s, microbatches), placed_config.num_units)
    rows = np.zeros((1, 0), dtype=np.int64)
    for stage in range(pp):
        after = int(caps[stage + 1 :].sum())
        left = total - rows.sum(axis=1)
        options = np.arange(1, caps[stage] + 1)
        pairs = (left[:, None] - options >= pp - stage - 1) & (left[:, None] - options <= after)
        which, units = np.nonzero(pairs)
        rows = np.hstack([rows[which], options[units][:, None]])
        if len(rows) > LISTED:
            rows, is_whole = rows[:LISTED], False
    return rows, is_whole


def _judge(instance: Instance, predictor: MemoryPredictor, batch: list[_Bounded], found: Enumerated) -> None:
    """Simulate the plans of a batch that fit in memory, and update the optimum; assert that each bound holds."""
    if not batch:
        return
    alone = list(dict.fromkeys(without_overlap(config) for _, config, _ in batch))
    needed = predictor.predict(
        instance.model,
        instance.training,
        alone,
        gpus_per_node=instance.cluster.gpus_per_node,
        intra_node_bytes_per_s=instance.cluster.intra_node_bytes_per_s,
        max_oom_risk=RISK,
    )
    upper = {config: prediction.upper_bytes for config, prediction in zip(alone, needed, strict=True)}
    capacity = usable_bytes(instance.cluster, predictor)
    fitting = []
    for placed_config, config, bound_s in batch:
        room = capacity[placed_config.nodes.reshape(len(placed_config.nodes), -1)].min(axis=1)
        row = np.arange(config.pipeline_model_parallel_size) // placed_config.tile.stages
        if (upper[without_overlap(config)] <= room[row]).all():
            fitting.append((placed_config, config, bound_s))
    if not fitting:
        return
    seconds = estimate_many(instance, [(config, placed_config.placement) for placed_config, config, _ in fitting])
    bounds = np.array([bound_s for _, _, bound_s in fitting])
    assert (bounds <= seconds * (1 + 1e-9)).all(), "the bound of the enumeration is above the simulator"
    found.simulated += len(fitting)
    best = int(seconds.argmin())
    if seconds[best] < found.seconds:
        found.seconds, found.config = float(seconds[best]), fitting[best][1]


def _is_bound_by_memory(placed_config: _Placed, optimum_s: float, instance: Instance) -> bool:
    """Return whether memory keeps a stage from a number of layers that would take less than the optimum."""
    m = placed_config.base.num_microbatches(instance.training.global_batch_size)
    if placed_config.least_s >= optimum_s:
        return False
    most = placed_config.most_units(optimum_s, m)
    return any(
        not placed_config.room[min(int(units), placed_config.num_units) - 1, stage]
        for stage, units in enumerate(most)
        if units
    )


def solved(case: Case, seconds: float) -> tuple[Plan, float]:
    """Return the plan of the solver, and the seconds of the search."""
    begun = time.perf_counter()
    plan = optimize(case.instance, case.space, OptimizeParams(time_limit_s=seconds, workers=2))
    return plan, time.perf_counter() - begun


def rivals(case: Case) -> dict[str, float]:
    """
    Return the simulated iteration time of each rival's fastest plan, seconds; infinite if it finds none.

    AMP divides the layers by its own programme and swaps hosts; Varuna has no tensor groups, so its space has none.
    """
    instance = case.instance
    predictor = load_predictor(RISK, instance)
    plain = replace(case.space, virtual_pipeline=(1,))
    spaces = {
        "AMP": (with_amp_splits(instance, plain, predictor), amp),
        "Varuna": (replace(plain, tensor_parallel=(1,), pipeline_parallel=None), varuna),
        "Megatron's rule": (plain, megatron_rule),
    }
    found = {}
    for name, (space, method) in spaces.items():
        try:
            prepared = prepare(Question(instance, space, RISK))
        except (InfeasibleError, InputError):
            found[name] = float("inf")
            continue
        plans = simulated_plans(instance, prepared.problem, method(prepared.problem))
        found[name] = min((plan.estimate.iteration_time_s for plan in plans), default=float("inf"))
    return found


def small_row(case: Case, seconds: float) -> tuple[str, bool]:
    """Return a row of the first table, and whether the plan and its bound are right."""
    plan, took_s = solved(case, seconds)
    begun = time.perf_counter()
    found = enumerate_plans(case)
    proof, best = plan.certificate, found.seconds
    above, below = plan.estimate.iteration_time_s / best - 1, 1 - proof.lower_bound_s / best
    right = above <= CLOSE and below >= -1e-9
    model = proof.joint_model
    cells = (
        case.name,
        case.instance.model.name,
        f"{plan.estimate.iteration_time_s:.4f}",
        *(_rival(seconds, best) for seconds in rivals(case).values()),
        f"{best:.4f}" if found.is_whole else f"{best:.4f} (not all)",
        f"{above:+.4%}",
        f"{below:+.4%}",
        f"{proof.status}, {proof.gap:.3%}",
        f"{took_s:.0f}",
        plan.config.label(),
        "-".join(str(layers) for layers in plan.config.layers_per_stage),
        "yes" if found.memory_binds else "no",
        "-" if model is None else f"{model.status}, {model.seconds:.1f} s",
        f"{found.simulated:,} in {time.perf_counter() - begun:.0f} s",
    )
    return " | ".join(cells), right


def _rival(seconds: float, best_s: float) -> str:
    """Return the cell of a rival: its seconds, and its excess over the optimum of the enumeration."""
    return "none fits" if seconds == float("inf") else f"{seconds:.4f} ({seconds / best_s - 1:+.1%})"


def large_row(case: Case, seconds: float) -> str:
    """Return a row of the second table."""
    plan, took_s = solved(case, seconds)
    proof = plan.certificate
    model = proof.joint_model
    cells = (
        case.name,
        case.instance.model.name,
        f"{plan.estimate.iteration_time_s:.4f}",
        f"{proof.status}, {proof.gap:.3%}",
        f"{took_s:.0f}",
        plan.config.label(),
        "-".join(str(layers) for layers in plan.config.layers_per_stage),
        "-"
        if model is None
        else f"{model.status}, {model.bound_s:.4f} s, {model.splits} splits, {model.seconds:.1f} s",
    )
    return " | ".join(cells)


SMALL = (
    "cluster, four hosts",
    "model",
    "plan, s",
    "AMP, s",
    "Varuna, s",
    "Megatron's rule, s",
    "optimum, s",
    "above",
    "bound below",
    "certificate",
    "took, s",
    "plan",
    "layers",
    "memory binds",
    "joint model",
    "simulated",
)
LARGE = ("cluster, 16 hosts", "model", "plan, s", "certificate", "took, s", "plan", "layers", "joint model")


def make(given: argparse.Namespace) -> Iterator[str]:
    """Run the cases; yield the page after each."""
    rows: list[tuple[str, bool]] = []
    large: list[str] = []
    documented = [documented_case()] if given.documented else []
    for case in [*documented, *list(small_cases(given.cases))[given.first :]]:
        rows.append(small_row(case, given.seconds))
        say(rows[-1][0])
        yield page(rows, large)
    for case in large_cases(given.large):
        large.append(large_row(case, given.seconds))
        say(large[-1])
        yield page(rows, large)


OPTIONS = (
    option("--cases", type=int, default=12, help="number of clusters of four hosts"),
    option("--large", type=int, default=4, help="number of clusters of 16 hosts"),
    option("--documented", action="store_true", help="also the cluster of docs/certificate.md"),
    option("--first", type=int, default=0, help="index of the first cluster of four hosts"),
    option("--seconds", type=float, default=60.0, help="time limit of each search, seconds"),
)


def page(rows: Sequence[tuple[str, bool]], large: Sequence[str]) -> str:
    """Return the page: answer, tables, and how they were made."""
    right = sum(is_right for _, is_right in rows)
    answer = (
        f"{right} of {len(rows)} plans are within {CLOSE:.0e} of the optimum of the enumeration, under a bound that is "
        f"not above it; {sum('| OPTIMAL,' in row for row, _ in rows)} are proven to be the best."
    )
    lines = ["# Mixed machines against an enumeration", "", answer, ""]
    for title, body in ((SMALL, [row for row, _ in rows]), (LARGE, large)):
        if body:
            lines += ["| " + " | ".join(title) + " |", "| " + " | ".join(["---"] * len(title)) + " |"]
            lines += [f"| {row} |" for row in body] + [""]
    lines += [f"{made_by()} Two threads.", "", *(__doc__ or "").strip().splitlines()[2:]]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    run_page(make, *OPTIONS)

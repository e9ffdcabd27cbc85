"""Placement instances: a named cluster, a grid shape, weights of transfers and rings, a send mode and a seed."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Literal

from benchmarks.placement.clusters import (
    GENERATED,
    MEASURED,
    STRUCTURELESS,
    link_gb_per_s,
    num_flows,
    num_listed,
)
from benchmarks.placement.problems import (
    JOINT,
    JOINT_HOSTS,
    Job,
    Shape,
    balanced_problem,
    cluster_of,
    job_problem,
    joint_problem,
)
from pipette_opt.base.types import P2PMode
from pipette_opt.problem.data import ProblemData

SetName = Literal["quick", "full", "reach"]

SHAPES: dict[int, tuple[Shape, ...]] = {
    8: ((4, 2), (2, 4)),
    16: ((4, 4), (8, 2), (2, 8), (16, 1)),
    32: ((8, 4), (4, 8), (16, 2)),
    64: ((8, 8), (16, 4)),
    128: ((16, 8), (8, 16)),
    256: ((16, 16),),
    512: ((16, 32),),
    1280: ((32, 40),),
}
"""Grid shapes that are tried for each number of hosts."""

BALANCED = "balanced"

JOBS = {
    "llama-2-13b": Job(model="llama-2-13b", global_batch_size=1024, seq_length=4096, micro_batch_size=2),
    "llama-3-70b": Job(model="llama-3-70b", global_batch_size=1024, seq_length=8192),
    "gpt-3-175b": Job(model="gpt-3-175b", global_batch_size=1536, seq_length=2048),
}
"""Jobs with tensor parallelism over the eight GPUs of a host."""

WEIGHTS = (BALANCED, *JOBS)


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchInstance:
    """
    Placement problem of the benchmark.

    Parameters
    ----------
    weights
        ``balanced`` or the name of a job.
    shape
        Pipeline and data size of the grid; ``None`` for the choice among all candidates of a job with 128 GPUs.
    limit_s
        Time limit of the solver, wall time in seconds.
    target, target_s
        Target of the placement gap, and seconds within which it should be reached; ``None`` without a target.
    stops_at_goal
        Whether the solver stops as soon as the gap reaches its target.
    """

    cluster: str
    weights: str
    shape: Shape | None
    p2p: P2PMode
    seed: int
    limit_s: float
    target: float | None
    target_s: float | None = None
    stops_at_goal: bool = False

    @property
    def num_used(self) -> int:
        """Number of used hosts."""
        return JOINT_HOSTS if self.shape is None else self.shape[0] * self.shape[1]

    @property
    def num_listed(self) -> int:
        """Number of hosts to choose from."""
        return num_listed(self.cluster, self.num_used)

    @property
    def shape_text(self) -> str:
        """Shape as text, such as ``8x4``."""
        return "joint" if self.shape is None else f"{self.shape[0]}x{self.shape[1]}"

    @property
    def name(self) -> str:
        """Name of the instance as text."""
        hosts = str(self.num_used) if self.num_used == self.num_listed else f"{self.num_used} of {self.num_listed}"
        return f"{self.cluster} {hosts} {self.shape_text} {self.weights} {self.p2p} seed {self.seed}"

    def build(self) -> ProblemData:
        """Return the problem in integers. Raises ``UnavailableError`` if it needs missing measured data."""
        rates = link_gb_per_s(self.cluster, self.num_used, self.seed)
        if self.shape is not None and self.weights == BALANCED:
            return balanced_problem(rates, self.shape, self.p2p)
        job = JOINT if self.shape is None else JOBS[self.weights]
        cluster = cluster_of(rates, num_flows(self.cluster), job.gpu)
        return (
            joint_problem(cluster, self.p2p) if self.shape is None else job_problem(job, cluster, self.shape, self.p2p)
        )


def instances(
    set_name: SetName,
    *,
    clusters: Sequence[str] | None = None,
    sizes: Sequence[int] | None = None,
    weights: Sequence[str] | None = None,
    modes: Sequence[P2PMode] | None = None,
    seeds: int | None = None,
    seconds: float | None = None,
    stop_at_goal: bool = False,
) -> list[BenchInstance]:
    """
    Return the instances of a set; the other arguments narrow or change the set.

    Quick: every cluster once, small. Reach: every cluster, size, shape and send mode, weights of real jobs and the
    joint choice, up to 128 hosts with five seeds, with all seconds of the targets; takes days. Full: one seed of each,
    which ends as soon as its target is reached, and 256 hosts and more on two clusters; an hour on two cores.

    Parameters
    ----------
    clusters
        Names of clusters; ``joint`` is the joint choice on all clusters, the others only have instances of one shape.
    seeds
        Number of seeds of each instance, in place of the set's.
    seconds
        Time limit of each instance, in place of its own; targets with fewer seconds are dropped.
    stop_at_goal
        Whether each instance ends as soon as its target is reached; later results are then unknown.
    """
    plan = {"quick": _quick, "full": _full, "reach": _reach}[set_name]()
    chosen = [
        instance
        for instance in plan
        if (clusters is None or _is_named(instance, clusters))
        and (sizes is None or instance.num_used in sizes)
        and (weights is None or instance.weights in weights)
        and (modes is None or instance.p2p in modes)
    ]
    if seeds is not None:
        unique = dict.fromkeys(replace(instance, seed=0) for instance in chosen)
        chosen = [replace(instance, seed=seed) for instance, seed in product(unique, range(seeds))]
    if stop_at_goal:
        chosen = [replace(instance, stops_at_goal=instance.target is not None) for instance in chosen]
    return chosen if seconds is None else [_limited(instance, seconds) for instance in chosen]


def _limited(instance: BenchInstance, seconds: float) -> BenchInstance:
    """Return the instance with another time limit; a target with fewer seconds is dropped."""
    if instance.target_s is None or seconds > instance.target_s:
        return replace(instance, limit_s=seconds, target=None, target_s=None)
    return replace(instance, limit_s=seconds)


def _is_named(instance: BenchInstance, clusters: Sequence[str]) -> bool:
    return ("joint" if instance.shape is None else instance.cluster) in clusters


_TARGETS: dict[int, tuple[tuple[float, float], tuple[float, float]]] = {
    8: ((0.0, 5.0), (0.0, 5.0)),
    16: ((0.0, 5.0), (0.0, 20.0)),
    32: ((0.005, 30.0), (0.02, 60.0)),
    64: ((0.01, 60.0), (0.04, 120.0)),
    128: ((0.02, 120.0), (0.06, 300.0)),
    1280: ((0.05, 600.0), (1.0, 600.0)),
}
"""Targets of placement gap and seconds by number of hosts: for clusters with structure, and without. Chosen."""


def target_of(cluster: str, num_used: int) -> tuple[float | None, float]:
    """Return the target of the placement gap (``None`` without a target) and the time limit in seconds."""
    if num_used not in _TARGETS:
        return None, 300.0 if num_used < 512 else 600.0
    return _TARGETS[num_used][cluster in STRUCTURELESS]


def _single(
    cluster: str, weights: str, shape: Shape, p2p: P2PMode, seed: int, seconds: float | None = None
) -> BenchInstance:
    target, goal_s = target_of(cluster, shape[0] * shape[1])
    instance = BenchInstance(
        cluster=cluster,
        weights=weights,
        shape=shape,
        p2p=p2p,
        seed=seed,
        limit_s=goal_s,
        target=target,
        target_s=None if target is None else goal_s,
    )
    return instance if seconds is None else _limited(instance, min(seconds, goal_s))


def _joint(cluster: str, p2p: P2PMode, seed: int) -> BenchInstance:
    return BenchInstance(
        cluster=cluster,
        weights=JOINT.model,
        shape=None,
        p2p=p2p,
        seed=seed,
        limit_s=15.0,
        target=0.0,
        target_s=15.0,
    )


def _sizes_of(cluster: str) -> list[int]:
    return [size for size in SHAPES if cluster not in MEASURED or size <= MEASURED[cluster][1]]


def _quick() -> list[BenchInstance]:
    modes: tuple[P2PMode, ...] = ("blocking", "async")
    plan = [
        _single(cluster, BALANCED, (4, 4), modes[number % 2], 0, 2.0)
        for number, cluster in enumerate((*GENERATED, *MEASURED))
    ]
    plan += [
        _single("tree", BALANCED, (2, 4), "async", 0, 2.0),
        _single("tree", "llama-3-70b", (4, 4), "blocking", 0, 2),
    ]
    return [*plan, _limited(_joint("tree", "blocking", 0), 10.0)]


_SEEDS = 5
"""Number of seeds of cluster and search; a measured matrix is equal for all seeds. Chosen."""

_FULL_CLUSTERS, _FULL_S = ("tree", "unif"), 30.0
"""Clusters with more than 128 hosts in the full set, and its time limit in seconds without a target. Chosen."""


def _full() -> list[BenchInstance]:
    return [
        replace(instance, stops_at_goal=True) if instance.target is not None else replace(instance, limit_s=_FULL_S)
        for instance in _reach()
        if instance.seed == 0 and (instance.num_used <= 128 or instance.cluster in _FULL_CLUSTERS)
    ]


def _reach() -> list[BenchInstance]:
    modes: tuple[P2PMode, ...] = ("blocking", "async")
    clusters = (*GENERATED, *MEASURED)
    plan = [
        _single(cluster, BALANCED, shape, p2p, seed)
        for cluster in clusters
        for size in _sizes_of(cluster)
        for shape, p2p, seed in product(SHAPES[size], modes, range(_SEEDS if size <= 128 else 1))
    ]
    for cluster, size, job in product(clusters, (16, 32, 64, 128), JOBS):
        if size in _sizes_of(cluster):
            plan += [_single(cluster, job, SHAPES[size][0], "blocking", seed) for seed in range(_SEEDS)]
    return [*plan, *(_joint(cluster, "blocking", seed) for cluster in clusters for seed in range(_SEEDS))]

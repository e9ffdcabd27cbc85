"""Random problems in integers, small enough to enumerate, shared by the tests of solvers and baselines."""

import itertools
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import numpy as np

from pipette_opt.base.types import FloatArray, IntArray, P2PMode
from pipette_opt.parallel import HostTile, ParallelConfig
from pipette_opt.problem.data import UNUSABLE_TICKS, CandidateData, Paths, ProblemData
from pipette_opt.problem.objective import finish_ticks, objective_ticks, place

SMALL_SHAPES = (
    (1, 1, 1),
    (2, 1, 1),
    (1, 2, 1),
    (3, 1, 1),
    (1, 3, 1),
    (2, 2, 1),
    (4, 1, 1),
    (1, 4, 1),
    (1, 1, 2),
    (2, 1, 2),
)
SMALL_SHAPES += ((1, 2, 2), (1, 1, 3), (5, 1, 1), (1, 5, 1))
"""Grids of at most five hosts."""

SPANNING_SHAPES = ((1, 1, 2), (2, 1, 2), (1, 2, 2), (1, 1, 3), (1, 1, 4))
"""Those whose slots are on several hosts."""

Spans = Literal["tensor", "context", "both"]
SPANS: tuple[Spans, ...] = ("tensor", "context", "both")
"""Which groups of a slot span hosts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Variant:
    """What a random problem looks like."""

    directed: bool = True
    missing_share: float = 0.0
    num_kinds: int = 1
    num_capacities: int = 1
    interleaved_share: float = 0.5
    levels: int = 0
    scale: int = 100
    spans: Spans = "tensor"


def random_problem(
    rng: np.random.Generator,
    shapes: list[tuple[int, int, int]],
    num_nodes: int,
    variant: Variant,
    *,
    max_block: int = 2,
) -> ProblemData:
    """A problem with one candidate per shape, all on the same hosts and links."""
    slowness = rng.random((num_nodes, num_nodes))
    if variant.levels:
        slowness = np.ceil(slowness * variant.levels) / variant.levels
    if not variant.directed:
        slowness = np.maximum(slowness, slowness.T)
    missing = rng.random((num_nodes, num_nodes)) < variant.missing_share
    if not variant.directed:
        missing |= missing.T
    candidates = tuple(random_candidate(rng, shape, slowness, missing, variant, max_block) for shape in shapes)
    return ProblemData(
        candidates=candidates,
        p2p="blocking",
        tick_s=1e-6,
        kind_of_node=rng.integers(variant.num_kinds, size=num_nodes),
        capacity_mib=40 * (1 + rng.integers(variant.num_capacities, size=num_nodes)),
    )


def random_candidate(
    rng: np.random.Generator,
    grid: tuple[int, int, int],
    slowness: FloatArray,
    missing: np.ndarray,
    variant: Variant,
    max_block: int,
) -> CandidateData:
    """One candidate whose transfer times follow the links' slowness."""
    P, D, K = grid
    stages = int(rng.integers(1, max_block + 1)) if K == 1 else 1
    replicas = int(rng.integers(1, max_block + 1)) if K == 1 else 1
    pp, dp = P * stages, D * replicas
    context = {"tensor": 1, "context": K, "both": 2 if K % 2 == 0 else 1}[variant.spans]
    kinds, num_classes = variant.num_kinds, 1 + int(rng.integers(2))
    interleaved = pp > 1 and bool(rng.random() < variant.interleaved_share)
    config = ParallelConfig(
        tensor_model_parallel_size=8 * K // context if K > 1 else max(1, 8 // (stages * replicas)),
        context_parallel_size=context,
        pipeline_model_parallel_size=pp,
        data_parallel_size=dp,
        micro_batch_size=1,
        layers_per_stage=tuple((2 if interleaved else 1) * int(n) for n in rng.integers(1, 4, size=pp)),
        virtual_pipeline_model_parallel_size=2 if interleaved else None,
    )
    forward = rng.integers(1, variant.scale, size=(kinds, pp))
    backward = rng.integers(1, variant.scale, size=(kinds, pp))
    tied = pp > 1 and bool(rng.random() < 0.4)
    overlaps = D * context > 1 and bool(rng.random() < 0.5)
    return CandidateData(
        config=config,
        tile=HostTile(
            stages=stages,
            replicas=replicas,
            nodes_per_slot=K,
            order="tp-cp-ep-dp-pp",
            contiguous=True,
            context_nodes=context,
        ),
        grid=grid,
        num_microbatches=int(rng.integers(1, 9)),
        forward_ticks=forward,
        backward_ticks=backward,
        intra_p2p_ticks=int(rng.integers(0, variant.scale // 10)),
        p2p_ticks=_link_ticks(rng, slowness, missing, variant.scale),
        ring_class=rng.integers(num_classes, size=pp),
        ring_ticks=np.stack([_link_ticks(rng, slowness, missing, 4 * variant.scale) for _ in range(num_classes)]),
        ring_floor_ticks=rng.integers(0, variant.scale, size=pp) if dp * context > 1 else np.zeros(pp),
        tensor_forward_ticks=_link_ticks(rng, slowness, missing, variant.scale // 4) if K > 1 else np.zeros((0, 0)),
        tensor_backward_ticks=_link_ticks(rng, slowness, missing, variant.scale // 4) if K > 1 else np.zeros((0, 0)),
        optimizer_ticks=int(rng.integers(0, variant.scale)),
        embedding_ticks=_embedding(rng, slowness, 4 * variant.scale) if tied and P > 1 else np.zeros((0, 0)),
        embedding_floor_ticks=int(rng.integers(1, variant.scale)) if tied and P == 1 else 0,
        memory_need_mib=rng.integers(1, 41 + 40 * (variant.num_capacities - 1), size=pp),
        ring_level=_ring_level(slowness, missing) if overlaps else np.zeros((0, 0)),
        paths=_random_paths(rng, config, kinds, K, variant.scale, P if overlaps else 0),
    )


LEVELS = 4
"""Levels of overlapped rings."""


def _random_paths(
    rng: np.random.Generator, config: ParallelConfig, kinds: int, K: int, scale: int, rows_with_rings: int
) -> Paths:
    """A few paths, not of a real schedule; what only interleaving or tensor groups over hosts have is zero else."""
    pp = config.pipeline_model_parallel_size
    number = int(rng.integers(1, 7))
    up, down = rng.integers(0, 6, size=(2, number, pp)) * rng.integers(0, 2, size=(2, number, pp))
    if config.num_chunks == 1:
        up[:, -1] = down[:, -1] = 0
    layers = rng.integers(0, 9, size=(2, number, pp)) * (K > 1)
    return Paths(
        stage=rng.integers(pp, size=number),
        work_ticks=rng.integers(0, 5 * scale, size=(number, kinds, pp)),
        forward_layers=layers[0],
        backward_layers=layers[1],
        up=up,
        down=down,
        least_ticks=rng.integers(0, scale, size=number),
        row_ring=rng.integers(0, 4, size=(number, rows_with_rings)),
        ring_ticks=np.cumsum(rng.integers(0, scale, size=(4, LEVELS)) * np.arange(4)[:, None], axis=1),
    )


def _ring_level(slowness: FloatArray, missing: np.ndarray) -> IntArray:
    levels = np.minimum((LEVELS * slowness).astype(np.int64), LEVELS - 1)
    levels[missing] = UNUSABLE_TICKS
    np.fill_diagonal(levels, UNUSABLE_TICKS)
    return levels


def _link_ticks(rng: np.random.Generator, slowness: FloatArray, missing: np.ndarray, scale: int) -> IntArray:
    ticks = np.ceil(slowness * rng.integers(1, scale + 1)).astype(np.int64)
    ticks[missing] = UNUSABLE_TICKS
    np.fill_diagonal(ticks, UNUSABLE_TICKS)
    return ticks


def _embedding(rng: np.random.Generator, slowness: FloatArray, scale: int) -> IntArray:
    """Tied embeddings: symmetric, and known for every pair."""
    return np.ceil(np.maximum(slowness, slowness.T) * rng.integers(1, scale + 1)).astype(np.int64)


def placements(data: ProblemData, candidate: CandidateData) -> Iterator[IntArray]:
    """Every way to put the candidate on distinct allowed hosts, usable links or not."""
    for some in _batches(data, candidate):
        yield from some


BATCH = 4096
"""Placements that are computed at once."""


def _batches(data: ProblemData, candidate: CandidateData) -> Iterator[IntArray]:
    """The same, many at once, shape ``(batch, *grid)``."""
    allowed = data.allowed(candidate)
    row = np.repeat(np.arange(candidate.grid[0]), candidate.grid[1] * candidate.grid[2])
    every = itertools.permutations(range(data.num_nodes), candidate.num_cells)
    while some := list(itertools.islice(every, BATCH)):
        nodes = np.array(some)
        yield nodes[allowed[row, nodes].all(axis=1)].reshape(-1, *candidate.grid)


def objectives(data: ProblemData, candidate: CandidateData, nodes: IntArray) -> IntArray:
    """:func:`objective_ticks` of many placements, shape ``(batch, *grid)``: all their columns are placed at once."""
    if candidate.ring_level.size:
        return np.array([objective_ticks(data, candidate, some) for some in nodes])
    number, columns = len(nodes), candidate.grid[1]
    placed = place(data, candidate, np.concatenate(nodes, axis=1))
    hosts = nodes[:, np.arange(candidate.num_stages) // candidate.tile.stages]
    ring = np.tile(candidate.ring_floor_ticks, (number, 1))
    if candidate.ring_length > 1:
        rings = hosts.reshape(*hosts.shape[:2], candidate.ring_length, -1)
        hops = candidate.ring_ticks[candidate.ring_class[:, None, None], rings, np.roll(rings, -1, axis=2)]
        ring = np.maximum(ring, hops.max(axis=(2, 3)))
    embedding: IntArray | int = candidate.embedding_floor_ticks
    if candidate.embedding_ticks.size:
        embedding = candidate.embedding_ticks[hosts[:, 0], hosts[:, -1]].max(axis=(1, 2))
    done = finish_ticks(candidate.paths, placed).reshape(-1, number, columns).max(axis=2).T + ring
    finish = np.maximum(done.max(axis=1), np.maximum(done[:, 0], done[:, -1]) + embedding)
    times = (placed.slot_hop, placed.send_forward, placed.send_backward)
    slowest = [part.reshape(-1, number, columns).max(axis=(0, 2), initial=0) for part in times]
    usable = np.maximum.reduce([*slowest, ring.max(axis=1)]) < UNUSABLE_TICKS
    return np.where(usable, finish + candidate.optimizer_ticks, UNUSABLE_TICKS)


enumerated: Counter[str] = Counter()
"""Instances (one candidate each) that ``best_by_enumeration`` has solved so far, and their placements."""


def best_by_enumeration(data: ProblemData, candidate: CandidateData) -> int:
    """The optimum of one candidate; ``UNUSABLE_TICKS`` if it has no placement."""
    best, number = UNUSABLE_TICKS, 0
    for some in _batches(data, candidate):
        if not len(some):
            continue
        values = objectives(data, candidate, some)
        first, last = int(values.argmin()), int(values.argmax())
        for one in (first, last):
            assert objective_ticks(data, candidate, some[one]) == values[one], "many at once cost what each does alone"
        best, number = min(best, int(values[first])), number + len(some)
    enumerated.update(instances=1, placements=number)
    return best


def several_shapes() -> tuple[ProblemData, int]:
    """Three candidates on five hosts, and their optimum."""
    data = random_problem(np.random.default_rng(4), [(2, 2, 1), (4, 1, 1), (1, 4, 1)], 5, Variant(missing_share=0.05))
    return data, min(best_by_enumeration(data, one) for one in data.candidates)


def one_candidate_cluster(
    rng: np.random.Generator,
    kind: str,
    grid: tuple[int, int, int],
    *,
    num_nodes: int | None = None,
    p2p: P2PMode = "blocking",
    num_microbatches: int = 16,
    ring_share: float = 1.0,
    compute: int = 0,
) -> ProblemData:
    """
    A named kind of cluster (``unif`` or ``tree``) and one candidate whose path and ring terms weigh about the same.

    Parameters
    ----------
    ring_share
        Ring time of a link over the time its transfers take in all periods.
    """
    rates = cluster_bandwidth(rng, kind, num_nodes or grid[0] * grid[1] * grid[2])
    np.fill_diagonal(rates, np.nan)
    return candidate_over(
        rates, grid, p2p=p2p, num_microbatches=num_microbatches, ring_share=ring_share, compute=compute
    )


def pipeline_paths(forward: IntArray, backward: IntArray, m: int, p2p: P2PMode = "blocking") -> Paths:
    """
    Paths of a 1F1B pipeline whose cells are single hosts; each stage in turn has all micro-batches.

    Its other micro-batches wait for both neighbours with blocking sends, and pass there and back on the link to the
    next stage with asynchronous ones. One path ends with the first stage, one with the stage itself.
    """
    kinds, pp = forward.shape
    busy, up, down = np.eye(pp, dtype=np.int64), np.zeros((2, pp, pp), np.int64), np.zeros((2, pp, pp), np.int64)
    up[:, :, : pp - 1] = 1
    down[0, :, : pp - 1] = 1
    down[1, :, : pp - 1] = np.arange(pp - 1)[None, :] >= np.arange(pp)[:, None]
    for stage in range(pp):
        if p2p == "blocking":
            down[:, stage, stage - 1 : stage] += m - 1
            up[:, stage, stage : pp - 1] += (m - 1) * busy[stage, stage : pp - 1]
        elif stage + 1 < pp:
            up[:, stage, stage] += (m - 1) // 2
            down[:, stage, stage] += m - 1 - (m - 1) // 2
    reached = np.tri(pp, dtype=np.int64).T  # stages from this one on
    passes = np.stack([np.ones((pp, pp), np.int64), reached]) + (m - 1) * busy
    first = np.ones((2, pp, pp), np.int64) + (m - 1) * busy
    work = first[:, :, None, :] * forward + passes[:, :, None, :] * backward
    none = np.zeros((2 * pp, pp), np.int64)
    return Paths(
        stage=np.concatenate([np.zeros(pp, np.int64), np.arange(pp)]),
        work_ticks=work.reshape(2 * pp, kinds, pp),
        forward_layers=none,
        backward_layers=none,
        up=up.reshape(2 * pp, pp),
        down=down.reshape(2 * pp, pp),
    )


def candidate_over(
    rates: FloatArray,
    grid: tuple[int, int, int],
    *,
    p2p: P2PMode = "blocking",
    num_microbatches: int = 16,
    ring_share: float = 1.0,
    compute: int = 0,
) -> ProblemData:
    """One candidate over links of these GB/s (NaN on the diagonal), as :func:`one_candidate_cluster`."""
    n, (P, D, _) = len(rates), grid
    ticks = np.round(1e6 / np.nan_to_num(rates, nan=1.0)).astype(np.int64)
    weight = ring_share * 2 * (num_microbatches - 1 + P - 1)
    ring = np.round(ticks * weight).astype(np.int64)
    for matrix in (ticks, ring):
        np.fill_diagonal(matrix, UNUSABLE_TICKS)
    work = np.full((1, P), compute)
    zeros = np.zeros((0, 0))
    candidate = CandidateData(
        config=ParallelConfig(
            tensor_model_parallel_size=8,
            pipeline_model_parallel_size=P,
            data_parallel_size=D,
            micro_batch_size=1,
            layers_per_stage=(1,) * P,
        ),
        tile=HostTile(stages=1, replicas=1, nodes_per_slot=1, order="tp-cp-ep-dp-pp", contiguous=True),
        grid=grid,
        num_microbatches=num_microbatches,
        forward_ticks=work,
        backward_ticks=2 * work,
        intra_p2p_ticks=0,
        p2p_ticks=ticks,
        ring_class=np.zeros(P),
        ring_ticks=ring[None],
        ring_floor_ticks=np.zeros(P),
        tensor_forward_ticks=zeros,
        tensor_backward_ticks=zeros,
        optimizer_ticks=0,
        memory_need_mib=np.ones(P),
        paths=pipeline_paths(work, 2 * work, num_microbatches, p2p),
    )
    return ProblemData(
        candidates=(candidate,), p2p=p2p, tick_s=1e-6, kind_of_node=np.zeros(n), capacity_mib=np.full(n, 2)
    )


def cluster_bandwidth(rng: np.random.Generator, kind: str, num_nodes: int) -> FloatArray:
    """GB/s between hosts: ``unif`` without structure, ``tree`` with four racks and a few slow hosts; symmetric."""
    noise = np.triu(rng.random((num_nodes, num_nodes)), 1)
    noise = noise + noise.T
    if kind == "unif":
        return 25.0 * (1 - 0.4 * noise)
    rack = np.arange(num_nodes) * 4 // num_nodes
    rate = np.where(rack[:, None] == rack[None, :], 24.0, 20.0) * (1 - 0.04 * noise)
    slow = rng.permutation(num_nodes)[: max(1, num_nodes // 8)]
    rate[slow] *= 0.6
    rate[:, slow] *= 0.6
    order = rng.permutation(num_nodes)
    return rate[np.ix_(order, order)]


class Incumbent:
    """Keeps the best placement that the search hands over."""

    def __init__(self, data: ProblemData, candidate: CandidateData, ceiling: int) -> None:
        self.data, self.candidate, self.ceiling = data, candidate, ceiling
        self.best = UNUSABLE_TICKS

    def take(self, nodes: IntArray) -> int:
        """The largest objective still of interest, after one more placement."""
        assert len(np.unique(nodes)) == nodes.size
        value = objective_ticks(self.data, self.candidate, nodes.reshape(self.candidate.grid))
        assert value < UNUSABLE_TICKS
        self.best = min(self.best, value)
        return min(self.ceiling, self.best - 1)

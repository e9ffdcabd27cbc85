"""
Local search over unequal model chunks: chunk layouts near a known plan that simulate faster.

With equal chunks, the first stage (with the embedding) and the last one (with the output head) have as many layers as
any other stage. The search starts from the plan's own stages and from chunks as equal as possible. It moves single
layers from chunk to chunk as long as the placed plan becomes faster. An approximate time rules out most moves: the
layer's mean time is subtracted from one chunk and added to another. The layouts found are searched beside the usual
partitions, with all degrees and placements; other layouts are not ruled out.
"""

from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import permutations
from operator import attrgetter
from typing import Any

import numpy as np

from pipette_opt.base.risk import IGNORED_RISK
from pipette_opt.base.types import FloatArray, IntArray
from pipette_opt.candidates import SearchSpace
from pipette_opt.candidates.legality import broken_rules
from pipette_opt.costs.placed import placed_batch
from pipette_opt.memory.filter import predicted_memory, usable_bytes
from pipette_opt.memory.predictor import MemoryPredictor
from pipette_opt.parallel import ParallelConfig, microbatches_of, tile_placement
from pipette_opt.parallel.layout import layout_of
from pipette_opt.plans.clock import Clock
from pipette_opt.simulate.many import estimate_many, simulate_batches
from pipette_opt.solver.pruning import FirstPlan
from pipette_opt.specs import Instance

LAYOUTS_AT_ONCE = 64
"""Number of layouts simulated together. Chosen."""

WORTHWHILE = 1e-4
"""Least relative gain for which a layer is moved. Chosen."""

ROUGHLY = 1e-3
"""Assumed relative error of a layout's approximate time, compared with the simulator. Chosen."""


def near_layouts(
    instance: Instance,
    space: SearchSpace,
    first: FirstPlan,
    predictor: MemoryPredictor,
    max_oom_risk: float,
    clock: Clock,
) -> list[FirstPlan]:
    """
    Return plans with unequal chunks that are faster than ``first``, fastest first.

    The hosts and degrees are those of ``first``. At most one plan is returned for each number of chunks that the space
    allows.
    """
    fits = _room(instance, first, predictor, max_oom_risk)
    found = []
    own = first.config.num_chunks
    for chunks in sorted(_chunk_counts(space), key=lambda count: (count != own, count)):
        plans = []
        for start in _starts(instance, first.config, chunks):
            if not clock.is_over:
                plans.append(_improve(instance, replace(first, config=start), fits, clock))
        able = [plan for plan in plans if plan is not None and plan.config.pipeline_model_parallel_layout is not None]
        found += sorted(able, key=attrgetter("seconds"))[:1]
    faster = [plan for plan in found if plan.seconds < first.seconds * (1 - WORTHWHILE)]
    return sorted(faster, key=attrgetter("seconds"))


def _chunk_counts(space: SearchSpace) -> tuple[int, ...]:
    if space.virtual_pipeline is not None:
        return tuple(count for count in space.virtual_pipeline if count > 1)
    return tuple(range(2, space.max_virtual_pipeline + 1))


def _starts(instance: Instance, config: ParallelConfig, chunks: int) -> list[ParallelConfig]:
    """Return legal layouts to start from: the plan's stages in ``chunks`` chunks each, and chunks nearly equal."""
    pp, layers = config.pipeline_model_parallel_size, sum(config.layers_per_stage)
    if pp == 1:
        return []
    given: IntArray = np.array(config.layers_per_chunk, dtype=np.int64)
    if chunks != config.num_chunks:
        given = (np.array(config.layers_per_stage) + np.arange(chunks)[::-1, None]) // chunks
    even = ((layers + np.arange(pp * chunks)[::-1]) // (pp * chunks)).reshape(chunks, pp)
    starts = []
    for held in (given, even):
        start = replace(
            config,
            virtual_pipeline_model_parallel_size=chunks,
            layers_per_stage=tuple(held.sum(axis=0).tolist()),
            pipeline_model_parallel_layout=layout_of(held.tolist()),
        )
        if not broken_rules(instance.model, instance.training, start):
            starts.append(start)
    return list(dict.fromkeys(starts))


def _room(
    instance: Instance, first: FirstPlan, predictor: MemoryPredictor, max_oom_risk: float
) -> Callable[[ParallelConfig], bool]:
    """Return a predicate: whether a configuration fits into the memory of the hosts of plan ``first``."""
    rows = np.arange(first.config.pipeline_model_parallel_size) // first.tile.stages
    nodes = first.nodes.reshape(len(first.nodes), -1)
    capacity = usable_bytes(instance.cluster, predictor)[nodes].min(axis=1)[rows]

    def fits(config: ParallelConfig) -> bool:
        if max_oom_risk >= IGNORED_RISK:
            return True
        (found,) = predicted_memory(instance, predictor, [config], max_oom_risk)
        return bool((found.upper_bytes <= capacity).all())

    return fits


def _improve(
    instance: Instance, plan: FirstPlan, fits: Callable[[ParallelConfig], bool], clock: Clock
) -> FirstPlan | None:
    """Return the plan after moving single layers while it gets faster and fits; ``None`` if no layout fits."""
    held: IntArray = np.array(plan.config.layers_per_chunk, dtype=np.int64)
    (seconds,) = _times_s(instance, plan, [plan.config])
    is_known, better = fits(plan.config), True
    while better:
        better = False
        limit_s = seconds * (1 - WORTHWHILE) if is_known else np.inf
        for moves in _promising(instance, plan, held, limit_s):
            if clock.is_over:
                break
            tried = (_moved(held, source, target) for source, target in moves)
            after = [layers for layers in tried if layers is not None]
            configs = [with_layers(plan.config, layers) for layers in after]
            times = _times_s(instance, plan, configs) if configs else np.zeros(0)
            order = np.argsort(times, kind="stable").tolist()
            chosen = next((index for index in order if times[index] < limit_s and fits(configs[index])), None)
            if chosen is not None:
                held, seconds, is_known, better = after[chosen], float(times[chosen]), True, True
                break
            if not is_known:
                break
    return replace(plan, config=with_layers(plan.config, held), seconds=float(seconds)) if is_known else None


def _promising(instance: Instance, plan: FirstPlan, held: IntArray, limit_s: float) -> Iterator[list[tuple[int, int]]]:
    """
    Yield groups of moves (source chunk, target chunk) of a layer whose approximate time is below ``limit_s``, best
    first.

    An additional layer never makes a plan faster. So if removing a layer from a chunk does not help, no move from it
    does.
    """
    size, limit_s = held.size, limit_s * (1 + ROUGHLY)
    without = _roughly_s(instance, plan, held, np.arange(size), None)
    moves = np.array([move for move in permutations(range(size), 2) if without[move[0]] < limit_s], dtype=np.int64)
    if len(moves):
        times = _roughly_s(instance, plan, held, moves[:, 0], moves[:, 1])
        order = [index for index in np.argsort(times, kind="stable").tolist() if times[index] < limit_s]
        for begin in range(0, len(order), LAYOUTS_AT_ONCE):
            group = moves[order[begin : begin + LAYOUTS_AT_ONCE]]
            yield [(int(source), int(target)) for source, target in group]


def _roughly_s(
    instance: Instance, plan: FirstPlan, held: IntArray, sources: IntArray, targets: IntArray | None
) -> FloatArray:
    """
    Return the approximate seconds of the plan after each move of a layer from one chunk to another.

    The removed layer counts as the mean of its chunk. The added layer counts as the mean of its stage's fastest chunk
    without embedding and head, or of the fastest of all chunks.

    Parameters
    ----------
    held
        Layers of each chunk of each stage, shape ``(num_chunks, pp)``.
    sources, targets
        Chunks as ``chunk * pp + stage``, one entry for each move; with ``targets`` of ``None``, a layer is only
        removed.
    """
    config, rows, pp = with_layers(plan.config, held), np.arange(len(sources)), held.shape[1]
    batch = placed_batch(instance, [(config, tile_placement(config, plan.tile, plan.nodes))])
    if batch.missing:
        return np.full(len(rows), np.inf)
    many, counts = batch.some(np.zeros(len(rows), dtype=np.int64)), held.reshape(-1, 1)
    changed: dict[str, Any] = {"reduction_s": many.reduction_s.copy()}
    changed["reduction_s"][rows, sources % pp] *= 1 - 1 / held.sum(axis=0)[sources % pp]
    for name in ("forward_s", "backward_s"):
        times = getattr(many, name)
        after = times.reshape(len(rows), held.size, -1).copy()
        each = np.where(counts > 0, after[0] / np.maximum(counts, 1), np.inf)
        after[rows, sources] -= np.where(counts > 0, each, 0.0)[sources]
        if targets is not None:
            inner = each.reshape(*held.shape, -1).copy()
            inner[0, 0] = inner[-1, -1] = np.inf
            of_stage = inner.min(axis=0)
            after[rows, targets] += np.where(np.isfinite(of_stage), of_stage, each.min(axis=0))[targets % pp]
        changed[name] = after.reshape(times.shape)
    microbatches = np.full(len(rows), microbatches_of(instance.training, config))
    return simulate_batches([(rows, replace(many, **changed))], microbatches, instance.p2p)


def with_layers(config: ParallelConfig, held: IntArray) -> ParallelConfig:
    """Return the configuration with the given layers in each chunk; ``held`` has shape ``(num_chunks, pp)``."""
    return replace(
        config,
        layers_per_stage=tuple(held.sum(axis=0).tolist()),
        pipeline_model_parallel_layout=layout_of(held.tolist()),
    )


def _moved(held: IntArray, source: int, target: int) -> IntArray | None:
    """Return the layers after moving one from chunk ``source`` to ``target``; ``None`` if a stage would have none."""
    after = held.copy()
    after.flat[source] -= 1
    after.flat[target] += 1
    return after if after.flat[source] >= 0 and (after.sum(axis=0) > 0).all() else None


def _times_s(instance: Instance, plan: FirstPlan, configs: list[ParallelConfig]) -> FloatArray:
    return estimate_many(instance, [(config, tile_placement(config, plan.tile, plan.nodes)) for config in configs])

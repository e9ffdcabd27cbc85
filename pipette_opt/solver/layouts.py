"""
Model chunks of unequal size: layouts near a plan that is known, by the simulator.

Equal chunks leave the stage with the output head, and the first one with the embedding, as many layers in each chunk as
any other. From the plan's own stages, and from chunks as equal as can be, layers are moved from one chunk to another,
one at a time, as long as that makes the plan faster where it is placed. Most moves are sorted out by a rough time: the
simulator's schedule with the layer's mean time taken from one chunk and added to the other. What comes of it is
searched beside the usual splits, with all degrees and placements; other layouts are not ruled out.
"""

import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import permutations
from typing import Any

import numpy as np

from pipette_opt.base.types import FloatArray, IntArray
from pipette_opt.candidates import SearchSpace
from pipette_opt.candidates.legality import broken_rules
from pipette_opt.costs.placed import placed_batch
from pipette_opt.memory.filter import predicted_memory, usable_bytes
from pipette_opt.memory.predictor import IGNORED_RISK, MemoryPredictor
from pipette_opt.parallel import ParallelConfig, block_placement, microbatches_of
from pipette_opt.parallel.layout import layout_of
from pipette_opt.simulate.many import estimate_many, simulate_batches
from pipette_opt.solver.pruning import FirstPlan
from pipette_opt.specs import Instance

LAYOUTS_AT_ONCE = 64
"""Number of layouts that are simulated together. Chosen."""

WORTHWHILE = 1e-4
"""Relative gain below which a moved layer is not worth a layout. Chosen."""

ROUGHLY = 1e-3
"""Relative error of the rough time of a layout, against the simulator, by which moves are sorted out. Chosen."""


def near_layouts(
    instance: Instance,
    space: SearchSpace,
    first: FirstPlan,
    predictor: MemoryPredictor,
    max_oom_risk: float,
    seconds: float,
    stop: threading.Event,
) -> list[FirstPlan]:
    """
    Plans with unequal chunks that are faster than a plan, the fastest first: at most one for each number of chunks.

    On the same hosts and with the same degrees, with any number of chunks that the space allows.

    Parameters
    ----------
    seconds
        That this may take.
    """
    ends = time.perf_counter() + seconds
    fits = _room(instance, first, predictor, max_oom_risk)
    found = []
    own = first.config.num_chunks
    for chunks in sorted(_chunk_counts(space), key=lambda one: (one != own, one)):
        plans = []
        for start in _starts(instance, first.config, chunks):
            if time.perf_counter() < ends and not stop.is_set():
                plans.append(_climb(instance, replace(first, config=start), fits, ends, stop))
        able = [one for one in plans if one is not None and one.config.pipeline_model_parallel_layout is not None]
        found += sorted(able, key=lambda one: one.seconds)[:1]
    faster = [one for one in found if one.seconds < first.seconds * (1 - WORTHWHILE)]
    return sorted(faster, key=lambda one: one.seconds)


def _chunk_counts(space: SearchSpace) -> tuple[int, ...]:
    if space.virtual_pipeline is not None:
        return tuple(one for one in space.virtual_pipeline if one > 1)
    return tuple(range(2, space.max_virtual_pipeline + 1))


def _starts(instance: Instance, config: ParallelConfig, chunks: int) -> list[ParallelConfig]:
    """The legal ones of two: its stages with their layers in so many chunks, and all chunks as equal as can be."""
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
    """Whether a configuration has room on the hosts of a plan."""
    rows = np.arange(first.config.pipeline_model_parallel_size) // first.block.stages
    nodes = first.nodes.reshape(len(first.nodes), -1)
    capacity = usable_bytes(instance.cluster, predictor)[nodes].min(axis=1)[rows]

    def fits(config: ParallelConfig) -> bool:
        if max_oom_risk >= IGNORED_RISK:
            return True
        (found,) = predicted_memory(instance, predictor, [config], max_oom_risk)
        return bool((found.upper_bytes <= capacity).all())

    return fits


def _climb(
    instance: Instance, plan: FirstPlan, fits: Callable[[ParallelConfig], bool], ends: float, stop: threading.Event
) -> FirstPlan | None:
    """The plan after moves of single layers, each of which made it faster and has room; ``None`` if it has none."""
    held: IntArray = np.array(plan.config.layers_per_chunk, dtype=np.int64)
    (seconds,) = _times_s(instance, plan, [plan.config])
    is_known, better = fits(plan.config), True
    while better:
        better = False
        limit_s = seconds * (1 - WORTHWHILE) if is_known else np.inf
        for some in _promising(instance, plan, held, limit_s):
            if time.perf_counter() >= ends or stop.is_set():
                break
            after = [one for source, target in some if (one := _moved(held, source, target)) is not None]
            configs = [with_layers(plan.config, one) for one in after]
            times = _times_s(instance, plan, configs) if configs else np.zeros(0)
            order = np.argsort(times, kind="stable").tolist()
            chosen = next((one for one in order if times[one] < limit_s and fits(configs[one])), None)
            if chosen is not None:
                held, seconds, is_known, better = after[chosen], float(times[chosen]), True, True
                break
    return replace(plan, config=with_layers(plan.config, held), seconds=float(seconds)) if is_known else None


def _promising(instance: Instance, plan: FirstPlan, held: IntArray, limit_s: float) -> Iterator[list[tuple[int, int]]]:
    """
    Moves of a layer from one chunk to another that may take less than that, the most promising first, in groups.

    A layer more makes nothing faster: where taking one from a chunk does not help, no move from it does.
    """
    size, limit_s = held.size, limit_s * (1 + ROUGHLY)
    without = _roughly_s(instance, plan, held, np.arange(size), None)
    moves = np.array([move for move in permutations(range(size), 2) if without[move[0]] < limit_s], dtype=np.int64)
    if len(moves):
        times = _roughly_s(instance, plan, held, moves[:, 0], moves[:, 1])
        order = [index for index in np.argsort(times, kind="stable").tolist() if times[index] < limit_s]
        for begin in range(0, len(order), LAYOUTS_AT_ONCE):
            yield [(int(one), int(two)) for one, two in moves[order[begin : begin + LAYOUTS_AT_ONCE]]]


def _roughly_s(
    instance: Instance, plan: FirstPlan, held: IntArray, sources: IntArray, targets: IntArray | None
) -> FloatArray:
    """
    About what the plan takes, at least, with a layer less in one chunk, and one more in another: seconds.

    A layer counts as the mean of the chunk that it is taken from, and in the other as that of the fastest chunk of its
    stage without embedding and head, or of all.

    Parameters
    ----------
    held
        Layers of each chunk of each stage, shape ``(num_chunks, pp)``.
    sources, targets
        Chunks by ``chunk * pp + stage``, one of each for a move.
    """
    config, rows, pp = with_layers(plan.config, held), np.arange(len(sources)), held.shape[1]
    batch = placed_batch(instance, [(config, block_placement(config, plan.block, plan.nodes))])
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
    """The configuration with so many layers in each chunk of each stage, shape ``(num_chunks, pp)``."""
    return replace(
        config,
        layers_per_stage=tuple(held.sum(axis=0).tolist()),
        pipeline_model_parallel_layout=layout_of(held.tolist()),
    )


def _moved(held: IntArray, source: int, target: int) -> IntArray | None:
    """A layer less in one chunk, one more in another; ``None`` if that leaves a stage without layers."""
    after = held.copy()
    after.flat[source] -= 1
    after.flat[target] += 1
    return after if after.flat[source] >= 0 and (after.sum(axis=0) > 0).all() else None


def _times_s(instance: Instance, plan: FirstPlan, configs: list[ParallelConfig]) -> FloatArray:
    return estimate_many(instance, [(one, block_placement(one, plan.block, plan.nodes)) for one in configs])

"""
Model chunks of unequal size: layouts near a plan that is known, by the judge.

Equal chunks leave the stage with the output head, and the first one with the embedding, as many layers in each chunk as
any other. From the plan's own stages, and from chunks as equal as can be, layers are moved from one chunk to another,
one at a time, as long as that makes the plan faster where it is placed. What comes of it is searched beside the usual
splits, with all degrees and placements; other layouts are not ruled out.
"""

import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import permutations

import numpy as np

from pipette_opt.base.types import FloatArray, IntArray
from pipette_opt.candidates import SearchSpace
from pipette_opt.candidates.legality import broken_rules
from pipette_opt.judge.many import estimate_many
from pipette_opt.memory.filter import predicted_memory, usable_bytes
from pipette_opt.memory.predictor import IGNORED_RISK, MemoryPredictor
from pipette_opt.parallel import ParallelConfig, block_placement
from pipette_opt.parallel.layout import layout_of
from pipette_opt.solver.pruning import FirstPlan
from pipette_opt.specs import Instance

LAYOUTS_AT_ONCE = 64
"""Number of layouts that are judged together. Chosen."""

WORTHWHILE = 1e-4
"""Relative gain below which a moved layer is not worth a layout. Chosen."""


def near_layouts(
    instance: Instance,
    space: SearchSpace,
    first: FirstPlan,
    predictor: MemoryPredictor,
    max_oom_risk: float,
    seconds: float,
    stop: threading.Event,
    seed: int = 0,
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
                plans.append(_climb(instance, replace(first, config=start), fits, ends, stop, seed))
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
    instance: Instance,
    plan: FirstPlan,
    fits: Callable[[ParallelConfig], bool],
    ends: float,
    stop: threading.Event,
    seed: int,
) -> FirstPlan | None:
    """The plan after moves of single layers, each of which made it faster and has room; ``None`` if it has none."""
    rng = np.random.default_rng(seed)
    held: IntArray = np.array(plan.config.layers_per_chunk, dtype=np.int64)
    (seconds,) = _times_s(instance, plan, [plan.config])
    is_known = fits(plan.config)
    moves, since = list(permutations(range(held.size), 2)), 0
    while since < len(moves):
        since = 0
        for some in _in_groups(rng.permutation(len(moves))):
            if time.perf_counter() >= ends or stop.is_set():
                since = len(moves)
                break
            after = [one for index in some if (one := _moved(held, *moves[index])) is not None]
            configs = [with_layers(plan.config, one) for one in after]
            times = _times_s(instance, plan, configs) if configs else np.zeros(0)
            order = np.argsort(times, kind="stable").tolist()
            limit_s = seconds * (1 - WORTHWHILE) if is_known else np.inf
            better = next((one for one in order if times[one] < limit_s and fits(configs[one])), None)
            since += len(some)
            if better is not None:
                held, seconds, is_known, since = after[better], float(times[better]), True, 0
    return replace(plan, config=with_layers(plan.config, held), seconds=float(seconds)) if is_known else None


def with_layers(config: ParallelConfig, held: IntArray) -> ParallelConfig:
    """The configuration with so many layers in each chunk of each stage, shape ``(num_chunks, pp)``."""
    return replace(
        config,
        layers_per_stage=tuple(held.sum(axis=0).tolist()),
        pipeline_model_parallel_layout=layout_of(held.tolist()),
    )


def _in_groups(order: IntArray) -> Iterator[list[int]]:
    for begin in range(0, len(order), LAYOUTS_AT_ONCE):
        yield order[begin : begin + LAYOUTS_AT_ONCE].tolist()


def _moved(held: IntArray, source: int, target: int) -> IntArray | None:
    """A layer less in one chunk, one more in another; ``None`` if that leaves a stage without layers."""
    after = held.copy()
    after.flat[source] -= 1
    after.flat[target] += 1
    return after if after.flat[source] >= 0 and (after.sum(axis=0) > 0).all() else None


def _times_s(instance: Instance, plan: FirstPlan, configs: list[ParallelConfig]) -> FloatArray:
    return estimate_many(instance, [(one, block_placement(one, plan.block, plan.nodes)) for one in configs])

"""
Which stages hold the first layers of a model with experts that have none.

A stage's time is linear in its layers only as long as it is known how many of them are of which kind. The first ``D``
layers fill the first stages in order: some stages hold nothing else, one holds the last of them and perhaps layers with
experts, all others hold layers with experts alone. Each way to fill them is a family of its own, in which the stages of
the first sort hold a fixed number of layers and the next one at least its own. There are ``2^(D - 1)`` ways where there
are stages enough; public models have one to three such layers.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import combinations, pairwise

import numpy as np

from pipette_opt.parallel import ParallelConfig
from pipette_opt.specs import ModelSpec


def dense_layers(model: ModelSpec) -> int:
    """First layers that differ from the others; 0 where all layers are alike."""
    return 0 if model.num_experts is None else model.num_dense_layers


def least_splits(model: ModelSpec, config: ParallelConfig) -> list[ParallelConfig]:
    """
    The configuration with the fewest layers on each stage, once for each way in which stages hold the first layers.

    A unit is a layer in each chunk of a stage. Where the first chunks of all stages have no room for all first layers,
    every split is a way of its own. Stages beside those have one unit.
    """
    pp, chunks, dense = config.pipeline_model_parallel_size, config.num_chunks, dense_layers(model)
    units = model.num_layers // chunks
    if not dense:
        ways: Iterator[tuple[int, ...]] = iter([()])
    elif dense > units:
        ways = _sums(units, pp)
    else:
        ways = (way for parts in range(1, min(dense, pp) + 1) for way in _sums(dense, parts))
    found = []
    for way in ways:
        held = (*way, *(1,) * (pp - len(way)))
        if sum(held) <= units:
            found.append(beyond(replace(config, layers_per_stage=(chunks,) * pp), held))
    return found


def num_closed(model: ModelSpec, config: ParallelConfig) -> int:
    """Stages, the first ones, that hold no more than their layers of :func:`least_splits`."""
    units = np.array(config.layers_per_stage) // config.num_chunks
    return int((units.cumsum() < dense_layers(model)).sum())


def grown(model: ModelSpec, config: ParallelConfig) -> ParallelConfig:
    """
    One of :func:`least_splits` with a unit more on each stage that may have more.

    Where none may, on all of them: then the times of a unit play no role.
    """
    closed, pp = num_closed(model, config), config.pipeline_model_parallel_size
    return beyond(config, [1 + (stage >= closed or closed == pp) for stage in range(pp)])


def beyond(least: ParallelConfig, units: Sequence[int]) -> ParallelConfig:
    """The configuration with so many units on each stage, of which the first one is all that ``least`` has there."""
    chunks = least.num_chunks
    held = (own + chunks * (int(one) - 1) for own, one in zip(least.layers_per_stage, units, strict=True))
    return replace(least, layers_per_stage=tuple(held))


def _sums(total: int, parts: int) -> Iterator[tuple[int, ...]]:
    """Every way to write a number as a sum of so many positive numbers, in order."""
    for cuts in combinations(range(1, total), parts - 1):
        ends = (0, *cuts, total)
        yield tuple(after - before for before, after in pairwise(ends))

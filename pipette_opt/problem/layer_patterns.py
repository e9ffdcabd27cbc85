"""
Layer partitions of models with several types of layers, as families with linear stage times.

Layers follow a repeated pattern, possibly after ``D`` leading layers outside the pattern (dense layers of an MoE
model). The leading layers fill the first stages in order. Some stages hold only leading layers. One stage holds the
last of them and perhaps layers of the pattern, and all later stages hold only layers of the pattern. Each way to fill
the stages is a family of its own. Stages of the first sort hold a fixed number of layers, the next stage at least its
leading layers. With enough stages, ``2^(D - 1)`` ways exist; public models have one to three leading layers.

``n`` consecutive layers of a pattern take ``n`` times the mean of the period, up to a slack. So a unit (layer in each
chunk) takes the mean, and the fixed time of a stage is reduced by the slack. This gives a lower bound for every
partition. If all layers of the pattern are alike, the slack is zero and the bound exact.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import combinations, pairwise

import numpy as np

from pipette_opt.base.types import FloatArray
from pipette_opt.layers.kinds import count_layers, layers_before, pattern_of
from pipette_opt.parallel import ParallelConfig
from pipette_opt.specs import LayerKind, ModelSpec


def least_splits(model: ModelSpec, config: ParallelConfig) -> list[ParallelConfig]:
    """
    Return configurations with the fewest layers on each stage, one for each way to place the leading layers.

    A unit is one layer in each chunk of a stage. If the first chunks of all stages cannot hold all leading layers,
    every partition is a way of its own. Stages without leading layers have one unit.
    """
    pp, chunks, leading = config.pipeline_model_parallel_size, config.num_chunks, pattern_of(model.layers).leading
    units = model.num_layers // chunks
    if not leading:
        ways: Iterator[tuple[int, ...]] = iter([()])
    elif leading > units:
        ways = _sums(units, pp)
    else:
        ways = (way for parts in range(1, min(leading, pp) + 1) for way in _sums(leading, parts))
    found = []
    for way in ways:
        held = (*way, *(1,) * (pp - len(way)))
        if sum(held) <= units:
            found.append(beyond(replace(config, layers_per_stage=(chunks,) * pp), held))
    return found


def num_closed(model: ModelSpec, config: ParallelConfig) -> int:
    """Return the number of first stages that hold only leading layers and cannot get further ones."""
    units = np.array(config.layers_per_stage) // config.num_chunks
    return int((units.cumsum() < pattern_of(model.layers).leading).sum())


def grown(model: ModelSpec, config: ParallelConfig) -> ParallelConfig:
    """
    Return the configuration with one more period of layers on each stage that can hold more.

    ``config`` is a configuration of :func:`least_splits`. If no stage can hold more, all stages grow; the time of a
    unit (layer in each chunk) then does not matter.
    """
    closed, pp = num_closed(model, config), config.pipeline_model_parallel_size
    period = pattern_of(model.layers).period
    return beyond(config, [1 + period * (stage >= closed or closed == pp) for stage in range(pp)])


def beyond(least: ParallelConfig, units: Sequence[int]) -> ParallelConfig:
    """Return the configuration with the given units on each stage; the layers of ``least`` are the first unit."""
    chunks = least.num_chunks
    held = (own + chunks * (int(count) - 1) for own, count in zip(least.layers_per_stage, units, strict=True))
    return replace(least, layers_per_stage=tuple(held))


def probes(model: ModelSpec, config: ParallelConfig) -> dict[LayerKind, tuple[ParallelConfig, ParallelConfig]]:
    """
    Return two configurations for each layer type of the pattern; the second has one more such layer on its first stage.

    The first stage of both has a layer of the type. The configurations have no interleaving.
    """
    pp, (leading, period) = config.pipeline_model_parallel_size, pattern_of(model.layers)
    plain = replace(config, virtual_pipeline_model_parallel_size=None, layers_per_stage=(1,) * pp)
    before = layers_before(model.layers, -(-(leading + 2 * period + 1) // model.num_layers) * model.num_layers)
    found = {}
    for kind, counts in before.items():
        if counts[leading + period] == counts[leading]:
            continue
        place = int(np.flatnonzero((counts[:-1] < counts[1:]) & (counts[:-1] > counts[leading])).min())
        held = [replace(plain, layers_per_stage=(place + more, *plain.layers_per_stage[1:])) for more in (0, 1)]
        found[kind] = held[0], held[1]
    return found


def line(
    model: ModelSpec, config: ParallelConfig, of_layer: Mapping[LayerKind, FloatArray]
) -> tuple[FloatArray, FloatArray]:
    """
    Return a lower bound on the time of consecutive layers that is linear in their number.

    Parameters
    ----------
    config
        A configuration of :func:`least_splits`.
    of_layer
        Seconds of a layer of each type of the pattern, arrays of one shape.

    Returns
    -------
    tuple[FloatArray, FloatArray]
        Seconds per layer, of that shape. Seconds to add to the time of ``config`` in each chunk of each stage to get
        the bound at zero units (layers in each chunk), shape ``(*shape, num_chunks, pp)``.
    """
    leading, period = pattern_of(model.layers)
    of_pattern = np.stack([of_layer[kind] for kind in model.layers[leading : leading + period]])
    mean: FloatArray = of_pattern.mean(axis=0)
    beyond_mean = np.concatenate([np.zeros_like(mean)[None], (of_pattern - mean).cumsum(axis=0)])
    slack = beyond_mean.max(axis=0) - beyond_mean.min(axis=0)
    of_chunk = np.array(config.layers_per_chunk)
    ends = of_chunk.cumsum().reshape(of_chunk.shape)
    starts = np.maximum(ends - of_chunk, leading)
    counts = count_layers(model.layers, np.minimum(starts, ends), ends)
    inside = np.maximum(ends - starts, 0)
    may_grow = (np.arange(of_chunk.shape[1]) >= num_closed(model, config)) | (inside > 0)
    more: FloatArray = mean[..., None, None] * (inside - 1) - slack[..., None, None] * may_grow
    for kind, seconds in of_layer.items():
        more -= seconds[..., None, None] * counts[kind]
    return mean, more


def _sums(total: int, parts: int) -> Iterator[tuple[int, ...]]:
    """Yield every ordered tuple of ``parts`` positive integers whose sum is ``total``."""
    for cuts in combinations(range(1, total), parts - 1):
        ends = (0, *cuts, total)
        yield tuple(after - before for before, after in pairwise(ends))

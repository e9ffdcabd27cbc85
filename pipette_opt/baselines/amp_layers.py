"""
AMP's layer partition: a dynamic programme that divides the layers of a model among pipeline stages.

On hosts in listed order, each stage has its own time per layer: the mean over its replicas, which may be on slower
GPUs. The programme minimises the pipeline part of AMP's cost, ``(m - 1) max_s e_s + sum_s e_s``. Transfers are equal
for every partition. The reduction is added afterwards, as in the release (``pipe_ast`` in ``pipe.py``, which tries
every largest stage time in turn). The programme has no memory model.
"""

from dataclasses import replace

import numpy as np

from pipette_opt.base.risk import IGNORED_RISK
from pipette_opt.base.types import FloatArray
from pipette_opt.baselines.megatron import listed_nodes
from pipette_opt.candidates import SearchSpace, enumerate_with_reasons, layers_are_free
from pipette_opt.candidates.splits import LayerSplit
from pipette_opt.memory.predictor import MemoryPredictor
from pipette_opt.parallel import ParallelConfig, without_overlap
from pipette_opt.problem.families import LayerFamily
from pipette_opt.problem.family_times import layer_families
from pipette_opt.specs import Instance


def with_amp_splits(instance: Instance, space: SearchSpace, predictor: MemoryPredictor) -> SearchSpace:
    """Return the search space with AMP's layer partitions added; unchanged if the layers per stage are pinned."""
    if not layers_are_free(instance, space):
        return space
    return replace(space, more_splits=(*space.more_splits, *amp_splits(instance, space, predictor)))


def amp_splits(instance: Instance, space: SearchSpace, predictor: MemoryPredictor) -> tuple[LayerSplit, ...]:
    """Return AMP's distinct partitions of all configurations without interleaving or context parallelism."""
    bases: dict[ParallelConfig, None] = {}
    for config in enumerate_with_reasons(instance, space).candidates:
        pp = config.pipeline_model_parallel_size
        if config.num_chunks == config.context_parallel_size == 1 < pp <= instance.model.num_layers:
            bases[replace(without_overlap(config), layers_per_stage=(1,) * pp)] = None
    found = []
    for family in layer_families(instance, list(bases), predictor, IGNORED_RISK):
        if family.grid[2] == 1 and family.grid[0] * family.grid[1] <= instance.cluster.num_nodes:
            units = deal_layers(stage_times(instance, family), family.num_microbatches)
            found.append(family.with_units(units).layers_per_stage)
    return tuple(dict.fromkeys(found))


def stage_times(instance: Instance, family: LayerFamily) -> FloatArray:
    """
    Return seconds of one micro-batch on each stage with 1, 2, ... layers, shape ``(pp, num_units)``.

    They are means over the replicas, on hosts in listed order.
    """
    hosts = listed_nodes(family.grid, family.tile)[:, :, 0]
    kinds = instance.cluster.kind_of_node[hosts][np.arange(len(family.config.layers_per_stage)) // family.tile.stages]
    fixed_s = family.fixed_s.sum(axis=(0, 2))  # (kinds, pp)
    layer_s = family.layer_s.sum(axis=0)  # (kinds,)
    stages = np.arange(len(kinds))[:, None]
    units = np.arange(1, family.num_units + 1)
    times: FloatArray = (fixed_s[kinds, stages][:, :, None] + layer_s[kinds][:, :, None] * units).mean(axis=1)
    return times


def deal_layers(times: FloatArray, num_microbatches: int) -> LayerSplit:
    """
    Return the partition with the least ``(m - 1) max + sum`` of the stage times, each stage with at least one layer.

    Ties go to the smaller maximum. The number of layers is ``num_layers``, the number of columns.

    Parameters
    ----------
    times
        Time of each stage with 1, 2, ... layers, ascending, shape ``(num_stages, num_layers)``.
    """
    best_cost, best = np.inf, None
    least_sum = _least_sum(times, np.inf)[0]
    for ceiling in np.unique(times):
        if (num_microbatches - 1) * ceiling + least_sum >= best_cost:
            break
        total, split = _least_sum(times, ceiling)
        cost = (num_microbatches - 1) * ceiling + total
        if split is not None and cost < best_cost:
            best_cost, best = cost, split
    if best is None:
        raise ValueError(f"{times.shape[1]} layers cannot fill {times.shape[0]} stages.")
    return best


def _least_sum(times: FloatArray, ceiling: float) -> tuple[float, LayerSplit | None]:
    """
    Return the least sum of stage times and its partition, if no stage time may exceed ``ceiling``.

    Returns infinity and ``None`` if no partition is possible.
    """
    num_stages, num_layers = times.shape
    sums = np.full(num_layers + 1, np.inf)  # of the stages so far, by the layers that they hold
    sums[0] = 0.0
    held = np.arange(num_layers + 1)
    before = held[:, None] - np.arange(1, num_layers + 1)[None, :]  # (held after, layers of the stage)
    taken = []
    for stage in range(num_stages):
        own = np.where(times[stage] <= ceiling, times[stage], np.inf)
        options = np.where(before >= 0, sums[before] + own, np.inf)
        taken.append(options.argmin(axis=1))
        sums = options.min(axis=1)
    if not np.isfinite(sums[num_layers]):
        return np.inf, None
    split, left = [], num_layers
    for choice in reversed(taken):
        split.append(int(choice[left]) + 1)
        left -= split[-1]
    return float(sums[num_layers]), tuple(reversed(split))

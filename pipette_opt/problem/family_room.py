"""
Memory limits of a partition family (configurations that differ in their layers per stage only).

The limits are the layers that fit into each stage, and the recomputed layers that memory requires.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from pipette_opt.base.risk import IGNORED_RISK
from pipette_opt.base.types import BoolArray, IntArray
from pipette_opt.base.units import ceil_div
from pipette_opt.costs.layer_kinds import pure_configs
from pipette_opt.layers.kinds import pattern_of
from pipette_opt.memory.filter import predicted_memory
from pipette_opt.memory.predictor import MemoryPredictor
from pipette_opt.parallel import ParallelConfig
from pipette_opt.problem.layer_patterns import beyond, num_closed
from pipette_opt.specs import Instance, ModelSpec


def most_units(
    instance: Instance,
    configs: Sequence[ParallelConfig],
    predictor: MemoryPredictor,
    max_oom_risk: float,
    room_bytes: IntArray,
) -> list[IntArray]:
    """
    Return an upper bound on the units that fit into each stage, shape ``(num_kinds, pp)`` for each configuration.

    A unit is one layer in each chunk. The bound comes from bisection, since memory grows with the layers. In a pattern
    with several types of layers, a stage may begin anywhere in the pattern. Any ``n`` layers contain every run of ``n +
    1 - period`` consecutive layers of the pattern. So the bound is the result of bisection plus ``period - 1``.

    Bisection starts at an equal number of units on all stages. If the bounds prove that the stages together cannot hold
    all units, bisection stops early (:func:`has_room`).

    Parameters
    ----------
    configs
        Configurations with the fewest layers on each stage, which are the stage's first unit.
    room_bytes
        Usable bytes of a stage on each GPU type, shape ``(num_kinds,)``.
    """
    configs = [pure_configs(config)[-1] for config in configs]  # most recomputation leaves most room
    high = [_most_legal(instance.model, config, len(room_bytes)) for config in configs]
    legal, spare = [limit.copy() for limit in high], pattern_of(instance.model.layers).period - 1
    low = [np.zeros_like(limit) for limit in high]
    if max_oom_risk >= IGNORED_RISK:
        return high
    units = [num_units(instance.model, config) for config in configs]
    tries = [
        np.minimum(ceil_div(number, config.pipeline_model_parallel_size), most)
        for config, number, most in zip(configs, units, high, strict=True)
    ]
    while True:
        at_most = [np.minimum(limit + spare, most) for limit, most in zip(high, legal, strict=True)]
        open_indices = [
            index
            for index, (below, above) in enumerate(zip(low, high, strict=True))
            if (below < above).any() and has_room(at_most[index], units[index])
        ]
        if not open_indices:
            return at_most
        for kind, room in enumerate(room_bytes.tolist()):
            sized = [beyond(configs[index], np.maximum(tries[index][kind], 1).tolist()) for index in open_indices]
            found = predicted_memory(instance, predictor, sized, max_oom_risk)
            for index, prediction in zip(open_indices, found, strict=True):
                fits = prediction.upper_bytes <= room
                ahead = low[index][kind] < high[index][kind]
                low[index][kind] = np.where(fits & ahead, tries[index][kind], low[index][kind])
                high[index][kind] = np.where(~fits & ahead, tries[index][kind] - 1, high[index][kind])
        tries = [(below + above + 1) // 2 for below, above in zip(low, high, strict=True)]


def num_units(model: ModelSpec, config: ParallelConfig) -> int:
    """Return number of units that the stages share; the layers of ``config`` count as the first unit of each stage."""
    layers = config.layers_per_stage
    return len(layers) + (model.num_layers - sum(layers)) // config.num_chunks


def has_room(most: IntArray, number: int) -> bool:
    """
    Return whether the stages can hold ``number`` units (layers in each chunk); ``most`` limits each stage on each GPU
    type, ``(num_kinds, pp)``.
    """
    of_stage = most.max(axis=0)
    return bool(of_stage.min() >= 1 and of_stage.sum() >= number)


def _most_legal(model: ModelSpec, config: ParallelConfig, num_kinds: int) -> IntArray:
    """Return the largest legal number of units of each stage, ignoring memory: 1 for stages that cannot get more."""
    pp, layers = config.pipeline_model_parallel_size, config.layers_per_stage
    units: IntArray = np.full((num_kinds, pp), 1 + (model.num_layers - sum(layers)) // config.num_chunks)
    units[:, : num_closed(model, config)] = 1
    return units


@dataclass(slots=True, eq=False)
class RecomputedUnits:
    """
    Number of recomputed layers per chunk that memory requires, for a configuration with block recomputation.

    Parameters
    ----------
    config
        Configuration with the fewest layers on each stage, which are the stage's first unit.
    room_bytes
        Usable bytes of a stage on each GPU type, shape ``(num_kinds,)``.
    most_units
        Number of units (layers in each chunk) that fit into each stage if all are recomputed, shape ``(num_kinds,
        pp)``.
    """

    instance: Instance
    config: ParallelConfig
    predictor: MemoryPredictor
    max_oom_risk: float
    room_bytes: IntArray
    most_units: IntArray
    _fewest: IntArray | None = None

    def fewest(self) -> IntArray:
        """
        Return the fewest recomputed layers for each number of units (layers in each chunk), shape ``(num_kinds, pp, 1 +
        largest)``; cached.

        Found by bisection, as memory falls with the number of recomputed layers. If the stage does not fit, all its
        layers count as recomputed. In a pattern with several types of layers, the value for ``period - 1`` fewer units
        is a lower bound.
        """
        if self._fewest is None:
            shape = (*self.most_units.shape, 1 + int(self.most_units.max(initial=0)))
            units = np.arange(shape[2])
            first = np.array(self.config.layers_per_stage) // self.config.num_chunks
            low, high = np.full(shape, -1, dtype=np.int64), np.broadcast_to(units + first[:, None] - 1, shape).copy()
            low[:, :, 0] = high[:, :, 0] = 0
            if self.max_oom_risk >= IGNORED_RISK:
                high[:] = 0
            while (unknown := (high - low > 1) & (units <= self.most_units[:, :, None])).any():
                middle = (low + high) // 2
                asked = sorted({(int(n), int(r)) for _, _, n, r in _where(unknown, middle)})
                need = dict(zip(asked, self._need_bytes(asked), strict=True))
                for kind, stage, n, r in _where(unknown, middle):
                    fits = need[n, r][stage] <= self.room_bytes[kind]
                    (high if fits else low)[kind, stage, n] = r
            spare = pattern_of(self.instance.model.layers).period - 1
            self._fewest = high[:, :, np.maximum(units - spare, 0)]
        return self._fewest

    def _need_bytes(self, asked: Sequence[tuple[int, int]]) -> list[IntArray]:
        """Return the predicted bytes of each stage, shape ``(pp,)``, for each pair of units and recomputed layers."""
        kept, _ = pure_configs(self.config)
        closed, pp = num_closed(self.instance.model, self.config), self.config.pipeline_model_parallel_size
        sized = [
            beyond(
                replace(self.config, recompute_num_layers=number) if number else kept,
                (1,) * closed + (units,) * (pp - closed),
            )
            for units, number in asked
        ]
        found = predicted_memory(self.instance, self.predictor, sized, self.max_oom_risk)
        return [prediction.upper_bytes for prediction in found]


def _where(mask: BoolArray, values: IntArray) -> list[tuple[int, int, int, int]]:
    """Return GPU type, stage, number of units (layers in each chunk) and value of each true entry of the mask."""
    return [(kind, stage, n, int(values[kind, stage, n])) for kind, stage, n in np.argwhere(mask).tolist()]

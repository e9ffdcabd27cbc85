"""Memory limits of a family: layers that fit into each stage, and recomputed layers that this requires."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from pipette_opt.base.types import BoolArray, IntArray
from pipette_opt.base.units import ceil_div
from pipette_opt.costs.layer_kinds import pure_configs
from pipette_opt.memory.filter import predicted_memory
from pipette_opt.memory.predictor import IGNORED_RISK, MemoryPredictor
from pipette_opt.parallel import ParallelConfig
from pipette_opt.problem.layer_patterns import beyond, num_closed
from pipette_opt.specs import Instance, ModelSpec
from pipette_opt.specs.layer_kinds import pattern_of


def most_units(
    instance: Instance,
    configs: Sequence[ParallelConfig],
    predictor: MemoryPredictor,
    max_oom_risk: float,
    room_bytes: IntArray,
) -> list[IntArray]:
    """
    Upper bound on the units that fit into each stage, by bisection; ``(num_kinds, pp)`` for each configuration.
    Memory grows with the layers. In a pattern with several kinds of layers, a stage may be at any place. Any ``n``
    layers contain every run of ``n + 1 - period`` consecutive layers of the pattern, wherever it begins. So the bound
    is the result of bisection plus ``period - 1``.

    Bisection starts at an even share of all units. Where that shows that all stages together have no room for them,
    the configuration is left with too few units (:func:`has_room`).

    Parameters
    ----------
    configs
        Configurations with the fewest layers on each stage, which are its first unit.
    room_bytes
        Usable bytes of a stage on each GPU kind, shape ``(num_kinds,)``.
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
    """Number of units that a family partitions among its stages; ``config`` has the first ones."""
    layers = config.layers_per_stage
    return len(layers) + (model.num_layers - sum(layers)) // config.num_chunks


def has_room(most: IntArray, number: int) -> bool:
    """Return whether ``number`` units fit into stages with limits ``most`` on each GPU kind, ``(num_kinds, pp)``."""
    of_stage = most.max(axis=0)
    return bool(of_stage.min() >= 1 and of_stage.sum() >= number)


def _most_legal(model: ModelSpec, config: ParallelConfig, num_kinds: int) -> IntArray:
    """Largest legal number of units of each stage, whatever the memory; 1 where a stage may not hold more."""
    pp, layers = config.pipeline_model_parallel_size, config.layers_per_stage
    units: IntArray = np.full((num_kinds, pp), 1 + (model.num_layers - sum(layers)) // config.num_chunks)
    units[:, : num_closed(model, config)] = 1
    return units


@dataclass(slots=True, eq=False)
class RecomputedUnits:
    """
    Number of layers of each chunk that have to be recomputed, of one configuration with block recomputation.

    Parameters
    ----------
    config
        Configuration with the fewest layers on each stage, which are its first unit.
    room_bytes
        Usable bytes of a stage on each GPU kind, shape ``(num_kinds,)``.
    most_units
        Units that fit into a stage if all are recomputed, shape ``(num_kinds, pp)``.
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
        Fewest recomputed layers for each number of units, shape ``(num_kinds, pp, 1 + largest)``; cached.
        By bisection, as memory falls with the number of recomputed layers. All layers where the stage does not fit. A
        lower bound in a pattern with several kinds of layers: the need of ``period - 1`` fewer units.
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
        """Predicted bytes of each stage for pairs of units and recomputed layers; shape ``(pp,)`` each."""
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
    """Return kind, stage and units of the true entries, each with its value."""
    return [(kind, stage, n, int(values[kind, stage, n])) for kind, stage, n in np.argwhere(mask).tolist()]

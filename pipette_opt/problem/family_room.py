"""How many layers each stage of a family has room for, and how many of them have to be recomputed for that."""

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
    Units that each stage has room for, by bisection, as memory grows with the layers; ``(num_kinds, pp)`` for each.

    At most: of a pattern with several kinds of layers a stage may have any place. So many layers have all consecutive
    layers of the pattern among them that are fewer by a period less one, wherever these begin; so there is no room for
    more units than by bisection and those.

    Bisection begins at an even share of what there is to deal: where that shows that all stages together have no room
    for it, the configuration is left as it is then, with too few units (:func:`has_room`).

    Parameters
    ----------
    configs
        With the fewest layers on each stage, which are its first unit.
    room_bytes
        What a stage may take on each kind of GPU, shape ``(num_kinds,)``.
    """
    configs = [pure_configs(one)[-1] for one in configs]  # the one that recomputes most has room for most
    high = [_most_legal(instance.model, config, len(room_bytes)) for config in configs]
    legal, spare = [one.copy() for one in high], pattern_of(instance.model.layers).period - 1
    low = [np.zeros_like(one) for one in high]
    if max_oom_risk >= IGNORED_RISK:
        return high
    units = [num_units(instance.model, one) for one in configs]
    tries = [
        np.minimum(ceil_div(number, one.pipeline_model_parallel_size), most)
        for one, number, most in zip(configs, units, high, strict=True)
    ]
    while True:
        at_most = [np.minimum(one + spare, most) for one, most in zip(high, legal, strict=True)]
        open_ones = [
            index
            for index, (one, two) in enumerate(zip(low, high, strict=True))
            if (one < two).any() and has_room(at_most[index], units[index])
        ]
        if not open_ones:
            return at_most
        for kind, room in enumerate(room_bytes.tolist()):
            sized = [beyond(configs[index], np.maximum(tries[index][kind], 1).tolist()) for index in open_ones]
            found = predicted_memory(instance, predictor, sized, max_oom_risk)
            for index, prediction in zip(open_ones, found, strict=True):
                fits = prediction.upper_bytes <= room
                ahead = low[index][kind] < high[index][kind]
                low[index][kind] = np.where(fits & ahead, tries[index][kind], low[index][kind])
                high[index][kind] = np.where(~fits & ahead, tries[index][kind] - 1, high[index][kind])
        tries = [(one + two + 1) // 2 for one, two in zip(low, high, strict=True)]


def num_units(model: ModelSpec, config: ParallelConfig) -> int:
    """Units that a family deals to its stages, whose first ones ``config`` has."""
    layers = config.layers_per_stage
    return len(layers) + (model.num_layers - sum(layers)) // config.num_chunks


def has_room(most: IntArray, number: int) -> bool:
    """Whether stages with room for so many units on each kind of GPU, ``(num_kinds, pp)``, can have so many in all."""
    of_stage = most.max(axis=0)
    return bool(of_stage.min() >= 1 and of_stage.sum() >= number)


def _most_legal(model: ModelSpec, config: ParallelConfig, num_kinds: int) -> IntArray:
    """Units of each stage that the model has, whatever the memory; one where a stage may not hold more."""
    pp, layers = config.pipeline_model_parallel_size, config.layers_per_stage
    units: IntArray = np.full((num_kinds, pp), 1 + (model.num_layers - sum(layers)) // config.num_chunks)
    units[:, : num_closed(model, config)] = 1
    return units


@dataclass(slots=True, eq=False)
class RecomputedUnits:
    """
    How many layers of each chunk have to be recomputed, of one configuration with block recomputation.

    Parameters
    ----------
    config
        With the fewest layers on each stage, which are its first unit.
    room_bytes
        What a stage may take on each kind of GPU, shape ``(num_kinds,)``.
    most_units
        Units that a stage has room for if all are recomputed, shape ``(num_kinds, pp)``.
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
        The fewest for each number of units a stage may hold, shape ``(num_kinds, pp, 1 + largest)``; computed once.

        By bisection, as memory falls with the number of recomputed layers. All of them where the stage has no room.
        At least: of a pattern with several kinds of layers as many as fewer units need, by a period less one.
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
        """What each stage needs with so many units, of whose layers so many are recomputed; shape ``(pp,)`` each."""
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
        return [one.upper_bytes for one in found]


def _where(mask: BoolArray, values: IntArray) -> list[tuple[int, int, int, int]]:
    """Kind, stage and units of the true entries, each with its value."""
    return [(kind, stage, n, int(values[kind, stage, n])) for kind, stage, n in np.argwhere(mask).tolist()]

"""
The joint model over all families of configurations: which layers on which stages on which kinds of GPU.

Bounds that look at one family by itself say which families may win. Over all of these one model decides
(:mod:`pipette_opt.solver.layer_model`). What it chooses is placed on the hosts as listed and judged; the judge's
critical path becomes a constraint of the model, for every split of the layers and every family with that schedule
(logic-based Benders decomposition: Hooker and Ottosson, Mathematical Programming 96, 2003). So the model comes up to
the judge's time over the best links. What comes of it: a time to beat, the splits worth searching beside the usual
ones, and a bound on all others.
"""

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from pipette_opt.candidates import SearchSpace, layer_splits, overlap_choices
from pipette_opt.costs.placed import placed_times
from pipette_opt.errors import MissingLinkError
from pipette_opt.estimator.estimate import estimate
from pipette_opt.estimator.longest_paths import critical_counts
from pipette_opt.families import LayerFamily, can_be_family, layer_families
from pipette_opt.memory.predictor import MemoryPredictor
from pipette_opt.parallel import ParallelConfig, block_placement
from pipette_opt.pruning import FirstPlan, without_overlap
from pipette_opt.solver.layer_model import LayerModel, LayerSplit, ModelSize
from pipette_opt.specs import Instance
from pipette_opt.types import IntArray

FIRST_FAMILIES = 48
"""Families in the first model, those with the least bounds; its answer is the time to beat for all others."""

MOST_SPLITS = 24
"""Splits that are handed on to be searched beside the usual ones, at most."""

MARGIN = 1e-6
"""Relative; what is given back of a bound that is computed in doubles and ticks."""

SETTLED = 1e-3
"""Of the judge's time; nearer than this the model knows all paths that matter at a split."""

BISECTIONS = 24
"""Halvings of the interval in which a family's bound lies."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JointLimits:
    """How long the joint model may take, and with what."""

    time_limit_s: float
    workers: int = 2
    seed: int = 0


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Joined:
    """
    What the joint model says.

    Parameters
    ----------
    splits
        Layers per stage that may be faster than all usual splits.
    first
        The fastest plan that was judged, on hosts as they are listed; ``None`` if there was none.
    bound_s
        No configuration with any other split is faster.
    status
        ``INFEASIBLE`` if no other split can beat ``first``, ``FEASIBLE`` if one might.
    """

    splits: tuple[tuple[int, ...], ...]
    first: FirstPlan | None
    bound_s: float
    status: str
    size: ModelSize


def chooses_layers(instance: Instance, space: SearchSpace) -> bool:
    """Whether the layers of the stages are free, and all alike."""
    return space.layers_per_stage is None and space.uneven_layers and can_be_family(instance)


def join(
    instance: Instance,
    space: SearchSpace,
    candidates: Sequence[ParallelConfig],
    predictor: MemoryPredictor,
    max_oom_risk: float,
    limits: JointLimits,
    report: Callable[[str], None] = lambda step: None,
    stop: threading.Event | None = None,
) -> Joined:
    """
    Choose family, layers and kinds of GPU together.

    Parameters
    ----------
    candidates
        Every legal configuration with one of the usual splits; what is proven is about all other splits.
    """
    return _Joint(instance, space, candidates, predictor, max_oom_risk, limits, report, stop or threading.Event()).run()


class _Joint:
    def __init__(
        self,
        instance: Instance,
        space: SearchSpace,
        candidates: Sequence[ParallelConfig],
        predictor: MemoryPredictor,
        max_oom_risk: float,
        limits: JointLimits,
        report: Callable[[str], None],
        stop: threading.Event,
    ) -> None:
        self.instance, self.space, self.limits, self.report, self.stop = instance, space, limits, report, stop
        self.ends = time.perf_counter() + limits.time_limit_s
        self.hosts_of_kind = np.bincount(
            instance.cluster.kind_of_node, minlength=len(instance.cluster.gpu_kinds)
        ).astype(np.int64)
        self.first: FirstPlan | None = None
        self.splits: dict[tuple[int, ...], None] = {}
        self.size = ModelSize()
        families = layer_families(instance, list(_bases(instance, candidates)), predictor, max_oom_risk)
        bounds = [family_bound_s(family, self.hosts_of_kind) for family in families]
        order = np.argsort(bounds, kind="stable").tolist()
        self.families = [families[index] for index in order if bounds[index] < float("inf")]
        self.bounds = [bounds[index] for index in order if bounds[index] < float("inf")]

    @property
    def to_beat_s(self) -> float:
        return float("inf") if self.first is None else self.first.seconds

    @property
    def seconds_left(self) -> float:
        return self.ends - time.perf_counter()

    def run(self) -> Joined:
        """First a time to beat, from the most promising families; then all that may beat it, without usual splits."""
        if not self.families:
            return self._joined(float("inf"), "INFEASIBLE")
        count = min(FIRST_FAMILIES, len(self.families))
        while True:
            self._find_first(count)
            able = sum(bound < self.to_beat_s for bound in self.bounds)
            if self.first is None and count < len(self.families):
                count = min(2 * count, len(self.families))
            elif able <= count or self.seconds_left <= 0:
                break
            else:
                count = able if able <= 4 * count else 4 * count
        return self._exclude_usual(able if self.first is not None else count)

    def _model(self, count: int) -> LayerModel:
        slack = self.to_beat_s if self.first is not None else 4.0 * max(self.bounds[:count])
        model = LayerModel(self.families[:count], self.hosts_of_kind, slack)
        self.size.families = max(self.size.families, count)
        return model

    def _solve(self, model: LayerModel) -> tuple[LayerSplit | None, float]:
        split, bound_s = model.solve(self.seconds_left, self.limits.workers, self.limits.seed, self.stop)
        self.size.variables = max(self.size.variables, model.size.variables)
        self.size.constraints = max(self.size.constraints, model.size.constraints)
        self.size.solves += 1
        self.size.seconds += model.size.seconds
        model.size.seconds = 0.0
        return split, bound_s

    def _find_first(self, count: int) -> None:
        """The best split of some families, until the judge agrees with the model."""
        model = self._model(count)
        while self.seconds_left > 0 and not self.stop.is_set():
            self.report(f"choosing layers and kinds of GPU for {count} families of configurations")
            split, _ = self._solve(model)
            if split is None:
                return
            seconds, new = self._judge(model, split)
            if not new or split.bound_s >= (1 - SETTLED) * min(seconds, self.to_beat_s):
                return

    def _exclude_usual(self, count: int) -> Joined:
        """Every split but the usual ones: those that may be faster, and a bound on the others."""
        if count == 0:
            return self._joined(self.bounds[0], "INFEASIBLE")
        model, num_layers = self._model(count), self.instance.model.num_layers
        for index, family in enumerate(model.families):
            config = family.config
            usual = layer_splits(num_layers, config.pipeline_model_parallel_size, config.num_chunks)
            for split in dict.fromkeys((*usual, *self.space.more_splits, *self.splits)):
                self._exclude(model, index, split)
        beyond = min(self.bounds[count:], default=float("inf"))
        while True:
            model.below(self.to_beat_s)
            self.report(f"proving that no other split of the layers is faster, {len(self.splits)} may be")
            split, bound_s = self._solve(model)
            bound_s = min(bound_s * (1 - MARGIN), beyond)
            if split is None:
                return self._joined(bound_s, "INFEASIBLE" if bound_s >= self.to_beat_s * (1 - 2 * MARGIN) else "FEASIBLE")
            if len(self.splits) >= MOST_SPLITS or self.seconds_left <= 0 or self.stop.is_set():
                return self._joined(bound_s, "FEASIBLE")
            seconds, new = self._judge(model, split)
            if new and split.bound_s < (1 - SETTLED) * seconds:
                continue  # with its critical path the model may turn it down
            layers = model.families[split.family].with_units(split.units).layers_per_stage
            self.splits[layers] = None
            for index in range(len(model.families)):
                self._exclude(model, index, layers)

    def _exclude(self, model: LayerModel, index: int, layers: tuple[int, ...]) -> None:
        """Leave a split out of a family that can have it."""
        family = model.families[index]
        if len(layers) == family.config.pipeline_model_parallel_size:
            chunks = family.config.num_chunks
            if not any(one % chunks for one in layers):
                model.exclude(index, [one // chunks for one in layers])

    def _judge(self, model: LayerModel, split: LayerSplit) -> tuple[float, int]:
        """The fastest choice of overlap on hosts as they are listed, seconds; and how many paths were new."""
        family = model.families[split.family]
        nodes = listed_hosts_of_kinds(self.instance, family, split.kinds)
        base, best_s = family.with_units(split.units), float("inf")
        placement = block_placement(base, family.block, nodes)
        try:
            for config in overlap_choices(self.space, base):
                seconds = estimate(self.instance, config, placement).iteration_time_s
                best_s = min(best_s, seconds)
                if seconds < self.to_beat_s:
                    self.first = FirstPlan(config=config, block=family.block, nodes=nodes, seconds=seconds)
            times = placed_times(self.instance, base, placement)
        except MissingLinkError:
            return float("inf"), 0
        counts = critical_counts(times, family.num_microbatches, self.instance.p2p)
        return best_s, model.add_paths(family.schedule, counts)

    def _joined(self, bound_s: float, status: str) -> Joined:
        return Joined(splits=tuple(self.splits), first=self.first, bound_s=bound_s, status=status, size=self.size)


def _bases(instance: Instance, candidates: Sequence[ParallelConfig]) -> Iterator[ParallelConfig]:
    """One configuration of each family that has stages to deal layers to."""
    seen = set()
    for config in candidates:
        pp, chunks = config.pipeline_model_parallel_size, config.num_chunks
        if pp == 1 or instance.model.num_layers % chunks or instance.model.num_layers // chunks < pp:
            continue
        base = replace(without_overlap(config), layers_per_stage=(chunks,) * pp)
        if base not in seen:
            seen.add(base)
            yield base


def family_bound_s(family: LayerFamily, hosts_of_kind: IntArray) -> float:
    """
    No split of a family is faster: seconds; infinite if its layers have no room.

    A stage with work ``w`` for one micro-batch takes ``m * w``, and the first micro-batch goes through the stages before
    it; so in time ``T`` all stages together hold work ``T * (1 - (1 - 1/m)^pp)`` at most, each ``T / m``. Hosts of the
    fastest kinds fill whole rows first.
    """
    m, pp = family.num_microbatches, family.config.pipeline_model_parallel_size
    per_unit = family.layer_s.sum(axis=0) * family.config.num_chunks  # (kinds,)
    fixed = family.fixed_s.sum(axis=(0, 2)).min()
    kinds = np.argsort(per_unit, kind="stable")
    rows = np.diff(np.minimum(np.cumsum(hosts_of_kind[kinds]) // family.hosts_per_row, family.grid[0]), prepend=0)
    if rows.sum() < family.grid[0]:
        return float("inf")
    stages = rows * family.block.stages
    most = int(family.most_units.max())
    if pp * most < family.num_units:
        return float("inf")

    def held(total_s: float) -> float:
        """Units that the stages can hold in time."""
        left, units = total_s * (1.0 - (1.0 - 1.0 / m) ** pp) - pp * fixed, 0.0
        for kind, count in zip(kinds.tolist(), stages.tolist(), strict=True):
            each = min(max(total_s / m - fixed, 0.0), most * per_unit[kind])
            work = min(count * each, max(left, 0.0))
            units += work / per_unit[kind]
            left -= work
        return units

    low, high = 0.0, m * (family.num_units * float(per_unit.max()) + pp * fixed) * 2.0
    for _ in range(BISECTIONS):
        middle = 0.5 * (low + high)
        low, high = (low, middle) if held(middle) >= family.num_units else (middle, high)
    return low + family.optimizer_s


def listed_hosts_of_kinds(instance: Instance, family: LayerFamily, kinds: IntArray) -> IntArray:
    """
    Hosts in the order in which they are listed, so many of each kind in each row; shape of the family's grid.

    Each row has its kinds in the same order, so that slow hosts share columns.
    """
    kind_of_node = instance.cluster.kind_of_node
    waiting = [np.flatnonzero(kind_of_node == kind).tolist() for kind in range(kinds.shape[1])]
    nodes = [[waiting[kind].pop(0) for kind, count in enumerate(row) for _ in range(count)] for row in kinds.tolist()]
    return np.array(nodes, dtype=np.int64).reshape(family.grid)

"""
The joint model over all families of configurations: which layers on which stages on which kinds of GPU.

Bounds that look at one family by itself say which families may win. Over these a model decides
(:mod:`pipette_opt.solver.layer_model`). What it chooses is placed on the hosts as listed and simulated; the simulator's
critical path becomes a constraint of the model, for every split of the layers and every family with that schedule
(logic-based Benders decomposition: Hooker and Ottosson, Mathematical Programming 96, 2003). So the model comes up to
the simulated time over the best links. What comes of it: a time to beat, the splits worth searching beside the usual
ones, and a bound on all others.

As one family is chosen, the model falls apart into parts of families: no split of any is faster than the least bound of
the parts. Parts are of such a size that CP-SAT proves them in about a second, those with the least bound come first,
and one that needs more time is halved.
"""

import threading
import time
from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass, field, fields, replace
from operator import attrgetter, itemgetter

from pipette_opt.candidates import SearchSpace, layer_splits
from pipette_opt.costs.work import WorkBounds
from pipette_opt.memory.predictor import MemoryPredictor
from pipette_opt.parallel import ParallelConfig, without_overlap
from pipette_opt.parallel.config import OVERLAPS, SPLIT
from pipette_opt.plans.plan import JointModel
from pipette_opt.problem.families import LayerFamily
from pipette_opt.solver.family_bounds import FAMILY_MARGIN, load_kernel
from pipette_opt.solver.family_model import num_variables
from pipette_opt.solver.layer_model import LayerModel, LayerSplit, ModelSize
from pipette_opt.solver.open_families import JointLimits, OpenFamilies
from pipette_opt.solver.pruning import FirstPlan
from pipette_opt.specs import Instance

UNKNOWN_TIME = 4.0
"""Largest iteration time in a model before any plan is known, as a multiple of its families' least bound. Chosen."""

FIRST_CONFIGURATIONS = 512
"""
Number of configurations that are bounded before the first model, if that takes no more than half the time: the work
alone, by which they are ordered, knows nothing of tensor groups over hosts. With 32 first, on 16 hosts, bounds took as
long and the first plan was 2 % slower. Chosen.
"""

BETWEEN_LOOKS = 128
"""Number of configurations that are bounded between looks at the clock. Chosen."""

FAMILIES_GROWTH = 4
"""Factor by which the number of configurations grows from model to model until a time to beat is settled. Chosen."""

MAX_VARIABLES = 1000
"""
Largest number of variables of one model, about; some 80 families with one kind of GPU and 8 with two. CP-SAT proves
models of 300 variables in a second, and in models of 5,000 it finds nothing in that time. Chosen.
"""

MIN_SLICE_S = 1.0
"""Least time limit of a CP-SAT call that is to prove something, in seconds. Chosen."""

SLICE_SHARE = 0.1
"""Share of the time left that one CP-SAT call may take that is to prove something. Chosen."""

MAX_SPLITS = 24
"""Largest number of splits that are handed on to be searched beside the usual ones. Chosen."""

SETTLED = 1e-3
"""
Relative difference of simulate and model below which no further critical paths of a split are asked for, where splits
are to be ruled out. Chosen.
"""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Joined:
    """
    What the joint model says.

    Parameters
    ----------
    splits
        Layers per stage that may be faster than all usual splits.
    first
        The fastest plan that was simulated, on hosts as they are listed; ``None`` if there was none.
    model
        How large the model was, and what it proved about all other splits.
    go_on
        Proves on, for so many seconds, against a new time to beat; whether more splits may be handed on comes last. The
        split of a faster plan that is found on the way is handed on in any case, and then in the bound as well.
    split_bound_s
        No plan of a configuration is faster, whatever is sent beside compute, by the bounds of its families; 0 where
        there are none.
    """

    splits: tuple[tuple[int, ...], ...]
    first: FirstPlan | None
    model: JointModel
    go_on: Callable[[float, float, bool], "Joined"]
    split_bound_s: Callable[[ParallelConfig], float]


def join(
    instance: Instance,
    space: SearchSpace,
    candidates: Sequence[ParallelConfig],
    predictor: MemoryPredictor,
    max_oom_risk: float,
    limits: JointLimits,
    report: Callable[[str], None] = lambda step: None,
    stop: threading.Event | None = None,
    loading: Callable[[], AbstractContextManager[None]] = nullcontext,
    work: WorkBounds | None = None,
) -> Joined:
    """
    Choose family, layers and kinds of GPU together.

    Parameters
    ----------
    candidates
        Every legal configuration with one of the usual splits; what is proven is about all other splits.
    loading
        Entered where a kind of schedule is simulated for the first time, as that may compile kernels.
    work
        Bounds by work that were computed before, to be looked up and added to.
    """
    search = _Joint(
        instance=instance,
        space=space,
        predictor=predictor,
        max_oom_risk=max_oom_risk,
        limits=limits,
        report=report,
        stop=stop or threading.Event(),
        loading=loading,
        work=work or WorkBounds(instance),
    )
    return search.run(candidates)


@dataclass(slots=True, kw_only=True, eq=False)
class _Part:
    """
    Families that one model chooses among.

    Parameters
    ----------
    bound_s
        No other split of theirs is faster.
    is_given_up
        Whether a split of theirs may be faster that cannot be handed on any more.
    """

    families: list[LayerFamily]
    bound_s: float
    model: LayerModel | None = None
    is_given_up: bool = False


@dataclass(slots=True, kw_only=True, eq=False)
class _Joint(OpenFamilies):
    """The models, one after the other, and what they have in common."""

    report: Callable[[str], None]
    work: WorkBounds
    splits: dict[tuple[int, ...], None] = field(default_factory=dict)
    size: ModelSize = field(default_factory=ModelSize)
    parts: list[_Part] = field(default_factory=list)
    """Families of which other splits are not yet ruled out."""
    waiting: list[tuple[float, ParallelConfig]] = field(default_factory=list)
    """Configurations of which no family was looked at yet, with the least that any split of theirs takes, in order."""
    modelled: set[LayerFamily] = field(default_factory=set)
    """Families that were in a model."""

    def run(self, candidates: Sequence[ParallelConfig]) -> Joined:
        """First a time to beat, from the most promising configurations; then all that may beat it."""
        with self.loading():
            load_kernel()
        self.ends = time.perf_counter() + self.limits.time_limit_s
        bounded = [(self.work.of_any_split(base), base) for base in _bases(self.instance, candidates)]
        bounded = sorted((one for one in bounded if one[0] < float("inf")), key=lambda one: one[0])
        count, half = 0, 0.5 * self.limits.time_limit_s
        while True:
            able = bisect_left(bounded, self.to_beat_s, key=itemgetter(0))
            if count >= able or (self.is_over and count):
                break
            enough, families = min(able, max(FIRST_CONFIGURATIONS, FAMILIES_GROWTH * count)), []
            while count < enough and not (count and self.seconds_left < (half if self.first is None else 0.0)):
                some = bounded[count : min(count + BETWEEN_LOOKS, enough)]
                families += self._families([base for _, base in some])
                count += len(some)
                if self.first is None:
                    self._bound_again(self._able(families)[:1])
            self._bound_again(self._able(families))
        self.waiting = bounded[count:]
        self._list_first()
        self.parts = self._parts(self._narrowed(self._able(self.bounds_s)))
        self._prove(MAX_SPLITS)
        self._list_first()
        return self._joined()

    def _list_first(self) -> None:
        """The split of the time to beat is searched with the usual ones, or nobody would have that plan."""
        first = None if self.first is None else self.first.config
        if first is not None and not self._is_usual(first) and first.layers_per_stage not in self.splits:
            self._hand_on(first.layers_per_stage, self.parts)

    def _model(self, families: Sequence[LayerFamily]) -> LayerModel:
        self._learn_likely(families)
        ceiling_s = self.to_beat_s
        if ceiling_s == float("inf"):
            ceiling_s = UNKNOWN_TIME * min(self.bounds_s[family] for family in families)
        self.modelled.update(families)
        model = LayerModel(families, self._hosts_of_kind(), ceiling_s)
        for schedule, paths in self.learned.items():
            if any(family.schedule == schedule for family in families):
                for counts in paths:
                    model.add_paths(schedule, counts)
        return model

    def _solve(self, model: LayerModel, limit_s: float) -> tuple[LayerSplit | None, float]:
        limit_s = min(limit_s, self.seconds_left)
        split, bound_s = model.solve(limit_s, self.limits.workers, self.limits.seed, self.stop)
        self.size = self.size.joined(model.size)
        return split, bound_s

    def _parts(self, families: Sequence[LayerFamily], most: int = MAX_VARIABLES) -> list[_Part]:
        """Families in models of no more variables than that, those with like bounds together."""
        ordered = sorted(families, key=lambda family: self.bounds_s[family])
        return [_Part(families=one, bound_s=self.bounds_s[one[0]]) for one in self._in_models(ordered, most)]

    def _in_models(self, families: Sequence[LayerFamily], most: int = MAX_VARIABLES) -> Iterator[list[LayerFamily]]:
        """In the order given, as many in each model as it may have variables, and at least one."""
        kinds = len(self.instance.cluster.gpu_kinds)
        some: list[LayerFamily] = []
        count = 0
        for family in families:
            more = num_variables(family, kinds)
            if some and count + more > most:
                yield some
                some, count = [], 0
            some.append(family)
            count += more
        if some:
            yield some

    def _prove(self, most_splits: int) -> None:
        """
        Every split but the usual ones: those that may be faster, up to so many, and a bound on the others.

        Until no other can be faster than the time to beat, or time is over. The part with the least bound is the next.
        """
        while (part := self._least_part()) is not None and not self.is_over:
            if part.bound_s >= self.to_beat_s or part.is_given_up:
                break  # nothing else would raise the bound
            self.parts.remove(part)
            self.parts += self._proven(part, most_splits)

    def _least_part(self) -> _Part | None:
        """The part with the least bound, once no configuration that waits may be below it."""
        while self.waiting and not self.is_over:
            least_s = min((part.bound_s for part in self.parts), default=self.to_beat_s)
            if self.waiting[0][0] >= min(least_s, self.to_beat_s):
                break
            some, self.waiting = self.waiting[:BETWEEN_LOOKS], self.waiting[BETWEEN_LOOKS:]
            self.parts += self._parts(self._able(self._families([base for _, base in some])))
        return min(self.parts, key=lambda part: part.bound_s, default=None)

    def _proven(self, part: _Part, most_splits: int) -> list[_Part]:
        """What is left of a part after a slice of time: nothing, itself, or its halves with a better bound."""
        if part.model is None:
            part.families = self._bound_again(part.families)
            if not part.families:
                return []
            part.bound_s = max(part.bound_s, min(self.bounds_s[family] for family in part.families))
        families, limit_s = part.families, max(MIN_SLICE_S, SLICE_SHARE * self.seconds_left)
        ends = time.perf_counter() + limit_s
        model = part.model = part.model or self._model_of_others(families)
        while True:
            model.below(self.to_beat_s)
            self.report(f"ruling out other splits of the layers, {len(self.splits)} may be faster")
            split, bound_s = self._solve(model, ends - time.perf_counter())
            bound_s *= 1 - FAMILY_MARGIN
            if split is None and bound_s >= self.to_beat_s * (1 - 2 * FAMILY_MARGIN):
                return []
            part.bound_s = max(part.bound_s, bound_s)
            self.bounds_s.update((family, max(bound_s, self.bounds_s[family])) for family in families)
            if split is None or self.is_over or time.perf_counter() >= ends:
                if len(families) == 1 or self.is_over:
                    return [part]
                kinds = len(self.instance.cluster.gpu_kinds)
                return self._parts(families, sum(num_variables(family, kinds) for family in families) // 2)
            seconds, new = self._simulate(model, split)
            if new and split.bound_s < (1 - SETTLED) * seconds:
                continue  # with its critical path the model may turn it down
            config = model.families[split.family].with_units(split.units, split.recomputed)
            if not self._is_searched(config) and config.recomputation != "block":
                self._exclude(model, split.family, config.layers_per_stage)
                continue
            if len(self.splits) >= most_splits:
                part.is_given_up = True
                return [part]
            self._hand_on(config.layers_per_stage, [part, *self.parts])

    def _model_of_others(self, families: Sequence[LayerFamily]) -> LayerModel:
        """The model of all splits that no list has."""
        model, num_layers = self._model(families), self.instance.model.num_layers
        for index, family in enumerate(families):
            config = family.config
            usual = layer_splits(num_layers, config.pipeline_model_parallel_size, config.num_chunks)
            for layers in dict.fromkeys((*usual, *self.space.more_splits, *self.splits)):
                self._exclude(model, index, layers)
        return model

    def _hand_on(self, layers: tuple[int, ...], parts: Sequence[_Part]) -> None:
        """A split is searched beside the usual ones, by others."""
        self.splits[layers] = None
        for part in parts:
            if part.model is not None:
                for index in range(len(part.families)):
                    self._exclude(part.model, index, layers)

    def _go_on(self, time_limit_s: float, to_beat_s: float, hands_on: bool) -> Joined:
        """What is proven with more time, and with a faster plan to compare with."""
        self.limits = replace(self.limits, time_limit_s=time_limit_s, to_beat_s=min(to_beat_s, self.to_beat_s))
        self.ends = time.perf_counter() + time_limit_s
        for part in self.parts:
            part.is_given_up = False
        self._prove(MAX_SPLITS if hands_on else len(self.splits))
        self._list_first()
        return self._joined()

    def _is_usual(self, config: ParallelConfig) -> bool:
        pp, chunks = config.pipeline_model_parallel_size, config.num_chunks
        usual = (*layer_splits(self.instance.model.num_layers, pp, chunks), *self.space.more_splits)
        return config.layers_per_stage in usual

    def _exclude(self, model: LayerModel, index: int, layers: tuple[int, ...]) -> None:
        """Leave a split out of a family that can have it."""
        units = model.families[index].units_of(layers)
        if units is not None:
            model.exclude(index, units)

    def _simulate(self, model: LayerModel, split: LayerSplit) -> tuple[float, int]:
        """Its time on hosts as they are listed, seconds; and how many of its critical paths were new."""
        family = model.families[split.family]
        seconds, counts = self._simulated(family, split)
        new = 0 if counts is None else model.add_paths(family.schedule, counts)
        if new and counts is not None:
            self.learned.setdefault(family.schedule, []).append(counts)
        return seconds, new

    def _joined(self) -> Joined:
        """What is known now; ``INFEASIBLE`` if no other split can be faster than the time to beat."""
        waiting = [bound_s for bound_s, _ in self.waiting[:1]]
        bound_s = min([self.to_beat_s, *waiting, *(part.bound_s for part in self.parts)])
        proven = bound_s >= self.to_beat_s * (1 - 2 * FAMILY_MARGIN)
        return Joined(
            splits=tuple(self.splits),
            first=self.first,
            go_on=self._go_on,
            split_bound_s=self._split_bounds(),
            model=JointModel(
                status="INFEASIBLE" if proven else "FEASIBLE",
                bound_s=float(bound_s),
                splits=len(self.splits),
                **{**asdict(self.size), "families": len(self.modelled)},
            ),
        )


def _bases(instance: Instance, candidates: Sequence[ParallelConfig]) -> Iterator[ParallelConfig]:
    """One configuration of each family that has stages to deal layers to."""
    seen = set()
    for config in candidates:
        pp, chunks = config.pipeline_model_parallel_size, config.num_chunks
        if pp == 1 or instance.model.num_layers % chunks or instance.model.num_layers // chunks < pp:
            continue
        if (key := _FAMILY(config)) not in seen:
            seen.add(key)
            yield replace(without_overlap(config), layers_per_stage=(chunks,) * pp, pipeline_model_parallel_layout=None)


_FAMILY = attrgetter(*(one.name for one in fields(ParallelConfig) if one.name not in (*OVERLAPS, *SPLIT)))
"""What configurations of one family agree in."""

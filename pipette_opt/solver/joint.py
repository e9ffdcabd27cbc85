"""
The joint model over all families of configurations: which layers on which stages on which kinds of GPU.

Bounds that look at one family by itself say which families may win. Over these a model decides
(:mod:`pipette_opt.solver.layer_model`). What it chooses is placed on the hosts as listed and judged; the judge's
critical path becomes a constraint of the model, for every split of the layers and every family with that schedule
(logic-based Benders decomposition: Hooker and Ottosson, Mathematical Programming 96, 2003). So the model comes up to
the judge's time over the best links. What comes of it: a time to beat, the splits worth searching beside the usual
ones, and a bound on all others.

As one family is chosen, the model falls apart into parts of families: no split of any is faster than the least bound of
the parts. Parts are of such a size that CP-SAT proves them in about a second, those with the least bound come first,
and one that needs more time is halved.
"""

import threading
import time
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import asdict, dataclass, field, fields, replace
from functools import cache
from operator import attrgetter, itemgetter

import numpy as np

from pipette_opt.base.errors import MissingLinkError
from pipette_opt.base.types import FloatArray, IntArray, P2PMode
from pipette_opt.candidates import SearchSpace, layer_splits, overlap_choices
from pipette_opt.costs.layer_kinds import pure_configs
from pipette_opt.costs.placed import placed_times
from pipette_opt.costs.work import WorkBounds
from pipette_opt.judge.estimate import judge_times
from pipette_opt.judge.longest_paths import critical_counts
from pipette_opt.memory.fewest import check_memory
from pipette_opt.memory.predictor import MemoryPredictor
from pipette_opt.parallel import NodeBlock, ParallelConfig, block_placement, without_overlap
from pipette_opt.parallel.config import OVERLAPS, SPLIT
from pipette_opt.plans.plan import JointModel
from pipette_opt.problem.families import LayerFamily, Rings, layer_families, with_rings
from pipette_opt.problem.path_counts import PathCounts, plain_counts
from pipette_opt.solver.family_bounds import HALVINGS, MARGIN, FamilyBound, family_bound, load_kernel
from pipette_opt.solver.layer_model import LayerModel, LayerSplit, ModelSize, num_variables
from pipette_opt.solver.pruning import FirstPlan
from pipette_opt.specs import Instance

UNKNOWN_TIME = 4.0
"""Largest iteration time in a model before any plan is known, as a multiple of its families' least bound. Chosen."""

FIRST_CONFIGURATIONS = 512
"""
Number of configurations that are bounded before the first model, if that takes no more than half the time: the work
alone, by which they are ordered, knows nothing of tensor groups over hosts. Chosen.
"""

BETWEEN_LOOKS = 32
"""Number of configurations that are bounded between looks at the clock. Chosen."""

GROWTH = 4
"""Factor by which the number of configurations grows from model to model until a time to beat is settled. Chosen."""

MOST_VARIABLES = 1000
"""
Largest number of variables of one model, about; some 80 families with one kind of GPU and 8 with two. CP-SAT proves
models of 300 variables in a second, and in models of 5,000 it finds nothing in that time. Chosen.
"""

LEAST_SLICE_S = 1.0
"""Least time limit of a CP-SAT call that is to prove something, in seconds. Chosen."""

SLICE_SHARE = 0.1
"""Share of the time left that one CP-SAT call may take that is to prove something. Chosen."""

MOST_SPLITS = 24
"""Largest number of splits that are handed on to be searched beside the usual ones. Chosen."""

LIKELY_PATHS = 10
"""
Number of splits, chosen at random, whose critical paths a model begins with for each schedule: with none of them its
bounds of interleaved schedules stay half as high as the judge's times for many solves. Chosen.
"""

MOST_TRIES = 6
"""
Number of times that a family is bounded before a model is made, each with the critical path of the split near to the
last bound: a hundredth of a second each, where CP-SAT takes a tenth. Chosen.
"""

MOST_NODES = 400
"""Largest number of choices of kinds of GPU for some rows that a bound of a family looks at. Chosen."""

FEW_HALVINGS = 6
"""Halvings of the interval in which a bound by such a search lies: to a sixtieth of what a family may gain. Chosen."""

SETTLED = 1e-3
"""
Relative difference of judge and model below which no further critical paths of a split are asked for, where splits are
to be ruled out. Chosen.
"""

NEARLY_SETTLED = 1e-2
"""The same where a time to beat is looked for. Chosen."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JointLimits:
    """
    How long the joint model may take, and with what.

    Parameters
    ----------
    to_beat_s
        Splits that are not faster are of no interest, even before a plan is known.
    """

    time_limit_s: float
    workers: int = 2
    seed: int = 0
    to_beat_s: float = float("inf")


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
    model
        How large the model was, and what it proved about all other splits.
    go_on
        Proves on, for so many seconds, against a new time to beat, without handing on more splits.
    split_bound_s
        No plan of a configuration is faster, whatever is sent beside compute, by the bounds of its families; 0 where
        there are none.
    """

    splits: tuple[tuple[int, ...], ...]
    first: FirstPlan | None
    model: JointModel
    go_on: Callable[[float, float], JointModel]
    split_bound_s: Callable[[ParallelConfig], float]


def family_key(config: ParallelConfig) -> ParallelConfig | None:
    """
    The same for all splits of the layers and all that is sent beside compute; ``None`` for a split of no family.

    Families deal units of one layer in each chunk, and find the number of recomputed layers themselves.
    """
    pp, chunks = config.pipeline_model_parallel_size, config.num_chunks
    if pp == 1 or len(set(config.layers_per_chunk)) > 1:
        return None
    number = 1 if config.recomputation == "block" else config.recompute_num_layers
    base = without_overlap(config)
    layers = (chunks,) * pp
    return replace(base, layers_per_stage=layers, pipeline_model_parallel_layout=None, recompute_num_layers=number)


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
        Entered where a kind of schedule is judged for the first time, as that may compile kernels.
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
class _Joint:
    """The models, one after the other, and what they have in common."""

    instance: Instance
    space: SearchSpace
    predictor: MemoryPredictor
    max_oom_risk: float
    limits: JointLimits
    report: Callable[[str], None]
    stop: threading.Event
    loading: Callable[[], AbstractContextManager[None]]
    work: WorkBounds
    first: FirstPlan | None = None
    splits: dict[tuple[int, ...], None] = field(default_factory=dict)
    size: ModelSize = field(default_factory=ModelSize)
    learned: dict[tuple[int, int, int], list[PathCounts]] = field(default_factory=dict)
    """Critical paths of the judge by schedule, for every model that follows."""
    known: dict[tuple[int, int, int], tuple[int, PathCounts]] = field(default_factory=dict)
    """All paths of a schedule, and from how many pieces they were put together."""
    rings: dict[tuple[ParallelConfig, NodeBlock], Rings] = field(default_factory=dict)
    """Reductions and gathers, by what they depend on."""
    parts: list[_Part] = field(default_factory=list)
    """Families of which other splits are not yet ruled out."""
    waiting: list[tuple[float, ParallelConfig]] = field(default_factory=list)
    """Configurations of which no family was looked at yet, with the least that any split of theirs takes, in order."""
    modelled: set[LayerFamily] = field(default_factory=set)
    """Families that were in a model."""
    loaded: set[tuple[str, bool]] = field(default_factory=set)
    """What was done before with sorts of schedule (plain, interleaved), so that its kernels are loaded."""
    seen: set[tuple[tuple[int, int, int], bytes]] = field(default_factory=set)
    """Paths that were learned from splits near to bounds."""
    tried: set[tuple[LayerFamily, tuple[int, ...], bytes]] = field(default_factory=set)
    """Splits near to bounds that were judged."""
    ends: float = 0.0
    bounds_s: dict[LayerFamily, float] = field(default_factory=dict)
    """No other split of the family is faster: at first by its own bound, then by the models it was in."""
    roomy: set[ParallelConfig] = field(default_factory=set)
    """Configurations that have room for all splits on every kind of GPU."""
    slower: dict[ParallelConfig, ParallelConfig] = field(default_factory=dict)
    """Configurations with recomputation, and the same without, whose families tell enough."""
    least_s: dict[LayerFamily, float] = field(default_factory=dict)
    """No split of the family is faster, the usual ones included."""

    @property
    def to_beat_s(self) -> float:
        return min(self.limits.to_beat_s, float("inf") if self.first is None else self.first.seconds)

    @property
    def is_over(self) -> bool:
        return self.stop.is_set() or self.seconds_left <= 0

    @property
    def seconds_left(self) -> float:
        return self.ends - time.perf_counter()

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
            enough, families = min(able, max(FIRST_CONFIGURATIONS, GROWTH * count)), []
            while count < enough and not (count and self.seconds_left < (half if self.first is None else 0.0)):
                some = bounded[count : min(count + BETWEEN_LOOKS, enough)]
                families += self._families([base for _, base in some])
                count += len(some)
            self._bound_again(self._able(families))
        self.waiting = bounded[count:]
        self._list_first()
        self.parts = self._parts(self._narrowed(self._able(self.bounds_s)))
        self._prove(MOST_SPLITS)
        self._list_first()
        return self._joined()

    def _list_first(self) -> None:
        """The split of the time to beat is searched with the usual ones, or nobody would have that plan."""
        if self.first is not None and not self._is_usual(self.first.config):
            self.splits[self.first.config.layers_per_stage] = None

    def _families(self, bases: Sequence[ParallelConfig]) -> list[LayerFamily]:
        """
        Families of some configurations that may be faster than the time to beat, bounded.

        Recomputation makes nothing faster: where all splits have room without, those families tell enough.
        """
        families = self._families_of([base for base in bases if base.recomputation is None])
        others = {base: without_recomputation(base) for base in bases if base.recomputation is not None}
        self.slower.update((base, faster) for base, faster in others.items() if faster in self.roomy)
        return families + self._families_of([base for base in others if base not in self.slower])

    def _families_of(self, bases: Sequence[ParallelConfig]) -> list[LayerFamily]:
        plain = layer_families(self.instance, bases, self.predictor, self.max_oom_risk)
        tight = {family_key(one.config) for one in plain if one.most_units.min() <= one.num_units - one.schedule[0]}
        self.roomy.update(base for base in bases if family_key(base) not in tight)
        able = []
        for family in plain:
            bound_s = self._bound(family, halvings=0).seconds
            if bound_s < self.to_beat_s:
                able.append(family)
            else:
                self.least_s[family] = bound_s
        choices = ((family, overlap_choices(self.space, family.config)) for family in able)
        more = [with_rings(self.instance, one, config, self.rings) for one, configs in choices for config in configs]
        for family in more:
            self.bounds_s[family] = self.least_s[family] = self._bound(family).seconds
        return more

    def _bound(self, family: LayerFamily, halvings: int = HALVINGS, nodes: int = 0) -> FamilyBound:
        """By the paths that are known of its schedule."""
        paths, least_s = self._known_paths(family.schedule), self.least_s.get(family, 0.0)
        return family_bound(family, self._hosts_of_kind(), self.to_beat_s, paths, halvings, nodes, least_s)

    def _known_paths(self, schedule: tuple[int, int, int]) -> PathCounts:
        some = [plain_counts(*schedule), *self.learned.get(schedule, [])]
        number, paths = self.known.get(schedule, (0, some[0]))
        if number != len(some):
            paths = PathCounts.joined(some)
            self.known[schedule] = len(some), paths
        return paths

    def _bound_again(self, families: Sequence[LayerFamily]) -> list[LayerFamily]:
        """Those that may still be faster than the time to beat, by all paths that are known now."""
        able = []
        for family in families:
            if self.is_over:
                able.append(family)
                continue
            if self.bounds_s[family] >= self.to_beat_s:
                continue
            self._learn_likely([family])
            self._bound_with_tries(family, HALVINGS)
            if self.bounds_s[family] < self.to_beat_s:
                able.append(family)
        return able

    def _narrowed(self, families: Sequence[LayerFamily]) -> list[LayerFamily]:
        """Those that may still be faster by a search over the kinds of GPU of their rows, the least bounds first."""
        if len(self._hosts_of_kind()) > 1:
            for family in families:
                if self.is_over:
                    break
                if self.bounds_s[family] < self.to_beat_s:
                    self._bound_with_tries(family, FEW_HALVINGS, MOST_NODES)
        return self._able(families)

    def _bound_with_tries(self, family: LayerFamily, halvings: int, nodes: int = 0) -> None:
        """Bound a family with the critical paths of splits near to its bounds, until these are known."""
        for _ in range(MOST_TRIES):
            found = self._bound(family, halvings, nodes)
            self.bounds_s[family] = max(found.seconds, self.bounds_s[family])
            self.least_s[family] = max(found.seconds, self.least_s[family])
            if found.split is None or not self._try(family, found.split):
                return

    def _able(self, families: Iterable[LayerFamily]) -> list[LayerFamily]:
        """Those that may be faster than the time to beat, the most promising first."""
        able = [family for family in families if self.bounds_s[family] < self.to_beat_s]
        return sorted(able, key=lambda family: self.bounds_s[family])

    def _hosts_of_kind(self) -> IntArray:
        cluster = self.instance.cluster
        return np.bincount(cluster.kind_of_node, minlength=len(cluster.gpu_kinds)).astype(np.int64)

    def _learn_likely(self, families: Sequence[LayerFamily]) -> None:
        """Paths that are critical somewhere, of schedules that are new."""
        for family in families:
            if family.schedule not in self.learned:
                with self._loaded("paths", family):
                    self.learned[family.schedule] = [likely_paths(family, self._hosts_of_kind(), self.instance.p2p)]

    @contextmanager
    def _loaded(self, what: str, family: LayerFamily) -> Iterator[None]:
        """Where a sort of schedule may be judged for the first time: compiling is no part of the limit."""
        sort = what, family.config.num_chunks > 1
        if sort in self.loaded:
            yield
            return
        begun = time.perf_counter()
        with self.loading():
            yield
        self.loaded.add(sort)
        self.ends += time.perf_counter() - begun

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

    def _parts(self, families: Sequence[LayerFamily], most: int = MOST_VARIABLES) -> list[_Part]:
        """Families in models of no more variables than that, those with like bounds together."""
        ordered = sorted(families, key=lambda family: self.bounds_s[family])
        return [_Part(families=one, bound_s=self.bounds_s[one[0]]) for one in self._in_models(ordered, most)]

    def _in_models(self, families: Sequence[LayerFamily], most: int = MOST_VARIABLES) -> Iterator[list[LayerFamily]]:
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
        families, limit_s = part.families, max(LEAST_SLICE_S, SLICE_SHARE * self.seconds_left)
        ends = time.perf_counter() + limit_s
        model = part.model = part.model or self._model_of_others(families)
        while True:
            model.below(self.to_beat_s)
            self.report(f"proving all other splits of the layers slower but for {len(self.splits)}")
            split, bound_s = self._solve(model, ends - time.perf_counter())
            bound_s *= 1 - MARGIN
            if split is None and bound_s >= self.to_beat_s * (1 - 2 * MARGIN):
                return []
            part.bound_s = max(part.bound_s, bound_s)
            self.bounds_s.update((family, max(bound_s, self.bounds_s[family])) for family in families)
            if split is None or self.is_over or time.perf_counter() >= ends:
                if len(families) == 1 or self.is_over:
                    return [part]
                kinds = len(self.instance.cluster.gpu_kinds)
                return self._parts(families, sum(num_variables(family, kinds) for family in families) // 2)
            seconds, new = self._judge(model, split)
            if new and split.bound_s < (1 - SETTLED) * seconds:
                continue  # with its critical path the model may turn it down
            if len(self.splits) >= most_splits:
                part.is_given_up = True
                return [part]
            self._hand_on(model.families[split.family].with_units(split.units).layers_per_stage, [part, *self.parts])

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

    def _go_on(self, time_limit_s: float, to_beat_s: float) -> JointModel:
        """What is proven with more time, and with a faster plan to compare with; no more splits are handed on."""
        self.limits = replace(self.limits, time_limit_s=time_limit_s, to_beat_s=min(to_beat_s, self.to_beat_s))
        self.ends = time.perf_counter() + time_limit_s
        for part in self.parts:
            part.is_given_up = False
        self._prove(len(self.splits))
        return self._joined().model

    def _is_usual(self, config: ParallelConfig) -> bool:
        pp, chunks = config.pipeline_model_parallel_size, config.num_chunks
        usual = (*layer_splits(self.instance.model.num_layers, pp, chunks), *self.space.more_splits)
        return config.layers_per_stage in usual

    def _exclude(self, model: LayerModel, index: int, layers: tuple[int, ...]) -> None:
        """Leave a split out of a family that can have it."""
        units = model.families[index].units_of(layers)
        if units is not None:
            model.exclude(index, units)

    def _judge(self, model: LayerModel, split: LayerSplit) -> tuple[float, int]:
        """Its time on hosts as they are listed, seconds; and how many of its critical paths were new."""
        family = model.families[split.family]
        seconds, counts = self._judged(family, split)
        new = 0 if counts is None else model.add_paths(family.schedule, counts)
        if new and counts is not None:
            self.learned.setdefault(family.schedule, []).append(counts)
        return seconds, new

    def _try(self, family: LayerFamily, split: LayerSplit) -> bool:
        """
        Judge a split that comes near to the bound of a family, unless it was before: one is often a good plan.

        Returns
        -------
        bool
            Whether its critical path was not known.
        """
        key = family, split.units, split.kinds.tobytes()
        if key in self.tried:
            return False
        self.tried.add(key)
        seconds, counts = self._judged(family, split)
        if counts is None or split.bound_s >= (1 - NEARLY_SETTLED) * seconds:
            return False
        # Over the best links, as the bound is.
        kinds = np.where(split.kinds > 0, family.layer_s.sum(axis=0), 0.0).argmax(axis=1)
        units = np.array(split.units, dtype=np.float64)
        counts = critical_counts(family.times(units, kinds), family.num_microbatches, self.instance.p2p)
        path = _longest(family, counts, units, kinds)
        if (row := (family.schedule, path.table()[0].tobytes())) in self.seen:
            return False
        self.seen.add(row)
        self.learned[family.schedule].append(path)
        return True

    def _judged(self, family: LayerFamily, split: LayerSplit) -> tuple[float, PathCounts | None]:
        """The time of a split on hosts as they are listed, seconds, and its critical paths; the fastest is kept."""
        nodes = listed_hosts_of_kinds(self.instance, family, split.kinds)
        config = family.with_units(split.units, split.recomputed)
        placement = block_placement(config, family.block, nodes)
        try:
            with self._loaded("judge", family):
                times = placed_times(self.instance, config, placement)
                seconds = judge_times(times, family.num_microbatches, self.instance.p2p).iteration_time_s
                counts = critical_counts(times, family.num_microbatches, self.instance.p2p)
        except MissingLinkError:
            return float("inf"), None
        if seconds < self.to_beat_s and self._is_searched(config):
            self.first = FirstPlan(config=config, block=family.block, nodes=nodes, seconds=seconds)
        return seconds, counts

    def _is_searched(self, config: ParallelConfig) -> bool:
        """Whether a configuration with block recomputation has the number of recomputed layers that is searched."""
        if config.recomputation != "block":
            return True
        others = [one for one in pure_configs(config) if one.recomputation in self.space.recompute]
        memory = check_memory(self.instance, [*others, config], self.predictor, self.max_oom_risk)
        return any(one.config == config for one in memory.fitting)

    def _split_bounds(self) -> Callable[[ParallelConfig], float]:
        """The bound of single splits: that of their families, or where that is below the time to beat, their own."""
        of_key: dict[ParallelConfig | None, list[LayerFamily]] = {}
        for family in self.least_s:
            of_key.setdefault(family_key(family.config), []).append(family)
        for slower, faster in self.slower.items():
            of_key[family_key(slower)] = of_key.get(family_key(faster), [])
        to_beat_s = self.to_beat_s

        @cache
        def bound_s(config: ParallelConfig) -> float:
            key = family_key(config)
            families = [] if key is None else of_key.get(key, [])
            bounds = [self._bound_of_split(one, config, to_beat_s) for one in families]
            return min((bound for bound in bounds if bound is not None), default=0.0)

        return bound_s

    def _bound_of_split(self, family: LayerFamily, config: ParallelConfig, to_beat_s: float) -> float | None:
        """No plan of a family with the layers of a configuration is faster; ``None`` if it has no such split."""
        least_s, units = self.least_s[family], family.units_of(config.layers_per_stage)
        if units is None or least_s >= to_beat_s:
            return None if units is None else least_s
        only = replace(family, most_units=np.minimum(family.most_units, units))
        paths = self._known_paths(family.schedule)
        found = family_bound(only, self._hosts_of_kind(), to_beat_s, paths, FEW_HALVINGS, MOST_NODES, least_s)
        return max(found.seconds, least_s)

    def _joined(self) -> Joined:
        """What is known now; ``INFEASIBLE`` if no other split can be faster than the time to beat."""
        waiting = [bound_s for bound_s, _ in self.waiting[:1]]
        bound_s = min([self.to_beat_s, *waiting, *(part.bound_s for part in self.parts)])
        proven = bound_s >= self.to_beat_s * (1 - 2 * MARGIN)
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


def without_recomputation(config: ParallelConfig) -> ParallelConfig:
    """The same where all activations are kept."""
    return replace(config, recompute_granularity=None, recompute_method="uniform", recompute_num_layers=1)


_FAMILY = attrgetter(*(one.name for one in fields(ParallelConfig) if one.name not in (*OVERLAPS, *SPLIT)))
"""What configurations of one family agree in."""


def likely_paths(family: LayerFamily, hosts_of_kind: IntArray, p2p: P2PMode) -> PathCounts:
    """
    The longest paths of a schedule at some splits over the best links, each once.

    Rows get kinds at random, as there are hosts; stages get units by the speed of their kind, up to a random factor.
    """
    rng, rows = np.random.default_rng(0), family.grid[0]
    pool = np.repeat(np.arange(len(hosts_of_kind)), np.maximum(hosts_of_kind // family.hosts_per_row, 0))
    found = []
    for trial in range(LIKELY_PATHS):
        kinds = rng.permutation(pool)[:rows]
        kinds = np.concatenate([kinds, np.full(rows - len(kinds), int(hosts_of_kind.argmax()))])
        shares = 1.0 / family.layer_s.sum(axis=0)[np.repeat(kinds, family.block.stages)]
        shares *= rng.uniform(1.0, 2.0, len(shares)) ** (trial > 0)
        times = family.times(family.num_units * shares / shares.sum(), kinds)
        counts = critical_counts(times, family.num_microbatches, p2p)
        found.append(_longest(family, counts, family.num_units * shares / shares.sum(), kinds))
    return PathCounts.joined(found)


def _longest(family: LayerFamily, counts: PathCounts, units: FloatArray, kinds: IntArray) -> PathCounts:
    """The longest of some paths with so many units in each stage, on these kinds of each row."""
    fixed, unit = family.reduced_path_s(counts)
    stages = np.arange(len(units))
    length = (fixed + unit * units)[:, np.repeat(kinds, family.block.stages), stages].sum(axis=1)
    length += (counts.up + counts.down) @ family.times(units, kinds).send_forward_s[:, 0]
    if not family.config.overlap_grad_reduce:
        length[counts.parts > 1] = 0.0
    return counts.take(np.array([int(length.argmax())]))


def listed_hosts_of_kinds(instance: Instance, family: LayerFamily, kinds: IntArray) -> IntArray:
    """
    Hosts in the order in which they are listed, so many of each kind in each row; shape of the family's grid.

    Each row has its kinds in the same order, so that slow hosts share columns.
    """
    kind_of_node = instance.cluster.kind_of_node
    waiting = [np.flatnonzero(kind_of_node == kind).tolist() for kind in range(kinds.shape[1])]
    nodes = [[waiting[kind].pop(0) for kind, count in enumerate(row) for _ in range(count)] for row in kinds.tolist()]
    return np.array(nodes, dtype=np.int64).reshape(family.grid)

"""
Joint CP-SAT model over all partition families, which chooses layers per stage and GPU type of each row together.

First, bounds of single families show which of them may win. A CP-SAT model (:mod:`pipette_opt.solver.layer_model`) then
chooses among these. Its choice is placed on the hosts in their listed order and simulated. The simulator's critical
path becomes a constraint for every layer partition of every family with that schedule (logic-based Benders
decomposition: Hooker and Ottosson, Mathematical Programming 96, 2003). So the model's time rises towards the simulated
time over the best links.

The results are a time to beat, layer partitions worth searching beside the usual (even) ones, and a lower bound on all
other partitions.

Since a model chooses one family, the families can be divided among several models ("parts"). The least bound of the
parts bounds every partition. CP-SAT proves a part in about a second. The part with the least bound comes first; a part
that needs more time is halved.
"""

from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from operator import attrgetter, itemgetter

from pipette_opt.candidates import SearchSpace, layer_splits
from pipette_opt.costs.work import WorkBounds
from pipette_opt.memory.predictor import MemoryPredictor
from pipette_opt.parallel import ParallelConfig, without_overlap
from pipette_opt.parallel.config import OVERLAPS, SPLIT
from pipette_opt.plans.clock import Clock
from pipette_opt.plans.plan import JointModel
from pipette_opt.plans.steps import JOINT_CALL
from pipette_opt.problem.families import LayerFamily
from pipette_opt.solver.family_bounds import FAMILY_MARGIN, load_kernel
from pipette_opt.solver.family_model import num_variables
from pipette_opt.solver.layer_model import LayerModel, LayerSplit, ModelSize
from pipette_opt.solver.open_families import JointLimits, OpenFamilies
from pipette_opt.solver.pruning import FirstPlan
from pipette_opt.specs import Instance

UNKNOWN_TIME = 4.0
"""Largest iteration time in a model while no plan is known, as a multiple of its families' least bound. Chosen."""

FIRST_CONFIGURATIONS = 512
"""
Number of configurations that are bounded before the first model, if they take at most half of the time. Chosen.

They are ordered by their compute-only bound, which ignores tensor communication between hosts. With 32 configurations
on 16 hosts, bounding took as long and the first plan was 2 % slower.
"""

BETWEEN_LOOKS = 128
"""Number of configurations that are bounded between two checks of the clock. Chosen."""

FAMILIES_GROWTH = 4
"""Factor by which the number of bounded configurations grows until none may beat the fastest plan. Chosen."""

MAX_VARIABLES = 1000
"""
Approximate largest number of variables of a model: 80 partition families with one GPU type, 8 families with two.
Chosen.

CP-SAT proves models of 300 variables in a second; in a second it finds no solution of models of 5,000.
"""

MIN_SLICE_S = 1.0
"""Shortest time limit of a CP-SAT call that proves bounds, seconds. Chosen."""

MAX_SPLITS = 24
"""Largest number of layer partitions that are passed to the search beside the usual ones. Chosen."""

SETTLED = 1e-3
"""Relative difference of model and simulator below which a partition needs no further critical paths. Chosen."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Joined:
    """
    Result of the joint model.

    Parameters
    ----------
    splits
        Layers per stage of each partition that may be faster than all usual partitions.
    first
        Fastest simulated plan, on hosts in their listed order; ``None`` if no plan was simulated.
    model
        Size of the model, and its lower bound on all other partitions.
    go_on
        ``go_on(clock, upper_bound_s, allow_new_splits)`` continues the proof. The partition of a faster plan is added
        to ``splits`` in any case.
    also
        ``also(candidates)`` adds the partition families of further configurations to the proof.
    split_bound_s
        Function from a configuration to a lower bound on its iteration time under every choice of overlap, seconds; 0
        if no bound is known.
    """

    splits: tuple[tuple[int, ...], ...]
    first: FirstPlan | None
    model: JointModel
    go_on: Callable[[Clock, float, bool], "Joined"]
    also: Callable[[Sequence[ParallelConfig]], "Joined"]
    split_bound_s: Callable[[ParallelConfig], float]


def join(
    instance: Instance,
    space: SearchSpace,
    candidates: Sequence[ParallelConfig],
    predictor: MemoryPredictor,
    max_oom_risk: float,
    limits: JointLimits,
    clock: Clock,
    work: WorkBounds | None = None,
) -> Joined:
    """
    Choose degrees, layers per stage and GPU types together, and bound all layer partitions.

    Parameters
    ----------
    candidates
        Every legal configuration with one of the usual layer partitions. The proof is about all other partitions.
    work
        Cache of compute-only bounds, extended by this call.
    """
    search = _Joint(
        instance=instance,
        space=space,
        predictor=predictor,
        max_oom_risk=max_oom_risk,
        limits=limits,
        clock=clock,
        work=work or WorkBounds(instance),
    )
    return search.run(candidates)


@dataclass(slots=True, kw_only=True, eq=False)
class _Part:
    """
    Families among which one CP-SAT model chooses.

    Parameters
    ----------
    bound_s
        Lower bound on all partitions of these families that are not searched otherwise, seconds.
    is_given_up
        Whether a faster partition may exist, but no more partitions may be passed to the search.
    """

    families: list[LayerFamily]
    bound_s: float
    model: LayerModel | None = None
    is_given_up: bool = False


@dataclass(slots=True, kw_only=True, eq=False)
class _Joint(OpenFamilies):
    """State of the joint search: bounded families, models, and partitions to search."""

    work: WorkBounds
    splits: dict[tuple[int, ...], None] = field(default_factory=dict)
    size: ModelSize = field(default_factory=ModelSize)
    parts: list[_Part] = field(default_factory=list)
    """Groups of families, one model each, with partitions that are not ruled out yet."""
    waiting: list[tuple[float, ParallelConfig]] = field(default_factory=list)
    """Compute-only bounds, seconds, and configurations whose partition families are not bounded yet, ascending."""
    bases: set[ParallelConfig] = field(default_factory=set)
    """Configurations whose partition families the proof is about."""
    modelled: set[LayerFamily] = field(default_factory=set)
    """Families that have been in a CP-SAT model."""

    def run(self, candidates: Sequence[ParallelConfig]) -> Joined:
        """Find a fast plan among the most promising configurations, then prove that no other partition beats it."""
        with self.clock.loading():
            load_kernel()
        self.clock = self.clock.after(self.limits.time_limit_s)
        half = self.clock.slice(0.5)
        bounded, count = self._bounded(candidates), 0
        while True:
            able = bisect_left(bounded, self.to_beat_s, key=itemgetter(0))
            if count >= able or (count and self._bounding_is_over(half)):
                break
            enough, families = min(able, max(FIRST_CONFIGURATIONS, FAMILIES_GROWTH * count)), []
            while count < enough and not (count and self._bounding_is_over(half)):
                next_configs = bounded[count : min(count + BETWEEN_LOOKS, enough)]
                families += self._families([base for _, base in next_configs])
                count += len(next_configs)
                if self.first is None:
                    self._bound_again(self._able(families)[:1])
            self._bound_again(self._able(families))
        self.waiting = bounded[count:]
        self._list_first()
        self.parts = self._parts(self._narrowed(self._able(self.bounds_s)))
        self._prove(MAX_SPLITS)
        self._list_first()
        return self._joined()

    def _bounding_is_over(self, half: Clock) -> bool:
        """Return whether the time for bounds is over: half of it while no plan is known."""
        return (half if self.first is None else self.clock).is_over

    def _list_first(self) -> None:
        """Add the partition of the fastest simulated plan to the search, so that the search contains this plan."""
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
        limit_s = min(limit_s, self.clock.left_s)
        split, bound_s = model.solve(limit_s, self.limits.workers, self.limits.seed, self.clock.stop)
        self.size = self.size.joined(model.size)
        return split, bound_s

    def _parts(self, families: Sequence[LayerFamily], max_variables: int = MAX_VARIABLES) -> list[_Part]:
        """Return parts of at most ``max_variables`` variables; partition families with similar bounds share a part."""
        ordered = sorted(families, key=lambda family: self.bounds_s[family])
        return [
            _Part(families=members, bound_s=self.bounds_s[members[0]])
            for members in self._in_models(ordered, max_variables)
        ]

    def _in_models(
        self, families: Sequence[LayerFamily], max_variables: int = MAX_VARIABLES
    ) -> Iterator[list[LayerFamily]]:
        """Yield consecutive groups of families with at most ``max_variables`` variables, at least one family each."""
        kinds = len(self.instance.cluster.gpu_kinds)
        members: list[LayerFamily] = []
        count = 0
        for family in families:
            more = num_variables(family, kinds)
            if members and count + more > max_variables:
                yield members
                members, count = [], 0
            members.append(family)
            count += more
        if members:
            yield members

    def _prove(self, max_splits: int) -> None:
        """
        Raise the lower bound on all but the usual partitions, and pass up to ``max_splits`` faster ones to the search.

        The part with the least bound comes first, until no partition can beat the fastest plan or the time is over.
        """
        while (part := self._least_part()) is not None and not self.clock.is_over:
            if part.bound_s >= self.to_beat_s or part.is_given_up:
                break  # no other part would raise the bound
            self.parts.remove(part)
            self.parts += self._proven(part, max_splits)

    def _least_part(self) -> _Part | None:
        """Return the part with the least bound; first bound all waiting configurations of lower compute-only bound."""
        while self.waiting and not self.clock.is_over:
            least_s = min((part.bound_s for part in self.parts), default=self.to_beat_s)
            if self.waiting[0][0] >= min(least_s, self.to_beat_s):
                break
            next_configs, self.waiting = self.waiting[:BETWEEN_LOOKS], self.waiting[BETWEEN_LOOKS:]
            self.parts += self._parts(self._able(self._families([base for _, base in next_configs])))
        return min(self.parts, key=lambda part: part.bound_s, default=None)

    def _proven(self, part: _Part, max_splits: int) -> list[_Part]:
        """Search a part for a time slice, and return the parts that are left: none, the part itself, or halves."""
        if part.model is None:
            part.families = self._bound_again(part.families)
            if not part.families:
                return []
            part.bound_s = max(part.bound_s, min(self.bounds_s[family] for family in part.families))
        families, turn = part.families, self.clock.after(max(MIN_SLICE_S, self.clock.step(JOINT_CALL).left_s))
        model = part.model = part.model or self._model_of_others(families)
        while True:
            model.below(self.to_beat_s)
            found = f": {len(self.splits)} may be faster" if self.splits else ""
            self.clock.report(f"ruling out other splits of the layers{found}")
            split, bound_s = self._solve(model, turn.left_s)
            bound_s *= 1 - FAMILY_MARGIN
            if split is None and bound_s >= self.to_beat_s * (1 - 2 * FAMILY_MARGIN):
                return []
            part.bound_s = max(part.bound_s, bound_s)
            self.bounds_s.update((family, max(bound_s, self.bounds_s[family])) for family in families)
            if split is None or self.clock.is_over or turn.is_over:
                if len(families) == 1 or self.clock.is_over:
                    return [part]
                kinds = len(self.instance.cluster.gpu_kinds)
                return self._parts(families, sum(num_variables(family, kinds) for family in families) // 2)
            seconds, new = self._simulate(model, split)
            if new and split.bound_s < (1 - SETTLED) * seconds:
                continue  # the model, now with this critical path, may reject the partition
            config = model.families[split.family].with_units(split.units, split.recomputed)
            if not self._is_searched(config) and config.recomputation != "block":
                self._exclude(model, split.family, config.layers_per_stage)
                continue
            if len(self.splits) >= max_splits:
                part.is_given_up = True
                return [part]
            self._hand_on(config.layers_per_stage, [part, *self.parts])

    def _model_of_others(self, families: Sequence[LayerFamily]) -> LayerModel:
        """Return a model of the families that excludes the usual partitions and those passed to the search."""
        model, num_layers = self._model(families), self.instance.model.num_layers
        for index, family in enumerate(families):
            config = family.config
            usual = layer_splits(num_layers, config.pipeline_model_parallel_size, config.num_chunks)
            for layers in dict.fromkeys((*usual, *self.space.more_splits, *self.splits)):
                self._exclude(model, index, layers)
        return model

    def _hand_on(self, layers: tuple[int, ...], parts: Sequence[_Part]) -> None:
        """Pass a partition to the search, and exclude it from the models of ``parts``."""
        self.splits[layers] = None
        for part in parts:
            if part.model is not None:
                for index in range(len(part.families)):
                    self._exclude(part.model, index, layers)

    def _go_on(self, clock: Clock, to_beat_s: float, hands_on: bool) -> Joined:
        """Continue the proof with more time, and against a faster plan if one is known."""
        self.limits = replace(self.limits, to_beat_s=min(to_beat_s, self.to_beat_s))
        self.clock = clock
        for part in self.parts:
            part.is_given_up = False
        self._prove(MAX_SPLITS if hands_on else len(self.splits))
        self._list_first()
        return self._joined()

    def _bounded(self, candidates: Sequence[ParallelConfig]) -> list[tuple[float, ParallelConfig]]:
        """Return the compute-only bound of each new partition family, seconds, with its configuration, ascending."""
        bases = [base for base in _bases(self.instance, candidates) if base not in self.bases]
        self.bases.update(bases)
        bounded = ((self._work_s(base), base) for base in bases)
        return sorted((pair for pair in bounded if pair[0] < float("inf")), key=itemgetter(0))

    def _work_s(self, base: ParallelConfig) -> float:
        """Return the compute-only bound of a partition family, seconds; a cheaper one if that is enough."""
        bound_s = self.work.at_full_rate(base)
        return bound_s if bound_s >= self.to_beat_s else self.work.of_any_split(base)

    def _also(self, candidates: Sequence[ParallelConfig]) -> Joined:
        """Add the families of further configurations to those that are not bounded yet."""
        self.waiting = sorted((*self.waiting, *self._bounded(candidates)), key=itemgetter(0))
        return self._joined()

    def _is_usual(self, config: ParallelConfig) -> bool:
        pp, chunks = config.pipeline_model_parallel_size, config.num_chunks
        usual = (*layer_splits(self.instance.model.num_layers, pp, chunks), *self.space.more_splits)
        return config.layers_per_stage in usual

    def _exclude(self, model: LayerModel, index: int, layers: tuple[int, ...]) -> None:
        """Exclude a partition from the model if the family at ``index`` contains it."""
        units = model.families[index].units_of(layers)
        if units is not None:
            model.exclude(index, units)

    def _simulate(self, model: LayerModel, split: LayerSplit) -> tuple[float, int]:
        """Return simulated seconds of a partition on hosts in listed order, and the number of new critical paths."""
        family = model.families[split.family]
        seconds, counts = self._simulated(family, split)
        new = 0 if counts is None else model.add_paths(family.schedule, counts)
        if new and counts is not None:
            self.learned.setdefault(family.schedule, []).append(counts)
        return seconds, new

    def _joined(self) -> Joined:
        """Return the result so far; its status is ``INFEASIBLE`` if no other partition can beat the fastest plan."""
        waiting = [bound_s for bound_s, _ in self.waiting[:1]]
        bound_s = min([self.to_beat_s, *waiting, *(part.bound_s for part in self.parts)])
        proven = bound_s >= self.to_beat_s * (1 - 2 * FAMILY_MARGIN)
        return Joined(
            splits=tuple(self.splits),
            first=self.first,
            go_on=self._go_on,
            also=self._also,
            split_bound_s=self._split_bounds(),
            model=JointModel(
                status="INFEASIBLE" if proven else "FEASIBLE",
                bound_s=float(bound_s),
                splits=len(self.splits),
                **{**asdict(self.size), "families": len(self.modelled)},
            ),
        )


def _bases(instance: Instance, candidates: Sequence[ParallelConfig]) -> Iterator[ParallelConfig]:
    """Yield a configuration for each partition family of several stages, with the fewest layers on each."""
    seen = set()
    for config in dict.fromkeys(map(without_overlap, candidates)):
        pp, chunks = config.pipeline_model_parallel_size, config.num_chunks
        if pp == 1 or instance.model.num_layers % chunks or instance.model.num_layers // chunks < pp:
            continue
        if (key := _FAMILY(config)) not in seen:
            seen.add(key)
            yield replace(config, layers_per_stage=(chunks,) * pp, pipeline_model_parallel_layout=None)


_FAMILY = attrgetter(*(option.name for option in fields(ParallelConfig) if option.name not in (*OVERLAPS, *SPLIT)))
"""Fields that are equal for all configurations of a partition family."""

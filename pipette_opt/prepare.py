"""
Preparation of the search: legal configurations, joint model, memory, pruning, and the integer placement problem.

Before the joint model runs, a time to beat is searched among configurations with one stage, which have no layers to
partition. With :data:`MANY_HOSTS` or more, it is searched among all configurations. Single configurations are bounded
after the joint model.
"""

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import KW_ONLY, dataclass, field, replace
from functools import partial
from operator import attrgetter, itemgetter

from pipette_opt.base.errors import InfeasibleError, InputError
from pipette_opt.base.risk import IGNORED_RISK, SMALLEST_RISK
from pipette_opt.base.types import IntArray
from pipette_opt.base.units import counted
from pipette_opt.candidates import (
    Enumeration,
    SearchSpace,
    contradiction,
    enumerate_more,
    enumerate_with_reasons,
    layers_are_free,
    with_data_parallelism_alone,
    with_shared_parameters,
)
from pipette_opt.costs.work import WorkBounds
from pipette_opt.memory.fewest import check_memory, check_more
from pipette_opt.memory.filter import CheckedConfig, MemoryCheck, usable_bytes
from pipette_opt.memory.predictor import MemoryPredictor, stack_predictor
from pipette_opt.parallel import ParallelConfig, without_overlap
from pipette_opt.plans.clock import Clock
from pipette_opt.plans.steps import BOUNDS, BUILDING, LAYOUTS, TIME_TO_BEAT, WORLD_SIZES
from pipette_opt.problem.build import FittingCandidate, Relaxations, build_relaxations
from pipette_opt.problem.data import ProblemData
from pipette_opt.problem.ticks import SharedLinks
from pipette_opt.simulate.least_times import LeastTimes, may_win
from pipette_opt.solver.joint import Joined, join
from pipette_opt.solver.layouts import near_layouts
from pipette_opt.solver.narrowing import few_values, narrowed
from pipette_opt.solver.open_families import JointLimits
from pipette_opt.solver.pruning import FirstPlan, Pruned, Pruning, prune
from pipette_opt.solver.world_sizes import (
    WorldSizes,
    first_world_sizes,
    has_time_for,
    hopeful_sizes,
    with_bound,
    with_size,
)
from pipette_opt.specs import ClusterSpec, Instance

MANY_HOSTS = 64
"""
With at least this many hosts, a time to beat is searched among all configurations before the joint model. Chosen.

The joint model only simulates hosts in listed order. With many hosts, that loses more than its partitions gain.
"""

MEMORY_SHARE = 0.15
"""
Fraction of the machine's memory for link costs between hosts. Chosen.

Searches copy the costs of the candidate configurations that they place, so the process takes about twice as much.
"""

MAX_LINK_BYTES = 3 << 30
"""Largest size of the link costs between hosts, bytes. Chosen."""

LAYOUT_STARTS = 8
"""Configurations of a pipeline size among which the start of its uneven model chunks is chosen. Chosen."""

LAYOUT_GAIN = 1.1
"""
Largest factor by which a plan of another pipeline size may be slower than the fastest and still be a start. Chosen:
on four jobs (8B, 30B, two of 70B), none that began farther away became the fastest.
"""

NEAR = 0.01
"""Relative time beyond the fastest plan up to which a plan's layout is searched with all degrees. Chosen."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Prepared:
    """
    Input of the search: legal configurations, those that fit, and the integer placement problem.

    Parameters
    ----------
    problem
        Each candidate with its relaxation.
    pruned
        Result of pruning, with the configurations left out of the problem; ``None`` without pruning.
    space
        Searched space, with the partitions that the joint model chose.
    joined
        Result of the joint model; ``None`` if it did not run.
    links
        Link matrices of the problem, for problems of further configurations.
    instance
        The job; on relaxed hosts if links of single GPUs are known.
    given_cluster
        Hosts as given, if links of single GPUs are known; else ``None``.
    other_sizes_s
        Lower bound on plans with other numbers of GPUs, seconds; infinite if the search did not choose the number.
    least_times
        Bounds by number of GPUs, if numbers of GPUs are not bounded yet; else ``None``.
    other_splits_s
        Lower bound on plans with other layer partitions, seconds, if it does not come from the joint model.
    work
        Compute-only bounds found so far.
    """

    instance: Instance
    enumeration: Enumeration
    predictor: MemoryPredictor
    memory: MemoryCheck
    problem: ProblemData
    pruned: Pruned | None = None
    space: SearchSpace = field(default_factory=SearchSpace)
    joined: Joined | None = None
    links: SharedLinks | None = None
    given_cluster: ClusterSpec | None = None
    other_sizes_s: float = float("inf")
    least_times: LeastTimes | None = None
    other_splits_s: float = float("inf")
    work: WorkBounds

    @property
    def given(self) -> Instance:
        """Job on the hosts as given, with the links of single GPUs if known."""
        return self.instance if self.given_cluster is None else replace(self.instance, cluster=self.given_cluster)

    @property
    def has_slots(self) -> bool:
        """Return whether links of single GPUs are known, so that the GPU of each rank inside its host matters."""
        return self.given_cluster is not None

    @property
    def left_out(self) -> list[FittingCandidate]:
        """Configurations that fit but are not in the problem."""
        listed = {candidate.config for candidate in self.problem.candidates}
        return [candidate for candidate in fitting_candidates(self.memory) if candidate.config not in listed]


@dataclass(frozen=True, slots=True)
class Question:
    """
    Job and search space for which a plan is asked.

    Parameters
    ----------
    max_oom_risk
        Accepted probability of running out of memory; 1: memory does not count.
    keep
        Predicate of configurations that are kept even if a cheap bound rules them out; by default all.
    joint
        Limits of the joint model; ``None``: it does not run. It also does not run if layers per stage are pinned.
    first
        Warm start: a known plan of this job, whose time has to be beaten.
    like
        Earlier preparation of the same space and job, without a joint model, on hosts of one type. Its legal and
        fitting configurations are reused; the number of hosts and their links may have changed.
    chooses_sizes
        Whether to choose numbers of GPUs if the space leaves them free (:mod:`~pipette_opt.solver.world_sizes`).
    on_first
        Called with the preparation of a few configurations and the fastest plan among them, before all are enumerated.
    """

    instance: Instance
    space: SearchSpace
    max_oom_risk: float
    _: KW_ONLY
    keep: Callable[[ParallelConfig], bool] = lambda config: True
    joint: JointLimits | None = None
    first: FirstPlan | None = None
    like: Prepared | None = None
    chooses_sizes: bool = False
    on_first: Callable[[Prepared], None] = lambda prepared: None


def prunes(config: ParallelConfig) -> bool:
    """Return ``False``: as :attr:`Question.keep`, let cheap bounds rule out any configuration."""
    return False


def prepare(question: Question, clock: Clock | None = None) -> Prepared:
    """
    Enumerate configurations, drop those that do not fit or cannot be best, and build the integer problem of the rest.

    A space too large for the time limit is narrowed first (:mod:`~pipette_opt.solver.narrowing`), unless no
    configuration of the narrowed space fits. Configurations that bounding has no time for are left out, with weaker
    bounds. Raises ``InfeasibleError`` with the reasons if no configuration is legal or fits. Raises ``InputError`` if
    none is legal because pins contradict each other or the job.
    """
    clock, like, sizes = clock or Clock(), question.like, None
    relaxed = replace(question.instance, cluster=question.instance.cluster.relaxed())
    work = WorkBounds(relaxed)
    space = question.space if like is None else like.space
    if question.chooses_sizes and like is None and space.num_gpus is None and not space.world_sizes:
        clock.report("looking for a first plan")
        sizes = _first_sizes(question, work, clock.step(WORLD_SIZES))
        space, question = sizes.space, replace(question, first=sizes.first)
    clock.report("enumerating candidates", None if question.first is None else question.first.seconds)
    narrow = space if like is not None else narrowed(question.instance, space, clock)
    try:
        prepared = _prepare(replace(question, space=narrow), relaxed, work, clock)
    except (InfeasibleError, InputError):
        if narrow == space:  # a narrowed space alone does not show that nothing fits
            raise
        prepared = _prepare(replace(question, space=space), relaxed, work, clock)
    if like is not None:
        return replace(prepared, other_sizes_s=_bound_of_other_sizes_s(question, like.space, clock))
    if sizes is None or sizes.first is None or "world_sizes" not in prepared.space.narrowed:
        return prepared
    return replace(prepared, least_times=LeastTimes(relaxed, prepared.space, work))


def _first_sizes(question: Question, work: WorkBounds, clock: Clock) -> WorldSizes:
    """Return the numbers of GPUs to search at first."""
    known = partial(_first_of_few, question, work, clock)
    return first_world_sizes(work, question.space, known if question.first is None else question.first)


def _first_of_few(question: Question, work: WorkBounds, clock: Clock, sizes: tuple[int, ...]) -> FirstPlan | None:
    """Return the fastest plan of a few configurations on hosts in listed order; ``None`` if no plan fits."""
    instance, risk = work.instance, question.max_oom_risk
    space = replace(question.space, world_sizes=sizes, narrowed=(*question.space.narrowed, "world_sizes"))
    space, predictor = few_values(instance, space), load_predictor(risk, instance)
    enumeration = enumerate_with_reasons(instance, space)
    memory = check_memory(instance, enumeration.candidates, predictor, risk)
    if not memory.fitting:
        return None
    pruned = prune(work, fitting_candidates(memory), memory.capacity_bytes, clock)
    if (first := pruned.first) is not None and question.instance.cluster.gpu_links is None:
        of_plan = tuple(candidate for candidate in pruned.kept if candidate.config == first.config)
        built, pruned = _build_kept(instance, replace(pruned, kept=of_plan), memory.capacity_bytes, prunes, clock)
        prepared = Prepared(
            instance=instance,
            enumeration=enumeration,
            predictor=predictor,
            memory=memory,
            problem=built.problem,
            pruned=pruned,
            space=space,
            links=built.links,
            work=work,
        )
        question.on_first(prepared)
    return first


def _bound_of_other_sizes_s(question: Question, space: SearchSpace, clock: Clock) -> float:
    """Return a lower bound on plans with GPU numbers outside of the space, seconds; infinite if it has all."""
    if not space.world_sizes:
        return float("inf")
    clock, enough_s = clock.step(WORLD_SIZES), float("inf") if question.first is None else question.first.seconds
    least = LeastTimes(question.instance, with_shared_parameters(question.instance, space))
    others = [size for size in least.numbers if size not in space.world_sizes]
    return min(
        (
            least.at_peak_s(size) if least.at_peak_s(size) >= enough_s or clock.is_over else least(size)
            for size in others
        ),
        default=float("inf"),
    )


def _prepare(question: Question, relaxed: Instance, work: WorkBounds, clock: Clock) -> Prepared:
    """Prepare a space as :func:`prepare` does, without narrowing it; the job is ``relaxed``."""
    instance, like, risk = question.instance, question.like, question.max_oom_risk
    space = question.space
    if like is None:
        space = with_data_parallelism_alone(instance, with_shared_parameters(instance, space))
    keep = may_win(work, space)
    enumeration = enumerate_with_reasons(relaxed, space, keep) if like is None else like.enumeration
    if not enumeration.candidates:
        raise contradiction(relaxed, space) or InfeasibleError(enumeration.explain())
    bounding = _Bounding(question, relaxed, work, load_predictor(risk, relaxed), clock)
    clock.report(f"predicting the memory of {counted(len(enumeration.candidates), 'candidate')}")
    if like is None:
        memory = check_memory(relaxed, enumeration.candidates, bounding.predictor, risk)
    else:
        memory = replace(like.memory, capacity_bytes=usable_bytes(relaxed.cluster, bounding.predictor))
    joined = None
    if question.joint is not None and layers_are_free(relaxed, space):
        joined, wider = bounding.join(space, enumeration.candidates, memory, question.joint)
        if wider != space:
            usual, enumeration = enumeration, enumerate_more(relaxed, wider, space, enumeration, keep)
            more, space = enumeration.candidates[len(usual.candidates) :], wider
            memory = check_more(relaxed, memory, usual.candidates, more, bounding.predictor)
    if not memory.fitting:
        lines = (enumeration.explain(), memory.explain(), memory.way_out())
        raise InfeasibleError("\n".join(filter(None, lines)))
    built, pruned = bounding.problems(memory, enumeration.candidates)
    return Prepared(
        instance=relaxed,
        enumeration=enumeration,
        predictor=bounding.predictor,
        memory=memory,
        problem=built.problem,
        pruned=pruned,
        space=space,
        joined=joined,
        links=built.links,
        given_cluster=instance.cluster if bounding.has_slots else None,
        work=work,
    )


@dataclass(slots=True)
class _Bounding:
    """
    Joint model and bounds of the configurations of a question.

    Parameters
    ----------
    instance
        Job on relaxed hosts.
    first
        Fastest known plan; ``None`` if no plan is known.
    """

    question: Question
    instance: Instance
    work: WorkBounds
    predictor: MemoryPredictor
    clock: Clock
    first: FirstPlan | None = field(init=False)
    joined: Joined | None = field(init=False, default=None)

    def __post_init__(self) -> None:
        self.first = self.question.first

    @property
    def has_slots(self) -> bool:
        """Return whether links of single GPUs are known."""
        return self.question.instance.cluster.gpu_links is not None

    def join(
        self, space: SearchSpace, candidates: Sequence[ParallelConfig], memory: MemoryCheck, joint: JointLimits
    ) -> tuple[Joined, SearchSpace]:
        """
        Run the joint model. Return its result, and the space with the partitions and layouts that it found.

        Parameters
        ----------
        candidates, memory
            Every legal configuration with one of the usual layer partitions, and the check of their memory.
        """
        many = self.instance.cluster.num_nodes >= MANY_HOSTS
        beside = tuple(fits for fits in memory.fitting if many or fits.config.pipeline_model_parallel_size == 1)
        if beside and not all(map(self.question.keep, candidates)):
            self.clock.report(f"looking for a fast plan among {counted(len(beside), 'configuration')}")
            self.first = self.pruned(replace(memory, fitting=beside), anneals=many).first
        if self.first is not None:
            joint = replace(joint, to_beat_s=min(self.first.seconds, joint.to_beat_s))
        risk = memory.max_oom_risk
        joined = join(self.instance, space, candidates, self.predictor, risk, joint, self.clock, self.work)
        self.joined, self.first = joined, joined.first or self.first
        wider = replace(space, more_splits=(*space.more_splits, *joined.splits))
        if self.first is None:
            return joined, wider
        self.clock.report("moving layers between model chunks")
        clock = self.clock.step(LAYOUTS)
        near = near_layouts(self.instance, wider, self.first, self.predictor, risk, clock)
        self.first = min((self.first, *near), key=attrgetter("seconds"))
        others = self._of_other_depths(self.first, memory, clock) if memory.fitting else ()
        for start in others:
            near += near_layouts(self.instance, wider, start, self.predictor, risk, clock.slice(0.5))
            self.first = min((self.first, *near), key=attrgetter("seconds"))
        enough_s = self.first.seconds * (1 + NEAR)
        layouts = (str(plan.config.pipeline_model_parallel_layout) for plan in near if plan.seconds <= enough_s)
        return joined, replace(wider, more_layouts=tuple(dict.fromkeys((*wider.more_layouts, *layouts))))

    def _of_other_depths(self, first: FirstPlan, memory: MemoryCheck, clock: Clock) -> Iterator[FirstPlan]:
        """Yield a plan of every other pipeline size that may beat ``first`` with uneven chunks, best bounds first."""
        fewest = min(fits.config.num_chunks for fits in memory.fitting)  # the start's own chunks hardly matter
        bounded = ((self.work(fits.config), fits) for fits in memory.fitting if fits.config.num_chunks == fewest)
        of_depth: dict[int, list[CheckedConfig]] = {}
        for bound_s, fits in sorted(bounded, key=itemgetter(0)):
            if bound_s < LAYOUT_GAIN * first.seconds:
                of_depth.setdefault(fits.config.pipeline_model_parallel_size, []).append(fits)
        for depth, members in of_depth.items():
            if depth not in (1, first.config.pipeline_model_parallel_size) and not clock.is_over:
                few = fitting_candidates(replace(memory, fitting=tuple(members[:LAYOUT_STARTS])))
                start = prune(self.work, few, memory.capacity_bytes, clock).first
                if start is not None and start.seconds < LAYOUT_GAIN * first.seconds:
                    yield start

    def problems(self, memory: MemoryCheck, candidates: Sequence[ParallelConfig]) -> tuple[Relaxations, Pruned | None]:
        """Build the problems of the configurations that fit and that cheap bounds do not rule out."""
        if not all(map(self.question.keep, candidates)):
            self.clock.report(f"bounding {counted(len(memory.fitting), 'configuration')}")
            pruned = self.pruned(memory)
            self.clock.report(f"preparing to place {counted(len(pruned.kept), 'configuration')}")
            clock = self.clock.step(BUILDING)
            return _build_kept(self.instance, pruned, memory.capacity_bytes, self.question.keep, clock)
        fitting = fitting_candidates(memory)
        relaxations = build_relaxations(
            self.instance, fitting, memory.capacity_bytes, is_enough=lambda num_bytes, num_built: _too_large(num_bytes)
        )
        if len(relaxations.built) < len(fitting):
            raise _refusal(self.instance, fitting)
        return relaxations, None

    def pruned(self, memory: MemoryCheck, *, anneals: bool = True) -> Pruned:
        """Prune configurations by cheap bounds, in a fraction of the remaining time."""
        pruning = Pruning(
            keep=self.question.keep,
            known=self.first,
            annealing_s=self.clock.step(TIME_TO_BEAT).left_s if anneals else 0.0,
            given=self.question.instance if self.has_slots else None,
            family_bound_s=(lambda config: 0.0) if self.joined is None else self.joined.split_bound_s,
        )
        return prune(self.work, fitting_candidates(memory), memory.capacity_bytes, self.clock.step(BOUNDS), pruning)


def with_configurations(
    prepared: Prepared,
    fitting: Sequence[FittingCandidate],
    first: FirstPlan,
    clock: Clock,
    least_s: Callable[[ParallelConfig], float] = lambda config: 0.0,
) -> Prepared:
    """
    Bound configurations that are not in the problem, and add those that may be faster than a known plan.

    Parameters
    ----------
    first
        Fastest known plan; its configuration is added in any case.
    clock
        Time limit; once it is over, only that configuration is added.
    least_s
        Function to a known lower bound of a configuration without overlap, seconds.
    """
    instance, joined, pruned = prepared.instance, prepared.joined, prepared.pruned
    assert pruned is not None
    capacity_bytes = prepared.memory.capacity_bytes
    pruning = Pruning(
        known=first,
        given=prepared.given if prepared.has_slots else None,
        family_bound_s=lambda config: max(least_s(config), 0.0 if joined is None else joined.split_bound_s(config)),
    )
    more = prune(prepared.work, fitting, capacity_bytes, clock.slice(1 - BUILDING.share), pruning)
    built, more = _build_kept(
        instance, more, capacity_bytes, lambda config: config == first.config, clock, prepared.links
    )
    return replace(prepared, problem=prepared.problem.joined(built.problem), pruned=pruned.joined(more))


def with_splits(prepared: Prepared, first: FirstPlan, clock: Clock, least_s: float) -> Prepared:
    """
    Add the layer partitions that the joint model found since, and the configuration of the fastest plan.

    Parameters
    ----------
    least_s
        Lower bound on plans with a new partition, seconds.
    """
    joined, splits = prepared.joined, prepared.space.more_splits
    assert joined is not None
    space = replace(prepared.space, more_splits=tuple(dict.fromkeys((*splits, *joined.splits))))
    return _with_space(prepared, space, first, clock, least_s)


def with_single_changes(prepared: Prepared, first: FirstPlan, clock: Clock) -> Prepared:
    """Add the single changes of the fastest plan that may be faster; all are bounded, by the joint model, too."""
    space = replace(prepared.space, near=(*prepared.space.near, first.config))
    return _with_families(prepared, _with_space(prepared, space, first, clock))


def with_world_sizes(prepared: Prepared, first: FirstPlan, limits: JointLimits, clock: Clock) -> Prepared:
    """
    Bound the other numbers of GPUs, and add the configurations of those that may beat a known plan.

    A number is added once a joint model of its own shows that no other layer partition on it is faster, or finds a
    faster plan. Numbers whose proof does not end in time stay left out, so that they do not lower the bound.

    Parameters
    ----------
    first
        Fastest known plan.
    limits
        Time to beat, and limits of each joint model.
    """
    least, to_beat_s = prepared.least_times, limits.to_beat_s
    assert least is not None
    for size in hopeful_sizes(least, prepared.space, to_beat_s, clock):
        if not has_time_for(least.instance, prepared.space, size, clock):
            break
        more = _with_space(prepared, with_size(prepared.space, size, to_beat_s), first, clock)
        if clock.is_over:
            break
        if prepared.joined is not None:
            new = more.enumeration.candidates[len(prepared.enumeration.candidates) :]
            risk = prepared.memory.max_oom_risk
            alone = join(more.instance, more.space, new, more.predictor, risk, limits, clock, prepared.work)
            if alone.first is not None:
                more = _with_families(prepared, more)
            elif alone.splits or alone.model.status != "INFEASIBLE":
                break
        prepared = more
    space, left_out_s = with_bound(least, prepared.space, to_beat_s)
    is_whole = "world_sizes" not in space.narrowed
    return replace(prepared, space=space, other_sizes_s=left_out_s, least_times=None if is_whole else least)


def _with_families(before: Prepared, prepared: Prepared) -> Prepared:
    """Return the preparation with the partition families of its new configurations in the joint model."""
    new = prepared.enumeration.candidates[len(before.enumeration.candidates) :]
    return replace(prepared, joined=prepared.joined.also(new)) if prepared.joined is not None else prepared


def _with_space(
    prepared: Prepared, space: SearchSpace, first: FirstPlan, clock: Clock, least_s: float = 0.0
) -> Prepared:
    """
    Add the configurations of a wider space that may be faster than a known plan, and the configuration of that plan.

    Parameters
    ----------
    least_s
        Lower bound on plans of the new configurations, seconds.
    """
    memory = prepared.memory
    keep = may_win(prepared.work, space)
    enumeration = enumerate_more(prepared.instance, space, prepared.space, prepared.enumeration, keep)
    known = prepared.enumeration.candidates
    if new := enumeration.candidates[len(known) :]:
        memory = check_more(prepared.instance, memory, known, new, prepared.predictor)
    prepared = replace(prepared, space=space, enumeration=enumeration, memory=memory)
    # Memory decides how many layers the new configurations recompute, so they are told by having no bound.
    bounds_s = {} if prepared.pruned is None else prepared.pruned.bounds_s
    fitting = [
        candidate
        for candidate in prepared.left_out
        if candidate.config == first.config or without_overlap(candidate.config) not in bounds_s
    ]
    if not fitting:
        return prepared
    return with_configurations(prepared, fitting, first, clock, lambda config: 0.0 if config in bounds_s else least_s)


def _too_large(num_bytes: int) -> bool:
    """Return whether link costs of ``num_bytes`` exceed their fraction of the machine's memory."""
    machine = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return num_bytes > min(MEMORY_SHARE * machine, MAX_LINK_BYTES)


def _build_kept(
    instance: Instance,
    pruned: Pruned,
    capacity_bytes: IntArray,
    keep: Callable[[ParallelConfig], bool],
    clock: Clock,
    links: SharedLinks | None = None,
) -> tuple[Relaxations, Pruned]:
    """
    Build the problems of the configurations that pruning kept, most promising first, within memory and time.

    The configurations that are not built are left out. Configurations that must be kept come first, whatever the time.
    """
    kept, bounds = pruned.kept, pruned.bounds_s
    first = None if pruned.first is None else pruned.first.config
    order = sorted(
        range(len(kept)),
        key=lambda index: (
            kept[index].config != first,
            not keep(kept[index].config),
            bounds[without_overlap(kept[index].config)],
        ),
    )
    num_needed = sum(keep(candidate.config) for candidate in kept)

    def is_enough(num_bytes: int, num_built: int) -> bool:
        return _too_large(num_bytes) or (num_built > num_needed and clock.is_over)

    relaxations = build_relaxations(instance, kept, capacity_bytes, order, is_enough, links)
    return relaxations, replace(pruned, kept=tuple(kept[index] for index in relaxations.built))


def _refusal(instance: Instance, fitting: list[FittingCandidate]) -> InputError:
    return InputError(
        "the search space",
        f"has {len(fitting)} configurations, all of which must be kept; the costs of their links between "
        f"{instance.cluster.num_nodes} hosts do not fit in this machine's memory. Pin degrees, e.g. "
        "with --tensor-parallel, --pipeline-parallel, --micro-batch-size and --virtual-pipeline 1.",
    )


def load_predictor(max_oom_risk: float, instance: Instance) -> MemoryPredictor:
    """
    Load the shipped memory predictor, with the memory constants of the instance's software stack if it has any.

    Raises ``InputError`` for a risk below what its data supports; a risk of 1 means that memory does not count.
    """
    predictor = stack_predictor(instance.stack)
    if not SMALLEST_RISK <= max_oom_risk <= IGNORED_RISK:
        raise InputError(
            "--max-oom-risk", f"must be in [{SMALLEST_RISK:g}, 1] (1: memory does not count), got {max_oom_risk}."
        )
    return predictor


def fitting_candidates(memory: MemoryCheck) -> list[FittingCandidate]:
    """Return the configurations that fit, as input of :func:`~pipette_opt.problem.build.build_problem_data`."""
    return [FittingCandidate(config=fits.config, need_bytes=fits.need_bytes) for fits in memory.fitting]

"""
Before the search: what is legal, what the joint model makes of it, what fits, and the problem in integers.

Before the joint model a time to beat is looked for among the configurations of one stage, which have no layers to deal;
from 256 hosts on among all. Bounds of single configurations come after it.
"""

import os
import threading
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from functools import cached_property

from pipette_opt.base.errors import InfeasibleError, InputError
from pipette_opt.base.types import IntArray
from pipette_opt.base.units import counted, gib
from pipette_opt.candidates import (
    Enumeration,
    SearchSpace,
    contradiction,
    enumerate_more,
    enumerate_with_reasons,
    layers_are_free,
    narrowed,
    with_shared_parameters,
)
from pipette_opt.costs.work import WorkBounds
from pipette_opt.memory.fewest import check_memory
from pipette_opt.memory.filter import MemoryCheck, usable_bytes
from pipette_opt.memory.predictor import IGNORED_RISK, SMALLEST_RISK, MemoryPredictor
from pipette_opt.parallel import ParallelConfig, without_overlap
from pipette_opt.problem.build import BothForms, FittingCandidate, build_both_forms
from pipette_opt.problem.data import ProblemData
from pipette_opt.problem.ticks import SharedLinks
from pipette_opt.simulate.fullness import stack_predictor, with_edge_loss
from pipette_opt.simulate.least_times import LeastTimes
from pipette_opt.solver.joint import Joined, join
from pipette_opt.solver.layouts import near_layouts
from pipette_opt.solver.open_families import JointLimits
from pipette_opt.solver.pruning import BoundedPackings, FirstPlan, Pruned, prune
from pipette_opt.solver.world_sizes import WorldSizes, choose_world_sizes
from pipette_opt.specs import ClusterSpec, Instance

WORLD_SIZES_SHARE = 0.25
"""Share of the time that is left in which numbers of GPUs are bounded. Chosen."""

BOUNDING_SHARE = 0.1
"""Share of the time that is left in which configurations are bounded. Chosen."""

BOUNDING_AGAIN_SHARE = 0.5
"""The same where a search has ended and only what was not bounded keeps a gap open. Chosen."""

FIRST_SHARE = 0.05
"""Share of the time that is left for annealing a better time to beat, where very many may win. Chosen."""

MAX_FIRST_S = 10.0
"""Largest number of seconds for the same. Chosen."""

BUILDING_SHARE = 0.15
"""Share of the time that is left after that in which the problems of kept configurations are built. Chosen."""

LAYOUT_SHARE = 0.2
"""
Time in which layers are moved between the chunks of the joint model's plan, as a share of the joint model's time limit,
to which it is added. Chosen.
"""

MANY_HOSTS = 256
"""
From so many hosts on, a time to beat is looked for among all configurations before the joint model is asked: it
simulates hosts in the order in which they are listed only, and over many hosts that loses more than its splits gain.
Chosen.
"""

MEMORY_SHARE = 0.15
"""
Share of the machine's memory that link costs between hosts may take. Searches copy those of the candidates that they
look at, so that the process takes about twice as much. Chosen.
"""

MAX_LINK_BYTES = 3 << 30
"""Largest number of bytes for the same. Chosen."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Prepared:
    """
    Everything before the search: what is legal, what fits, and the problem in integers.

    Parameters
    ----------
    problem
        Each candidate with the form that the solver minimises.
    lower
        Each candidate with the lower form.
    pruned
        Configurations that were left out of both; ``None`` if none was.
    space
        What was searched, with the splits that the joint model chose.
    joined
        What the joint model says; ``None`` if it was not asked.
    instance
        The job; where links of single GPUs are known, on relaxed hosts.
    given_cluster
        The hosts as they are given, where links of single GPUs are known.
    other_sizes_s
        No plan on other numbers of GPUs is faster, seconds; infinite where the search did not choose the number.
    other_splits_s
        No plan with other splits of the layers is faster, seconds, where the joint model was not asked and this was.
    proven_s
        No plan of these configurations is faster, as an earlier certificate says of the same hosts and more.
    """

    instance: Instance
    enumeration: Enumeration
    predictor: MemoryPredictor
    memory: MemoryCheck
    problem: ProblemData
    lower: ProblemData
    pruned: Pruned | None = None
    space: SearchSpace = field(default_factory=SearchSpace)
    joined: Joined | None = None
    given_cluster: ClusterSpec | None = None
    other_sizes_s: float = float("inf")
    other_splits_s: float = float("inf")
    proven_s: Mapping[ParallelConfig, float] = field(default_factory=dict)

    @property
    def given(self) -> Instance:
        """The job on the hosts as they are given, with the links of single GPUs."""
        return self.instance if self.given_cluster is None else replace(self.instance, cluster=self.given_cluster)

    @property
    def has_slots(self) -> bool:
        """Whether links of single GPUs are known, so that it matters which GPU of its host a rank has."""
        return self.given_cluster is not None

    @property
    def ruled_out_s(self) -> float:
        """No plan of what was left out of the problem is faster: seconds; infinite if nothing was."""
        return self.other_sizes_s if self.pruned is None else min(self.pruned.bound_s, self.other_sizes_s)

    @property
    def is_joint_least(self) -> bool:
        """Whether bounds say more of every configuration that is listed than the joint model of all other splits."""
        if self.pruned is None or self.joined is None:
            return False
        return self.joined.model.bound_s < min(self.pruned.bounds_s.values(), default=0.0)

    @cached_property
    def with_closed_form(self) -> ProblemData:
        """The candidates with a closed form."""
        return _only(self.problem, closed=True)

    @cached_property
    def without_closed_form(self) -> ProblemData:
        """The candidates with a proven lower form only."""
        return _only(self.problem, closed=False)


def prepare(
    instance: Instance,
    space: SearchSpace,
    max_oom_risk: float,
    report: Callable[[str], None] = lambda step: None,
    keep: Callable[[ParallelConfig], bool] = lambda config: True,
    seconds_left: Callable[[], float] = lambda: float("inf"),
    loading: Callable[[], AbstractContextManager[None]] = nullcontext,
    joint: JointLimits | None = None,
    stop: threading.Event | None = None,
    first: FirstPlan | None = None,
    like: Prepared | None = None,
    chooses_sizes: bool = False,
) -> Prepared:
    """
    Enumerate, drop what cannot fit, and put the rest into integers.

    Raises ``InfeasibleError`` with the reasons if nothing is legal or nothing fits, and ``InputError`` if nothing is
    legal because pins contradict each other or the job.

    Parameters
    ----------
    report
        Told each step.
    keep
        Says which configurations are kept even if a cheap bound shows that they cannot win: all by default.
    seconds_left
        Of the time limit. A space that is too large for it is narrowed first
        (:mod:`~pipette_opt.candidates.narrowing`), unless nothing of that fits. Bounding takes no more than a part of
        it, and then leaves out what was not bounded, or is too much to search; its bounds say how far off the best of
        the rest can be.
    loading
        Entered where compiled kernels are loaded, which may compile them.
    joint
        How long the joint model may take; it is not asked without, nor where the layers of the stages are not free.
    stop
        Ends the joint model soon.
    first
        A plan that is known, on this job: the time to beat from the beginning.
    like
        A preparation of the same space and job, without a joint model, on hosts of one kind; of these there may be more
        now, and with other links. What is legal and fits is taken from it.
    chooses_sizes
        Whether numbers of GPUs are chosen where the space has none (:mod:`~pipette_opt.solver.world_sizes`).
    """
    sizes = None
    if chooses_sizes and like is None and space.num_gpus is None and not space.world_sizes:
        report("bounding numbers of GPUs")
        sizes = _chosen_sizes(instance, space, max_oom_risk, seconds_left, loading, first)
        space, first = sizes.space, sizes.first
    report("enumerating candidates")
    spaces = [space] if like is None else [like.space]
    if like is None:
        spaces = list(dict.fromkeys([narrowed(instance, space, seconds_left()), space]))
    for number, space in enumerate(spaces, start=1):
        try:
            prepared = _prepare(
                instance, space, max_oom_risk, report, keep, seconds_left, loading, joint, stop, first, like
            )
            break
        except (InfeasibleError, InputError):
            if number == len(spaces):  # the time limit is no reason to say that nothing fits
                raise
    if like is not None:
        return replace(prepared, other_sizes_s=_bound_of_other_sizes_s(instance, like.space, seconds_left, first))
    return prepared if sizes is None else replace(prepared, other_sizes_s=sizes.left_out_s(prepared.space))


def _chosen_sizes(
    instance: Instance,
    space: SearchSpace,
    max_oom_risk: float,
    seconds_left: Callable[[], float],
    loading: Callable[[], AbstractContextManager[None]],
    first: FirstPlan | None,
) -> WorldSizes:
    """Numbers of GPUs by time, in a share of the time that is left."""
    rest_s = (1 - WORLD_SIZES_SHARE) * seconds_left()
    return choose_world_sizes(
        replace(instance, cluster=instance.cluster.relaxed()),
        space,
        load_predictor(max_oom_risk, instance),
        max_oom_risk,
        lambda: seconds_left() < rest_s or seconds_left() <= 0,
        loading,
        first,
    )


def _bound_of_other_sizes_s(
    instance: Instance, space: SearchSpace, seconds_left: Callable[[], float], first: FirstPlan | None
) -> float:
    """No plan on other numbers of GPUs than those of a space is faster, seconds."""
    if not space.world_sizes:
        return float("inf")
    rest_s, enough_s = (1 - WORLD_SIZES_SHARE) * seconds_left(), float("inf") if first is None else first.seconds
    least = LeastTimes(instance, with_shared_parameters(instance, space))
    others = [size for size in least.numbers if size not in space.world_sizes]
    return min(
        (
            least.at_peak_s(size)
            if least.at_peak_s(size) >= enough_s or seconds_left() < rest_s or seconds_left() <= 0
            else least(size)
            for size in others
        ),
        default=float("inf"),
    )


def _prepare(
    instance: Instance,
    space: SearchSpace,
    max_oom_risk: float,
    report: Callable[[str], None],
    keep: Callable[[ParallelConfig], bool],
    seconds_left: Callable[[], float],
    loading: Callable[[], AbstractContextManager[None]],
    joint: JointLimits | None,
    stop: threading.Event | None,
    first: FirstPlan | None,
    like: Prepared | None,
) -> Prepared:
    """As :func:`prepare`, of a space that is not made smaller."""
    if like is None:
        space = with_shared_parameters(instance, space)
    given = None if instance.cluster.gpu_links is None else instance
    instance = replace(instance, cluster=instance.cluster.relaxed())
    enumeration = enumerate_with_reasons(instance, space) if like is None else like.enumeration
    if not enumeration.candidates:
        raise contradiction(instance, space) or InfeasibleError(enumeration.explain())
    predictor, joined = load_predictor(max_oom_risk, instance), None
    work = WorkBounds(instance)
    is_open = not all(keep(config) for config in enumeration.candidates)

    def bounded(memory: MemoryCheck, *, anneals: bool = True) -> Pruned:
        """What cheap bounds leave, in a share of the time that is left."""
        rest_s = (1 - BOUNDING_SHARE) * seconds_left()
        return prune(
            with_edge_loss(instance, memory),
            fitting_candidates(memory),
            memory.capacity_bytes,
            keep,
            lambda: seconds_left() < rest_s,
            loading,
            first,
            annealing_s=min(FIRST_SHARE * seconds_left(), MAX_FIRST_S) if anneals else 0.0,
            work=work,
            given=given and with_edge_loss(given, memory),
            family_bound_s=(lambda config: 0.0) if joined is None else joined.split_bound_s,
        )

    if joint is not None and layers_are_free(instance, space):
        candidates = enumeration.candidates
        if first is not None:
            joint = replace(joint, to_beat_s=min(first.seconds, joint.to_beat_s))
        many = instance.cluster.num_nodes >= MANY_HOSTS
        beside = candidates if many else [one for one in candidates if one.pipeline_model_parallel_size == 1]
        if is_open and beside:
            memory = check_memory(instance, beside, predictor, max_oom_risk)
            report(f"looking for a time to beat among {counted(len(memory.fitting), 'configuration')}")
            first = bounded(memory, anneals=many).first if memory.fitting else first
            joint = joint if first is None else replace(joint, to_beat_s=min(first.seconds, joint.to_beat_s))
        joined = join(instance, space, candidates, predictor, max_oom_risk, joint, report, stop, loading, work)
        first = joined.first or first
        wider = replace(space, more_splits=(*space.more_splits, *joined.splits))
        if first is not None:
            report("moving layers between model chunks")
            share_s = LAYOUT_SHARE * joint.time_limit_s
            near = near_layouts(instance, wider, first, predictor, max_oom_risk, share_s, stop or threading.Event())
            layouts = (str(one.config.pipeline_model_parallel_layout) for one in near)
            wider, first = replace(wider, more_layouts=tuple(layouts)), (near or [first])[0]
        if wider != space:
            space, enumeration = wider, enumerate_more(instance, wider, space, enumeration)
    report(f"predicting the memory of {counted(len(enumeration.candidates), 'candidate')}")
    if like is None:
        memory = check_memory(instance, enumeration.candidates, predictor, max_oom_risk)
    else:
        memory = replace(like.memory, capacity_bytes=usable_bytes(instance.cluster, predictor))
    if not memory.fitting:
        raise InfeasibleError(f"{enumeration.explain()}\n{memory.explain()}")
    pruned = None
    if is_open:
        report(f"bounding {counted(len(memory.fitting), 'configuration')}")
        pruned = bounded(memory)
        instance = with_edge_loss(instance, memory)
        report(f"building {counted(len(pruned.kept), 'configuration')}")
        built_s = (1 - BUILDING_SHARE) * seconds_left()
        forms, pruned = _build_kept(instance, pruned, memory.capacity_bytes, keep, lambda: seconds_left() < built_s)
    else:
        instance, fitting = with_edge_loss(instance, memory), fitting_candidates(memory)
        forms = build_both_forms(
            instance, fitting, memory.capacity_bytes, is_enough=lambda num_bytes, num_built: _too_large(num_bytes)
        )
        if len(forms.built) < len(fitting):
            raise _refusal(instance, fitting)
    return Prepared(
        instance=instance,
        enumeration=enumeration,
        predictor=predictor,
        memory=memory,
        problem=forms.problem,
        lower=forms.lower,
        pruned=pruned,
        space=space,
        joined=joined,
        given_cluster=None if given is None else given.cluster,
    )


def bound_again(
    prepared: Prepared,
    first: FirstPlan,
    seconds_left: Callable[[], float],
    loading: Callable[[], AbstractContextManager[None]] = nullcontext,
) -> Prepared:
    """
    The same space with its configurations bounded anew, in half of the time that is left, against a plan that is known.

    For when the time that bounds had at first was too short: what they did not reach is above no bound but its work.
    """
    instance, memory, joined = prepared.instance, prepared.memory, prepared.joined
    rest_s = (1 - BOUNDING_AGAIN_SHARE) * seconds_left()
    pruned = prune(
        instance,
        fitting_candidates(memory),
        memory.capacity_bytes,
        is_over=lambda: seconds_left() < rest_s,
        loading=loading,
        known=first,
        given=prepared.given if prepared.has_slots else None,
        family_bound_s=(lambda config: 0.0) if joined is None else joined.split_bound_s,
    )
    built_s = (1 - BUILDING_SHARE) * seconds_left()
    forms, pruned = _build_kept(
        instance, pruned, memory.capacity_bytes, lambda config: False, lambda: seconds_left() < built_s
    )
    return replace(prepared, problem=forms.problem, lower=forms.lower, pruned=pruned)


def with_splits(
    prepared: Prepared,
    known: FirstPlan,
    is_over: Callable[[], bool],
    loading: Callable[[], AbstractContextManager[None]] = nullcontext,
    least_s: float = 0.0,
) -> Prepared:
    """
    The same with the splits that the joint model handed on since, and the fastest plan that it simulated.

    Parameters
    ----------
    known
        The fastest plan known to others.
    is_over
        Whether there is no time to bound and build more of them than that plan.
    least_s
        No plan with a split that is new is faster.
    """
    joined, pruned, memory = prepared.joined, prepared.pruned, prepared.memory
    if joined is None or pruned is None:
        return prepared
    first = known if joined.first is None or joined.first.seconds >= known.seconds else joined.first
    more_splits = prepared.space.more_splits
    new_splits = [layers for layers in joined.splits if layers not in more_splits]
    space, enumeration = replace(prepared.space, more_splits=(*more_splits, *new_splits)), prepared.enumeration
    if new_splits:
        enumeration = enumerate_more(prepared.instance, space, prepared.space, enumeration)
        new = enumeration.candidates[len(prepared.enumeration.candidates) :]
        memory = memory.joined(check_memory(prepared.instance, new, prepared.predictor, memory.max_oom_risk))
    built = {one.config for one in pruned.kept}
    fitting = fitting_candidates(memory)
    new_fitting = fitting[len(prepared.memory.fitting) :]
    new_fitting += [one for one in fitting if one.config == first.config and one.config not in built]
    if not new_fitting:
        return replace(prepared, space=space, enumeration=enumeration, memory=memory)
    more = prune(
        prepared.instance,
        new_fitting,
        memory.capacity_bytes,
        is_over=is_over,
        loading=loading,
        known=first,
        given=prepared.given if prepared.has_slots else None,
        family_bound_s=lambda config: max(
            joined.split_bound_s(config), least_s if config.layers_per_stage in new_splits else 0.0
        ),
    )
    links = SharedLinks(prepared.problem.tick_s)
    forms, more = _build_kept(
        prepared.instance, more, memory.capacity_bytes, lambda config: config == first.config, is_over, links
    )
    return replace(
        prepared,
        space=space,
        enumeration=enumeration,
        memory=memory,
        problem=prepared.problem.joined(forms.problem),
        lower=prepared.lower.joined(forms.lower),
        pruned=pruned.joined(more),
    )


def _too_large(num_bytes: int) -> bool:
    """Whether link costs take all the memory that they may."""
    machine = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return num_bytes > min(MEMORY_SHARE * machine, MAX_LINK_BYTES)


def _build_kept(
    instance: Instance,
    pruned: Pruned,
    capacity_bytes: IntArray,
    keep: Callable[[ParallelConfig], bool],
    is_over: Callable[[], bool],
    links: SharedLinks | None = None,
) -> tuple[BothForms, Pruned]:
    """
    Both forms of what bounding kept, the most promising first, as long as there are memory and time.

    The rest is left out, too, with its bounds; what must be kept goes first, whatever time there is.
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
    num_needed = sum(keep(one.config) for one in kept)

    def is_enough(num_bytes: int, num_built: int) -> bool:
        return _too_large(num_bytes) or (num_built > num_needed and is_over())

    forms = build_both_forms(instance, kept, capacity_bytes, order, is_enough, links)
    built = set(forms.built)
    left = [bounds[without_overlap(one.config)] for index, one in enumerate(kept) if index not in built]
    return forms, replace(
        pruned,
        kept=tuple(kept[index] for index in forms.built),
        ruled_out=pruned.ruled_out + len(left),
        bound_s=min([pruned.bound_s, *left]),
    )


def _refusal(instance: Instance, fitting: list[FittingCandidate]) -> InputError:
    return InputError(
        "the search space",
        f"has {len(fitting)} configurations that are all to be kept; the costs of their links between "
        f"{instance.cluster.num_nodes} hosts do not fit in this machine's memory. Pin degrees, e.g. "
        "with --tensor-parallel, --pipeline-parallel, --micro-batch-size and --virtual-pipeline 1.",
    )


def load_predictor(max_oom_risk: float, instance: Instance) -> MemoryPredictor:
    """
    The shipped memory predictor, with the constants of the instance's stack if it has some for memory.

    Raises ``InputError`` for a risk that its data cannot vouch for; 1 stands for memory that does not count.
    """
    predictor = stack_predictor(instance.stack)
    if not SMALLEST_RISK <= max_oom_risk <= IGNORED_RISK:
        raise InputError(
            "--max-oom-risk", f"must be in [{SMALLEST_RISK:g}, 1] (1: memory does not count), got {max_oom_risk}."
        )
    return predictor


def fitting_candidates(memory: MemoryCheck) -> list[FittingCandidate]:
    """What fits, as :func:`~pipette_opt.problem.build.build_problem_data` takes it."""
    return [FittingCandidate(config=one.config, need_bytes=one.need_bytes) for one in memory.fitting]


def _only(problem: ProblemData, *, closed: bool) -> ProblemData:
    return replace(problem, candidates=tuple(one for one in problem.candidates if one.has_closed_form == closed))


@dataclass(frozen=True, slots=True, kw_only=True)
class CandidateRow:
    """
    One configuration, before any search.

    Parameters
    ----------
    fastest_s
        Its time at the best hosts and links (lower form for interleaved schedules); ``None`` if it does not fit
        or cannot be placed.
    need_gib
        Upper bound of the memory of its fullest stage.
    """

    config: ParallelConfig
    fits: bool
    need_gib: float
    fastest_s: float | None


def candidate_overview(
    instance: Instance, space: SearchSpace, max_oom_risk: float, top: int | None = None
) -> tuple[Enumeration, list[CandidateRow]]:
    """
    The legal configurations, those that fit first, by what they can reach at best: the first ``top``, or all.

    Of those that are not among the first, only the work is looked at.
    """
    enumeration = enumerate_with_reasons(instance, space)
    memory = check_memory(instance, enumeration.candidates, load_predictor(max_oom_risk, instance), max_oom_risk)
    instance = with_edge_loss(instance, memory)
    fitting = fitting_candidates(memory)
    bounded = BoundedPackings(instance, fitting, memory.capacity_bytes, lower_form=False, reductions=True)
    chosen = bounded.most_promising(len(fitting) if top is None else top)
    fastest = {config: bounded.bounds_s[config] for config in chosen if bounded.bounds_s[config] < float("inf")}
    rows = [
        CandidateRow(
            config=one.config,
            fits=fits,
            need_gib=gib(float(one.prediction.upper_bytes.max())),
            fastest_s=fastest.get(one.config),
        )
        for group, fits in ((memory.fitting, True), (memory.rejected, False))
        for one in group
    ]
    rows.sort(key=lambda row: (not row.fits, row.fastest_s or float("inf"), row.need_gib))
    return enumeration, rows[:top]

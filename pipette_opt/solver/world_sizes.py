"""
Choice of the numbers of GPUs to search, if the job leaves it free: all numbers whose bounds allow the fastest plan.

A search in a small space over the numbers that keep most GPUs busy gives a first plan, and the number that is searched
at first. Once plans of that number are known, the others follow: numbers whose bound reaches the fastest plan cannot
win. Of the rest, only configurations are searched whose compute alone takes less. All bounds are kept, so that a
certificate covers every number of GPUs.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

from pipette_opt.candidates import SearchSpace, with_shared_parameters, world_sizes
from pipette_opt.candidates.enumeration import num_legal
from pipette_opt.costs.work import WorkBounds
from pipette_opt.plans.clock import Clock
from pipette_opt.simulate.least_times import LeastTimes
from pipette_opt.solver.pruning import FirstPlan
from pipette_opt.specs import Instance

MAX_PROMISING = 3
"""Largest count of different numbers of GPUs that are searched for a first plan. Chosen."""

BOUNDING_SHARE = 0.4
"""Fraction of the time for other numbers of GPUs in which they are bounded. Chosen."""

OTHERS_PER_SECOND = 15_000
"""
Number of configurations that are listed for other numbers of GPUs for each second of the step. Chosen.

Most of them are ruled out by their compute alone, which takes about 20 microseconds.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorldSizes:
    """
    Numbers of GPUs that are searched at first, and bounds on the others.

    Parameters
    ----------
    space
        Search space with ``world_sizes``: the number of the fastest known plan; without a plan, all. ``narrowed``
        contains ``world_sizes`` if numbers are left out. Unchanged if no number of whole hosts is legal.
    first
        Fastest known plan; ``None`` if no plan is known.
    least
        Lower bounds on the iteration time by number of GPUs.
    """

    space: SearchSpace
    first: FirstPlan | None
    least: LeastTimes


def first_world_sizes(
    work: WorkBounds,
    space: SearchSpace,
    known: FirstPlan | Callable[[tuple[int, ...]], FirstPlan | None],
) -> WorldSizes:
    """
    Choose the numbers of GPUs that are searched at first, for a space that leaves them free.

    Parameters
    ----------
    work
        Cache of compute-only bounds of the job, extended by this call.
    known
        Known plan, or a function that finds a plan on one of these numbers of GPUs, or ``None``.
    """
    least = LeastTimes(work.instance, with_shared_parameters(work.instance, space), work)
    if isinstance(known, FirstPlan):
        first: FirstPlan | None = known
    else:
        promising = [size for size in world_sizes(work.instance, space) if size in least.numbers]
        first = known(tuple(promising[:MAX_PROMISING])) if promising else None
    own = None if first is None else first.config.world_size
    sizes = tuple(size for size in least.numbers if own in (None, size) and least.may_beat(size, float("inf")))
    if not sizes:
        return WorldSizes(space=space, first=first, least=least)
    narrowed = space.narrowed if own is None or len(least.numbers) == 1 else (*space.narrowed, "world_sizes")
    return WorldSizes(space=replace(space, world_sizes=sizes, narrowed=narrowed), first=first, least=least)


def hopeful_sizes(least: LeastTimes, space: SearchSpace, to_beat_s: float, clock: Clock) -> tuple[int, ...]:
    """
    Bound the other numbers of GPUs, and return those on which a plan may take less than ``to_beat_s``, descending.

    Parameters
    ----------
    clock
        Time limit for the bounds and for the search of the further configurations; numbers for which there is no time
        are not returned.
    """
    bounding = clock.slice(BOUNDING_SHARE)
    others = (size for size in least.numbers if size not in space.world_sizes)
    return tuple(size for size in others if not bounding.is_over and least.may_beat(size, to_beat_s))


def has_time_for(instance: Instance, space: SearchSpace, size: int, clock: Clock) -> bool:
    """Return whether the configurations of a number of GPUs can be listed and bounded before the clock is over."""
    most = OTHERS_PER_SECOND * clock.left_s
    return num_legal(instance, space, (size,), most) <= most


def with_size(space: SearchSpace, size: int, to_beat_s: float) -> SearchSpace:
    """Return the space with the configurations of a further number of GPUs whose compute is below ``to_beat_s``."""
    below_s = to_beat_s if space.others_below_s is None else space.others_below_s
    return replace(space, world_sizes=(*space.world_sizes, size), others_below_s=below_s)


def with_bound(least: LeastTimes, space: SearchSpace, to_beat_s: float) -> tuple[SearchSpace, float]:
    """
    Return the space, and a lower bound on plans with the numbers of GPUs and the configurations that it leaves out.

    Numbers without a bound of ``to_beat_s`` do not count; the space's ``narrowed`` contains ``world_sizes`` if there
    are any.
    """
    others = [size for size in least.numbers if size not in space.world_sizes]
    bounds_s = [bound_s for size in others if (bound_s := least.not_below_s.get(size, 0.0)) >= to_beat_s]
    if len(bounds_s) == len(others):
        space = replace(space, narrowed=tuple(name for name in space.narrowed if name != "world_sizes"))
    if space.others_below_s is not None:
        bounds_s.append(space.others_below_s)
    return space, min(bounds_s, default=float("inf"))

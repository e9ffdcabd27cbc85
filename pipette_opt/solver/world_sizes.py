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
from pipette_opt.candidates.enumeration import is_counted
from pipette_opt.costs.work import WorkBounds
from pipette_opt.plans.clock import Clock
from pipette_opt.simulate.least_times import LeastTimes
from pipette_opt.solver.pruning import FirstPlan

MAX_PROMISING = 3
"""Largest count of different numbers of GPUs that are searched for a first plan. Chosen."""


BOUNDING_SHARE = 0.4
"""Fraction of the time for other numbers of GPUs in which they are bounded. Chosen."""

COUNTING_SHARE = 0.2
"""
Fraction of the time left for other numbers of GPUs in which configurations must be counted to be searched. Chosen.

Listing and bounding them takes three to five times as long.
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


def with_other_sizes(
    least: LeastTimes, space: SearchSpace, to_beat_s: float, clock: Clock
) -> tuple[SearchSpace, float]:
    """
    Return the space with all numbers of GPUs on which a plan may be faster, and a lower bound on those left out.

    Of the further numbers, the space has only configurations whose compute alone takes less than ``to_beat_s``. Numbers
    for which there was no time are neither in the space nor in the bound; ``narrowed`` then contains ``world_sizes``.

    Parameters
    ----------
    clock
        Time limit for the bounds and for the search of the further configurations.
    """
    bounding = clock.slice(BOUNDING_SHARE)
    others = [size for size in least.numbers if size not in space.world_sizes]
    hopeful = [size for size in others if not bounding.is_over and least.may_beat(size, to_beat_s)]
    left_s = [least.not_below_s[size] for size in others if size in least.not_below_s]
    counting = clock.slice(COUNTING_SHARE)
    able = [size for size in hopeful if is_counted(least.instance, space, (size,), lambda: counting.is_over)]
    if len(able) + len(left_s) == len(others):
        space = replace(space, narrowed=tuple(name for name in space.narrowed if name != "world_sizes"))
    if able:
        below_s = to_beat_s if space.others_below_s is None else space.others_below_s
        space = replace(space, world_sizes=(*space.world_sizes, *able), others_below_s=below_s)
    if space.others_below_s is not None:
        left_s.append(space.others_below_s)
    return space, min(left_s, default=float("inf"))

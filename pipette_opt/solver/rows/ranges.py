"""
A bound from ranges of the slowest column's period.

What the slowest column's period is decides which hops a ring may have and how many slow hosts a run; where it is known
to be in a narrow range, counts are soon shown not to exist. So each range has a bound of its own, the least of which
holds for all; it is raised in steps, or the range is split.
"""

import heapq
import itertools
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from pipette_opt.problem.data import CandidateData
from pipette_opt.solver.rows.costs import NEVER, RowCosts
from pipette_opt.solver.rows.levels import Levels, range_level

SLICE_SHARE, SLICE_GROWTH = 0.008, 1.5
"""Of the time, what a ceiling of a range may take at first, and how much more where it was not enough."""

NARROW, STEP = 1 / 128, 1 / 256
"""Of what is between bound and ceiling: what periods of a narrow range amount to; the bound is found to this."""

FIRST_PARTS, PARTS = 16, 4
"""Ranges at first, and into how many one is split: wide ones only cost time."""

FIRST_REACH, REACH_GROWTH = 0.25, 1.5
"""Of what is between bound and ceiling, what is tried first; how much more is tried after that was proven."""

Refutes = Callable[[Levels, float], bool | None]
"""Whether no counts are of these levels, in so many seconds; ``None`` if they were not enough."""


@dataclass(frozen=True, slots=True, order=True)
class _Range:
    """Placements whose slowest column has one of these periods; none of them costs less than the bound."""

    bound: int
    shortest: int
    longest: int


def bound_by_ranges(
    candidate: CandidateData,
    costs: RowCosts,
    floor: int,
    ceiling: int,
    *,
    refutes: Refutes,
    seconds: float,
    is_over: Callable[[], bool],
    on_bound: Callable[[int], None],
) -> int:
    """
    No placement has a smaller objective; above the ceiling if that is proven.

    For asynchronous sends and more than one micro-batch.

    Parameters
    ----------
    floor
        A known bound.
    ceiling
        The largest objective of interest.
    seconds
        Wall time, which ``is_over`` tells the end of.
    """
    whole = range_level(candidate, costs, ceiling, int(costs.window.min()), int(NEVER))
    if whole is None:
        return ceiling + 1
    step = max(1, int((ceiling - floor) * STEP))
    narrow = max(1, int((ceiling - floor) * NARROW) // (candidate.num_microbatches - 1))
    slice_s = SLICE_SHARE * seconds
    reach = max(step, int((ceiling - floor) * FIRST_REACH))
    assert whole.longest is not None
    waiting = [_Range(floor, low, high) for low, high in split(int(whole.periods[0]), whole.longest, FIRST_PARTS)]
    told, probe = floor, min(ceiling, floor + reach)
    while waiting and not is_over():
        least = waiting[0].bound
        if least > told:
            told = least
            on_bound(told)
        if least > probe:  # all ranges are
            reach = int(REACH_GROWTH * reach)
            probe = min(ceiling, least + reach)
        one = heapq.heappop(waiting)
        level = range_level(candidate, costs, probe, one.shortest, one.longest)
        refuted: bool | None = True
        top = one.shortest
        if level is not None:
            assert level.longest is not None
            refuted, top = refutes(level, slice_s), min(one.longest, level.longest)
        if refuted:
            if probe < ceiling:
                heapq.heappush(waiting, replace(one, bound=probe + 1))
        elif top - one.shortest >= narrow:
            for low, high in split(one.shortest, top, PARTS):
                heapq.heappush(waiting, replace(one, shortest=low, longest=high))
            if probe < ceiling and top < one.longest:  # longer ones cost more than was tried, but are still of interest
                heapq.heappush(waiting, replace(one, bound=probe + 1, shortest=top + 1))
        else:
            heapq.heappush(waiting, one)
            if probe - one.bound <= step:
                break  # this is as far as counts tell
            reach = max(1, (probe - one.bound) // 2)
            probe = one.bound + reach
            slice_s *= SLICE_GROWTH if refuted is None else 1.0
    return min((one.bound for one in waiting), default=ceiling + 1)


def split(low: int, high: int, parts: int) -> list[tuple[int, int]]:
    """Whole numbers from low to high in ranges that are about equal; none if there are none."""
    edges = np.unique(np.linspace(low, high + 1, parts + 1).astype(np.int64)).tolist()
    return [(start, end - 1) for start, end in itertools.pairwise(edges)] if high >= low else []

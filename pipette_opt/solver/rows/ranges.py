"""
A bound from ranges of the slowest column's period.

What the slowest column's period is decides which hops a ring may have and how many slow hosts a run; where it is known
to be in a narrow range, counts are soon shown not to exist. So each range has a bound of its own, the least of which
holds for all; it is raised in small steps, or the range is halved.
"""

import heapq
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from pipette_opt.problem import CandidateData
from pipette_opt.solver.rows.costs import NEVER, RowCosts
from pipette_opt.solver.rows.levels import Levels, range_level

FIRST_PARTS = 16
"""Ranges at first: most are refuted at once, the others are soon narrow enough."""

ROW_S, SLICE_SHARE, SLICE_GROWTH = 0.3, 0.2, 1.5
"""Seconds for each row that a ceiling of a range may take at first, of the time at most, and how much more it may take
where that was not enough."""

NARROW, STEP = 1 / 128, 1 / 256
"""Of what is between bound and ceiling: what periods of a narrow range amount to; the bound is found to this."""

REACH = 0.25
"""Of what is between bound and ceiling at first, what is tried at once; less where that takes too long."""

Refutes = Callable[[Levels, float], bool | None]
"""Whether no counts are of these levels, in so many seconds; ``None`` if they were not enough."""


@dataclass(frozen=True, slots=True, order=True)
class _Range:
    """Placements whose slowest column has one of these periods; none of them costs less than the bound."""

    bound: int
    shortest: int
    longest: int


class PeriodRanges:
    """
    The ranges of one candidate, which can be gone on with where they were.

    For asynchronous sends and more than one micro-batch.

    Parameters
    ----------
    floor
        A known bound.
    ceiling
        The largest objective of interest.

    Attributes
    ----------
    ended
        Whether this is as far as counts tell.
    """

    def __init__(self, candidate: CandidateData, costs: RowCosts, floor: int, ceiling: int) -> None:
        self.candidate, self.costs, self.ceiling = candidate, costs, ceiling
        self._step = max(1, int((ceiling - floor) * STEP))
        self._narrow = max(1, int((ceiling - floor) * NARROW) // (candidate.num_microbatches - 1))
        self._reach = max(self._step, int((ceiling - floor) * REACH))
        self._windows = np.unique(costs.window)
        self._probe, self._slice_s = min(ceiling, floor + self._reach), ROW_S * candidate.grid[0]
        whole = range_level(candidate, costs, ceiling, int(costs.window.min()), int(NEVER))
        self._waiting = [] if whole is None else _parts(floor, whole)
        self.ended = whole is None

    @property
    def bound(self) -> int:
        """No placement has a smaller objective; above the ceiling if that is proven."""
        return min((one.bound for one in self._waiting), default=self.ceiling + 1)

    def narrow(self, floor: int, ceiling: int) -> None:
        """What has become known elsewhere."""
        self.ceiling = min(self.ceiling, ceiling)
        self._waiting = [replace(one, bound=max(one.bound, floor)) for one in self._waiting]
        heapq.heapify(self._waiting)
        self._probe = min(self.ceiling, max(self._probe, floor))

    def run(
        self, *, refutes: Refutes, seconds: float, is_over: Callable[[], bool], on_bound: Callable[[int], None]
    ) -> int:
        """
        Go on for some time; returns the bound.

        Parameters
        ----------
        seconds
            Wall time, which ``is_over`` tells the end of.
        """
        told = self.bound
        self._slice_s = min(self._slice_s, SLICE_SHARE * seconds)
        while self._waiting and self.bound <= self.ceiling and not self.ended and not is_over():
            if self.bound > told:
                told = self.bound
                on_bound(told)
            if told > self._probe:  # all ranges are
                self._probe = min(self.ceiling, told + self._reach)
            self._raise_least(refutes, is_over)
        return self.bound

    def _raise_least(self, refutes: Refutes, is_over: Callable[[], bool]) -> None:
        """Raise the range with the least bound, halve it, or try less; leave it if time is over."""
        one = heapq.heappop(self._waiting)
        level = range_level(self.candidate, self.costs, self._probe, one.shortest, one.longest)
        refuted: bool | None = True
        top = one.shortest
        if level is not None:
            assert level.longest is not None
            refuted, top = refutes(level, self._slice_s), min(one.longest, level.longest)
        if refuted is None and is_over():
            heapq.heappush(self._waiting, one)
        elif refuted:
            if self._probe < self.ceiling:
                heapq.heappush(self._waiting, replace(one, bound=self._probe + 1))
        elif top - one.shortest >= self._narrow:
            middle = self._middle(one.shortest, top)
            heapq.heappush(self._waiting, replace(one, longest=middle))
            heapq.heappush(self._waiting, replace(one, shortest=middle + 1))
        elif refuted is None and self._probe - one.bound > self._step:
            heapq.heappush(self._waiting, one)
            self._probe = (one.bound + self._probe) // 2
            self._reach = max(1, self._probe - one.bound)
            self._slice_s *= SLICE_GROWTH
        else:
            self._settle(one, refutes, is_over)

    def _settle(self, one: _Range, refutes: Refutes, is_over: Callable[[], bool]) -> None:
        """Where a narrow range has counts nothing is proven above them, so no range need be raised further."""
        low, high = one.bound, self._probe
        while high - low > self._step and not is_over():
            ceiling = (low + high) // 2
            level = range_level(self.candidate, self.costs, ceiling, one.shortest, one.longest)
            if level is None or refutes(level, self._slice_s):
                low = ceiling + 1
            else:
                high = ceiling
        self.ended = low == one.bound and not is_over()
        self._probe, self._reach = low, self._step
        heapq.heappush(self._waiting, replace(one, bound=low))

    def _middle(self, shortest: int, longest: int) -> int:
        """The end of the lower half, where a window of classes begins to be allowed if one does near the middle."""
        middle = (shortest + longest) // 2
        near = self._windows[np.abs(self._windows - 1 - middle) <= (longest - shortest) // 4]
        return int(near[np.abs(near - 1 - middle).argmin()]) - 1 if len(near) else middle


def _parts(floor: int, whole: Levels) -> list[_Range]:
    """All periods, in ranges of the same width; the last has no end."""
    assert whole.longest is not None
    starts = np.unique(
        np.linspace(int(whole.periods[0]), whole.longest, FIRST_PARTS + 1)[:-1].astype(np.int64)
    ).tolist()
    ends = [*(start - 1 for start in starts[1:]), int(NEVER)]
    return [_Range(floor, start, end) for start, end in zip(starts, ends, strict=True)]

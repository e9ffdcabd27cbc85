"""
A bound from racks: ceilings refuted range by range of the slowest column's period.

One model often refutes a ceiling for many periods at once; where it takes too long, the range is split, and with some
refuters a lower ceiling is tried then. A ceiling that has a pattern of racks and kinds is not tried again: the bound is
then looked for below it.
"""

import heapq
import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace

from pipette_opt.problem.data import CandidateData
from pipette_opt.solver.racks.refuting import Refuter
from pipette_opt.solver.racks.structure import Racks
from pipette_opt.solver.rows.bound import applies
from pipette_opt.solver.rows.costs import NEVER
from pipette_opt.solver.rows.levels import range_level
from pipette_opt.solver.rows.ranges import split
from pipette_opt.solver.stoppable import OutOfTimeError, TimeSlice

logger = logging.getLogger(__name__)

NARROW, STEP = 1 / 64, 1 / 256
"""Of what is between the first bound and the ceiling: what periods of a narrow range amount to; the bound is found to
this."""

PARTS = 4
"""Into how many a range is split."""

LEAST_REACH = 1 / 16
"""Of what is between bound and ceiling, what is tried at least: half as much as before after each range too hard."""

SOON = 0.15
"""Of its time, what a range takes at most that counts as soon refuted: more are tried together then."""

SLICE_GROWTH = 1.5
"""How much more time a range has after a slice was not enough."""

OnBound = Callable[[int], None]
"""Called with each better bound."""


def has_racks(candidate: CandidateData) -> bool:
    """Whether a candidate has such bounds: a closed form, one stage on a host, two rows and columns at least."""
    P, D, _ = candidate.grid
    return applies(candidate) and candidate.block.stages == 1 and min(P, D) > 1 and candidate.num_microbatches > 1


@dataclass(frozen=True, slots=True, order=True)
class _Range:
    """
    Placements whose slowest column has one of these periods; none of them costs less than the bound.

    Parameters
    ----------
    slices
        Of the time of a model at first, how much one may take.
    alone
        Whether it was not soon refuted, so that it is not tried together with others.
    """

    bound: int
    shortest: int
    longest: int
    slices: float = 1.0
    alone: bool = False


class RackSearch:
    """
    The search of one candidate, which can go on where it was.

    Parameters
    ----------
    floor
        A known bound.
    ceiling
        The largest objective of interest.

    Attributes
    ----------
    ended
        Whether there is nothing more to do.
    """

    def __init__(self, candidate: CandidateData, racks: Racks, refutes: Refuter, floor: int, ceiling: int) -> None:
        self.candidate, self.racks, self.refutes = candidate, racks, refutes
        self.ceiling, self.possible = ceiling, ceiling + 1  # a ceiling from which on there are patterns
        self.floor = floor
        self.slice_s = 0.0
        self.joined = 1  # ranges that are tried together next
        self.reach = refutes.reach
        self.waiting = [
            _Range(floor, low, high) for low, high in _parts(candidate, racks, ceiling, refutes.first_parts)
        ]
        self.probe = min(ceiling, floor + max(self.step, int(refutes.reach * (ceiling - floor))))
        self.ended = floor > ceiling

    @property
    def step(self) -> int:
        """The bound is found to this."""
        return max(1, int((self.ceiling - self.floor) * STEP))

    @property
    def narrow_range(self) -> int:
        """Periods of a range that is not split."""
        return max(1, int((self.ceiling - self.floor) * NARROW) // (self.candidate.num_microbatches - 1))

    @property
    def bound(self) -> int:
        """No placement has a smaller objective; above the ceiling if there is nothing of interest."""
        return min((one.bound for one in self.waiting), default=self.ceiling + 1)

    def narrow(self, floor: int, ceiling: int) -> None:
        """What has become known elsewhere."""
        self.ceiling, self.possible = min(self.ceiling, ceiling), min(self.possible, ceiling + 1)
        self.waiting = [replace(one, bound=max(one.bound, floor)) for one in self.waiting if one.bound <= self.ceiling]
        heapq.heapify(self.waiting)
        self._aim()

    def run(
        self,
        seconds: float,
        *,
        workers: int = 1,
        seed: int = 0,
        stop: threading.Event | None = None,
        on_bound: OnBound = lambda bound: None,
        ceiling_now: Callable[[], int] | None = None,
    ) -> int:
        """
        Go on for some time; returns the bound.

        Parameters
        ----------
        ceiling_now
            Gives the ceiling that has become known elsewhere meanwhile.
        """
        started, told, stop = time.perf_counter(), self.bound, stop or threading.Event()
        ends, models = started + seconds, 0
        self.slice_s = max(self.slice_s, self.refutes.slice_share * seconds)
        while not self.ended and not stop.is_set() and time.perf_counter() < ends:
            if ceiling_now is not None and (ceiling := ceiling_now()) < self.ceiling:
                self.narrow(self.bound, ceiling)
                self.probe = min(self.probe, self._next_probe())
            self._aim()
            if self.bound > told:
                told = self.bound
                on_bound(told)
            if self.ended:
                break
            parts = self._next()
            one = replace(parts[0], longest=parts[-1].longest)
            whole = self.slice_s * one.slices
            left = min(whole, ends - time.perf_counter())
            began = time.perf_counter()
            refuted, longest = self._refutes(one, left, workers, seed, stop, thorough=len(parts) == 1)
            took = time.perf_counter() - began
            in_time = took < left
            if refuted is None and in_time and len(parts) == 1 and longest - one.shortest < self.narrow_range:
                refuted = False  # more time would not tell more
            soon = took < SOON * whole
            if len(parts) == 1 and not soon:
                parts = [replace(parts[0], alone=True)]
            for part in parts:
                cut = (left < whole and not in_time) or len(parts) > 1
                self._place(part, refuted, longest, cut=cut, in_time=in_time)
            self._join(refuted, soon)
            models += 1
        self._aim()
        logger.info(
            "%d racks, %d kinds of hosts: bound %d, possible %d, ceiling %d, %d models in %.2f s, %d ranges",
            self.racks.num_racks,
            self.racks.num_kinds,
            self.bound,
            self.possible,
            self.ceiling,
            models,
            time.perf_counter() - started,
            len(self.waiting),
        )
        return self.bound

    def _aim(self) -> None:
        """The next ceiling, once all ranges are above the last; ended if nothing is left between."""
        bound, left = self.bound, self.possible - self.bound
        self.ended = left <= 0 or (self.possible <= self.ceiling and left <= self.step)
        if not self.ended and not bound <= self.probe < self.possible:
            self.probe = self._next_probe()

    def _next_probe(self) -> int:
        """The ceiling to try next, from bound and ceiling."""
        left = self.possible - self.bound
        if self.possible > self.ceiling and left <= 2 * self.step:
            return self.ceiling
        further = int(self.reach * (self.ceiling + 1 - self.bound))
        if self.possible <= self.ceiling:
            further = min(further, left // 2)
        return min(self.ceiling, self.bound + further)

    def _next(self) -> list[_Range]:
        """The next range, and those right behind it that are tried together with it."""
        parts = [heapq.heappop(self.waiting)]
        while len(parts) < self.joined and self.waiting and not parts[0].alone:
            behind = self.waiting[0]
            if behind.alone or (behind.bound, behind.shortest) != (parts[0].bound, parts[-1].longest + 1):
                break
            parts.append(heapq.heappop(self.waiting))
        return parts

    def _join(self, refuted: bool | None, soon: bool) -> None:
        """How many ranges are tried together next."""
        if refuted and soon:
            self.joined = min(2 * self.joined, self.refutes.joins)
        elif not refuted:
            self.joined = 1

    def _place(self, one: _Range, refuted: bool | None, longest: int, *, cut: bool, in_time: bool) -> None:
        """
        Put a range back, with its new bound, or its parts.

        Parameters
        ----------
        cut
            Whether it had less than its time.
        in_time
            Whether it was told in time that nothing can be told.
        """
        if refuted:
            if self.probe < self.ceiling:
                heapq.heappush(self.waiting, replace(one, bound=self.probe + 1))
            return
        longer = one.slices * SLICE_GROWTH
        if refuted is False:
            self.possible = self.probe
        if cut or refuted is False:
            heapq.heappush(self.waiting, one)
            return
        wide = longest - one.shortest >= self.narrow_range
        if wide and (in_time or one.slices > 1 or not self.refutes.lowers):
            for low, high in split(one.shortest, longest, PARTS):
                heapq.heappush(self.waiting, replace(one, shortest=low, longest=high, slices=longer))
            if self.probe < self.ceiling and longest < one.longest:  # these cost more than was tried: still of interest
                heapq.heappush(self.waiting, replace(one, bound=self.probe + 1, shortest=longest + 1))
        else:
            heapq.heappush(self.waiting, replace(one, slices=longer))
        if self.refutes.lowers or not wide:
            self.probe = one.bound + (self.probe - one.bound) // 2
            self.reach = max(LEAST_REACH, self.reach / 2)

    def _refutes(
        self, one: _Range, seconds: float, workers: int, seed: int, stop: threading.Event, *, thorough: bool
    ) -> tuple[bool | None, int]:
        """Whether the ceiling has no pattern in a range, ``None`` if that took too long; the longest period there."""
        level = range_level(self.candidate, self.racks.costs, self.probe, one.shortest, one.longest)
        if level is None:
            return True, one.longest
        assert level.longest is not None
        given = TimeSlice(ends=time.perf_counter() + seconds, stop=stop, workers=workers, seed=seed)
        try:
            refuted = self.refutes(self.probe, one.shortest, level.longest, given, thorough=thorough)
        except OutOfTimeError:
            refuted = None
        return refuted, level.longest


def _parts(candidate: CandidateData, racks: Racks, ceiling: int, number: int) -> list[tuple[int, int]]:
    """The first ranges of periods, all that the ceiling leaves; empty if that is none."""
    whole = range_level(candidate, racks.costs, ceiling, int(racks.costs.window.min()), int(NEVER))
    if whole is None:
        return []
    assert whole.longest is not None
    return split(int(whole.periods[0]), whole.longest, number)

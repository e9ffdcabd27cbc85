"""
A bound from racks: ceilings refuted range by range of the slowest column's period.

One model often refutes a ceiling for many periods at once; where it takes too long, the range is split. A ceiling that
has a pattern of racks and kinds is not tried again: the bound is then looked for below it.
"""

import heapq
import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace

from ortools.sat.python import cp_model

from pipette_opt.problem import CandidateData, ProblemData
from pipette_opt.solver.racks.model import build_racks
from pipette_opt.solver.racks.structure import Racks
from pipette_opt.solver.rows.bound import applies
from pipette_opt.solver.rows.costs import NEVER
from pipette_opt.solver.rows.levels import range_level
from pipette_opt.solver.rows.ranges import split
from pipette_opt.solver.stoppable import solve_until

logger = logging.getLogger(__name__)

REACH = 0.75
"""Of what is between bound and ceiling, what is tried next, until there is a pattern; then half of what it leaves."""

NARROW, STEP = 1 / 64, 1 / 256
"""Of what is between bound and ceiling: what periods of a narrow range amount to; the bound is found to this."""

FIRST_PARTS, PARTS = 16, 4
"""Ranges at first, and into how many one is split: wide ones only cost time."""

SLICE_SHARE, SLICE_GROWTH = 0.35, 1.5
"""Of the time of the first run, what a model has at first, and how much more after that was not enough."""

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
    """

    bound: int
    shortest: int
    longest: int
    slices: float = 1.0


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

    def __init__(self, data: ProblemData, candidate: CandidateData, racks: Racks, floor: int, ceiling: int) -> None:
        self.data, self.candidate, self.racks = data, candidate, racks
        self.ceiling, self.possible = ceiling, ceiling + 1  # a ceiling from which on there are patterns
        self.step = max(1, int((ceiling - floor) * STEP))
        self.narrow_range = max(1, int((ceiling - floor) * NARROW) // (candidate.num_microbatches - 1))
        self.slice_s: float | None = None
        self.waiting = [_Range(floor, low, high) for low, high in _parts(candidate, racks, ceiling)]
        self.probe = min(ceiling, floor + max(self.step, int(REACH * (ceiling - floor))))
        self.ended = floor > ceiling

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
    ) -> int:
        """Go on for some time; returns the bound."""
        started, told, stop = time.perf_counter(), self.bound, stop or threading.Event()
        ends, models = started + seconds, 0
        if self.slice_s is None:
            self.slice_s = SLICE_SHARE * seconds
        while not self.ended and not stop.is_set() and time.perf_counter() < ends:
            self._aim()
            if self.bound > told:
                told = self.bound
                on_bound(told)
            if self.ended:
                break
            one = heapq.heappop(self.waiting)
            whole = self.slice_s * one.slices
            left = min(whole, ends - time.perf_counter())
            self._place(one, *self._refutes(one, left, workers, seed, stop), cut=left < whole)
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
            whole = self.possible > self.ceiling and left <= 2 * self.step
            reach = REACH if self.possible > self.ceiling else 0.5
            self.probe = self.ceiling if whole else min(self.ceiling, bound + int(reach * left))

    def _place(self, one: _Range, refuted: bool | None, longest: int, *, cut: bool) -> None:
        """Put a range back, with its new bound, or its parts; ``cut`` if it had less than its time."""
        if refuted:
            if self.probe < self.ceiling:
                heapq.heappush(self.waiting, replace(one, bound=self.probe + 1))
            return
        longer = one.slices * SLICE_GROWTH
        if refuted is False:
            self.possible = self.probe
        if cut or refuted is False:
            heapq.heappush(self.waiting, one)
        elif longest - one.shortest >= self.narrow_range:
            for low, high in split(one.shortest, longest, PARTS):
                heapq.heappush(self.waiting, replace(one, shortest=low, longest=high, slices=longer))
            if self.probe < self.ceiling and longest < one.longest:  # these cost more than was tried: still of interest
                heapq.heappush(self.waiting, replace(one, bound=self.probe + 1, shortest=longest + 1))
        else:
            heapq.heappush(self.waiting, replace(one, slices=longer))
            self.probe = one.bound + (self.probe - one.bound) // 2

    def _refutes(
        self, one: _Range, seconds: float, workers: int, seed: int, stop: threading.Event
    ) -> tuple[bool | None, int]:
        """Whether the ceiling has no pattern in a range, ``None`` if that took too long; the longest period there."""
        level = range_level(self.candidate, self.racks.costs, self.probe, one.shortest, one.longest)
        if level is None:
            return True, one.longest
        assert level.longest is not None
        if level.longest < one.shortest:
            return True, one.longest
        model = build_racks(self.candidate, self.data.p2p, self.racks, self.probe, one.shortest, level.longest)
        solver = cp_model.CpSolver()
        solver.parameters.num_workers = workers
        solver.parameters.random_seed = seed
        solver.parameters.max_time_in_seconds = seconds
        solver.parameters.linearization_level = 0  # relaxations cost more than they tell here
        solver.parameters.catch_sigint_signal = False
        status = solve_until(solver, model, stop)
        if status == cp_model.MODEL_INVALID:
            raise AssertionError(f"CP-SAT rejects the model: {model.validate()}")
        if status == cp_model.INFEASIBLE:
            return True, level.longest
        return (False if status in (cp_model.OPTIMAL, cp_model.FEASIBLE) else None), level.longest


def _parts(candidate: CandidateData, racks: Racks, ceiling: int) -> list[tuple[int, int]]:
    """The first ranges of periods, all that the ceiling leaves; empty if that is none."""
    whole = range_level(candidate, racks.costs, ceiling, int(racks.costs.window.min()), int(NEVER))
    if whole is None or whole.longest is None or whole.longest < whole.periods[0]:
        return []
    return split(int(whole.periods[0]), whole.longest, FIRST_PARTS)

"""State of a solve: best placements, lower bounds of the candidates, and the clock."""

import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from operator import attrgetter

import numpy as np

from pipette_opt.base.types import IntArray
from pipette_opt.plans.clock import Clock
from pipette_opt.plans.watcher import Watcher
from pipette_opt.problem.data import UNUSABLE_TICKS, ProblemData
from pipette_opt.problem.objective import largest_ticks
from pipette_opt.problem.solution import Result, Solution, checked_solution, result_of
from pipette_opt.solver.params import SolverParams

WITHOUT_SEARCH = "bounds without a search"
"""Name reported for bounds from best links and matching, which need no search."""

OnProgress = Callable[[float, int | None, int], None]
"""Progress callback: seconds since the start, best objective (``None`` without one), lower bound; ticks."""


class Incumbent:
    """
    Best placements, lower bounds proven so far, and the clock; safe to update from any thread.

    The time limit starts when the object is made.

    Attributes
    ----------
    data
        Problem to solve.
    bounds
        Lower bound on every placement of each candidate configuration, integer ticks, shape ``(num_candidates,)``.
    proven_by
        Bound or model that last raised each candidate's bound; candidates without a raised bound are absent.
    found
        Best placement of each candidate that has one.
    searched
        Candidates that bounds without a search did not rule out.
    """

    def __init__(
        self,
        data: ProblemData,
        params: SolverParams,
        on_progress: OnProgress | None = None,
        stop: threading.Event | None = None,
    ) -> None:
        self.data, self.params = data, params
        watcher = Watcher() if stop is None else Watcher(stop=stop)
        self.clock = Clock(watcher=watcher).after(params.time_limit_s)
        self.bounds: IntArray = np.zeros(len(data.candidates), dtype=np.int64)
        self.proven_by: dict[int, str] = {}
        self.found: dict[int, Solution] = {}
        self.searched: set[int] = set()
        self._on_progress = on_progress
        self._lock = threading.RLock()
        self._reported: tuple[int | None, int] = (None, 0)

    @property
    def best(self) -> Solution | None:
        """Best solution so far; ``None`` without one."""
        with self._lock:
            return min(self.found.values(), key=attrgetter("objective_ticks", "candidate"), default=None)

    @property
    def upper(self) -> int:
        """Objective of the best solution so far, integer ticks; ``UNUSABLE_TICKS`` without one."""
        with self._lock:
            return min((found.objective_ticks for found in self.found.values()), default=UNUSABLE_TICKS)

    @property
    def lower(self) -> int:
        """Lower bound on the best objective of all candidate configurations, integer ticks."""
        return min(self.upper, int(self.bounds.min(initial=UNUSABLE_TICKS)))

    def ceiling_of(self, index: int) -> int:
        """Return the largest objective of a candidate that would improve on the best solution, ticks."""
        return self.upper - 1 if self.found else largest_ticks(self.data.candidates[index])

    @property
    def is_over(self) -> bool:
        """Return whether the time limit is reached, the search was stopped, or the gap is within its limit."""
        if self.clock.is_over:
            return True
        return bool(self.found) and self.upper - self.lower <= self.params.gap_limit * self.upper

    def open_candidates(self) -> list[int]:
        """Return the indices of the candidates that may beat the best solution, smallest lower bounds first."""
        open_ones = np.flatnonzero(self.bounds < self.upper)
        return sorted(open_ones.tolist(), key=lambda index: (int(self.bounds[index]), index))

    def is_open(self, index: int) -> bool:
        """Return whether a candidate configuration may beat the best solution."""
        return bool(self.bounds[index] < self.upper)

    def prove(self, index: int, bound: int, by: str = WITHOUT_SEARCH) -> None:
        """
        Record a lower bound of a candidate configuration, integer ticks.

        A bound above its largest possible objective means that the candidate has no placement.
        """
        if bound > largest_ticks(self.data.candidates[index]):
            bound = UNUSABLE_TICKS
        with self._lock:
            if bound > self.bounds[index]:
                self.bounds[index], self.proven_by[index] = bound, by
            self.report()

    def offer(self, solution: Solution) -> None:
        """Record a solution if it satisfies all rules and is the best of its candidate configuration."""
        index = solution.candidate
        checked = checked_solution(self.data, index, solution.nodes)
        if checked is None:
            return
        with self._lock:
            known = self.found.get(index)
            if known is None or checked.objective_ticks < known.objective_ticks:
                self.found[index] = checked
                self.report()

    def report(self, batch: Sequence[int] = (), batch_bound: int = 0) -> None:
        """
        Call the progress callback if the best solution or the lower bound improved.

        ``batch_bound`` is a bound in integer ticks that a running solve has for the candidate configurations of
        ``batch``.
        """
        if self._on_progress is None:
            return
        with self._lock:
            bounds = self.bounds.copy()
            bounds[list(batch)] = np.maximum(bounds[list(batch)], batch_bound)
            lower = max(self._reported[1], min(self.upper, int(bounds.min(initial=UNUSABLE_TICKS))))
            upper = self.upper if self.found else None
            if (upper, lower) != self._reported:
                self._reported = (upper, lower)
                self._on_progress(self.clock.watcher.elapsed_s, upper, 0 if lower >= UNUSABLE_TICKS else lower)

    def result(self) -> Result:
        """Return the best solutions and bounds found so far."""
        result = result_of(self.found.values(), self.bounds, self.clock.watcher.started)
        number = len(self.data.candidates)
        proven_by = tuple(self.proven_by.get(index, WITHOUT_SEARCH) for index in range(number))
        return replace(result, num_pruned=number - len(self.searched), proven_by=proven_by)

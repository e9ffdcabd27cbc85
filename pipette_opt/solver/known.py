"""What is known of a problem while engines work on it: the best placements, a bound of each candidate, the clock."""

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from pipette_opt.placed import largest_ticks, objective_ticks
from pipette_opt.problem import UNUSABLE_TICKS, CandidateData, ProblemData
from pipette_opt.solution import Result, Solution
from pipette_opt.solver.params import SolverParams
from pipette_opt.types import IntArray

OnProgress = Callable[[float, int | None, int], None]
"""Called with seconds since the start, the incumbent's ticks (``None`` before the first) and the bound's."""


class Known:
    """
    The incumbent and what is proven so far; any thread may add to it.

    Parameters
    ----------
    started
        When the time limit began, as ``time.perf_counter`` tells it; now by default.

    Attributes
    ----------
    bounds
        No placement of a candidate has a smaller objective, shape ``(num_candidates,)``.
    found
        The best placement of each candidate that has one.
    searched
        Candidates that bounds without a search did not rule out.
    helpers
        Threads that look for placements beside the engines.
    """

    def __init__(
        self,
        data: ProblemData,
        params: SolverParams,
        on_progress: OnProgress | None,
        stop: threading.Event,
        started: float | None = None,
    ) -> None:
        self.data, self.params, self.stop = data, params, stop
        self.started = time.perf_counter() if started is None else started
        self.bounds: IntArray = np.zeros(len(data.candidates), dtype=np.int64)
        self.found: dict[int, Solution] = {}
        self.searched: set[int] = set()
        self.helpers = 0
        self._on_progress = on_progress
        self._lock = threading.RLock()
        self._reported: tuple[int | None, int] = (None, 0)

    @property
    def incumbent(self) -> Solution | None:
        """The best solution so far."""
        with self._lock:
            return min(self.found.values(), key=lambda one: (one.objective_ticks, one.candidate), default=None)

    @property
    def upper(self) -> int:
        """Objective of the incumbent; ``UNUSABLE_TICKS`` before the first."""
        with self._lock:
            return min((one.objective_ticks for one in self.found.values()), default=UNUSABLE_TICKS)

    @property
    def lower(self) -> int:
        """Bound over all candidates."""
        return min(self.upper, int(self.bounds.min(initial=UNUSABLE_TICKS)))

    def ceiling_of(self, index: int) -> int:
        """The largest objective of a candidate that is of interest."""
        return self.upper - 1 if self.found else largest_ticks(self.data.candidates[index])

    @property
    def workers(self) -> int:
        """Threads for an engine."""
        return max(1, self.params.num_workers - self.helpers)

    @property
    def seconds_left(self) -> float:
        """Wall time left."""
        return self.started + self.params.time_limit_s - time.perf_counter()

    @property
    def is_over(self) -> bool:
        """Whether to stop."""
        if self.stop.is_set() or self.seconds_left <= 0:
            return True
        return bool(self.found) and self.upper - self.lower <= self.params.gap_limit * self.upper

    def open_candidates(self) -> list[int]:
        """Candidates that may beat the incumbent, least bounds first."""
        open_ones = np.flatnonzero(self.bounds < self.upper)
        return sorted(open_ones.tolist(), key=lambda index: (int(self.bounds[index]), index))

    def is_open(self, index: int) -> bool:
        """Whether a candidate may beat the incumbent."""
        return bool(self.bounds[index] < self.upper)

    def prove(self, index: int, bound: int) -> None:
        """Take a bound of a candidate; above all it can cost, nothing can be placed."""
        nothing = bound > largest_ticks(self.data.candidates[index])
        with self._lock:
            self.bounds[index] = max(self.bounds[index], UNUSABLE_TICKS if nothing else bound)
            self.report()

    def offer(self, solution: Solution) -> None:
        """Take a solution, if it keeps the rules and is the best of its candidate."""
        candidate = self.data.candidates[solution.candidate]
        objective = _checked_objective(self.data, candidate, solution.nodes)
        if objective is None:
            return
        with self._lock:
            known = self.found.get(solution.candidate)
            if known is None or objective < known.objective_ticks:
                self.found[solution.candidate] = replace(solution, objective_ticks=objective)
                self.report()

    def report(self, batch: Sequence[int] = (), batch_bound: int = 0) -> None:
        """Tell incumbent and bound, if one has improved; a batch being solved may have a better bound already."""
        if self._on_progress is None:
            return
        with self._lock:
            bounds = self.bounds.copy()
            bounds[list(batch)] = np.maximum(bounds[list(batch)], batch_bound)
            lower = max(self._reported[1], min(self.upper, int(bounds.min(initial=UNUSABLE_TICKS))))
            upper = self.upper if self.found else None
            if (upper, lower) != self._reported:
                self._reported = (upper, lower)
                self._on_progress(time.perf_counter() - self.started, upper, 0 if lower >= UNUSABLE_TICKS else lower)

    def result(self) -> Result:
        """What is known now."""
        best = self.incumbent
        lower = self.lower
        if best is not None:
            status = "OPTIMAL" if lower == best.objective_ticks else "FEASIBLE"
        else:
            status = "INFEASIBLE" if lower >= UNUSABLE_TICKS else "UNKNOWN"
        others = sorted(
            (one for one in self.found.values() if one is not best),
            key=lambda one: (one.objective_ticks, one.candidate),
        )
        return Result(
            status=status,
            lower_bound_ticks=0 if lower >= UNUSABLE_TICKS else lower,
            solution=best,
            pool=tuple(others),
            wall_time_s=time.perf_counter() - self.started,
            num_pruned=len(self.data.candidates) - len(self.searched),
            candidate_bounds=self.bounds,
        )


def _checked_objective(data: ProblemData, candidate: CandidateData, nodes: IntArray) -> int | None:
    """The objective; ``None`` if a rule is broken."""
    if nodes.shape != candidate.grid or len(np.unique(nodes)) < nodes.size:
        return None
    if nodes.min() < 0 or nodes.max() >= data.num_nodes:
        return None
    allowed = data.allowed(candidate)
    if not all(allowed[row, nodes[row]].all() for row in range(candidate.grid[0])):
        return None
    objective = objective_ticks(data, candidate, nodes)
    return objective if objective < UNUSABLE_TICKS else None

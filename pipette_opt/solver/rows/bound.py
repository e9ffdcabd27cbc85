"""Bounds of a candidate by its rows: what no counts of classes reach, finer classes and finer steps in turn."""

import logging
import threading
import time
from collections.abc import Callable, Sequence

from ortools.sat.python import cp_model

from pipette_opt.problem import CandidateData, ProblemData
from pipette_opt.solver.rows.classes import HostClasses, host_classes
from pipette_opt.solver.rows.costs import RowCosts, row_costs
from pipette_opt.solver.rows.model import build_rows

logger = logging.getLogger(__name__)

MOST_CLASSES = (8, 14, 20)
"""Partitions that are tried in turn."""

STEP = 1 / 512
"""Of what is between bound and ceiling at first; the bound is found to this."""

PROBE_SHARE = 0.3
"""Of the time left that one model may take."""

OnBound = Callable[[int], None]
"""Called with each better bound."""


def applies(candidate: CandidateData) -> bool:
    """Whether a candidate has such bounds: a closed form, tensor groups inside hosts, more than one host."""
    return candidate.exact and candidate.grid[2] == 1 and candidate.num_cells > 1


def row_bound(
    data: ProblemData,
    candidate: CandidateData,
    floor: int,
    ceiling: int,
    *,
    seconds: float,
    most_classes: Sequence[int] = MOST_CLASSES,
    hopeless: bool = True,
    workers: int = 1,
    seed: int = 0,
    stop: threading.Event | None = None,
    on_bound: OnBound = lambda bound: None,
) -> int:
    """
    A bound of the candidate's objective, ``ceiling + 1`` if it is proven to be above the ceiling.

    Parameters
    ----------
    floor
        A known bound.
    ceiling
        The largest objective of interest.
    most_classes
        How many classes of hosts to tell apart, in turn.
    hopeless
        Whether the whole ceiling is likely to be refuted, and therefore tried first.
    """
    probe = _Probes(ends=time.perf_counter() + seconds, workers=workers, seed=seed, stop=stop or threading.Event())
    best, tried = floor, 0
    for most in most_classes:
        classes = host_classes(data, candidate, most)
        if classes is None or classes.number <= tried:
            continue
        if best > ceiling or probe.is_over:
            break
        tried = classes.number
        started = time.perf_counter()
        best = probe.raise_bound(data, candidate, classes, best, ceiling, hopeless, on_bound)
        logger.info(
            "rows with %d classes of hosts (links within %g %%): bound %d in %.2f s",
            classes.number,
            100 * classes.tolerance,
            best,
            time.perf_counter() - started,
        )
    return best


class _Probes:
    """Models with ceilings between a bound and what is of interest."""

    def __init__(self, *, ends: float, workers: int, seed: int, stop: threading.Event) -> None:
        self.ends, self.workers, self.seed, self.stop = ends, workers, seed, stop

    @property
    def is_over(self) -> bool:
        """Whether no more may be begun."""
        return self.stop.is_set() or time.perf_counter() >= self.ends

    def raise_bound(
        self,
        data: ProblemData,
        candidate: CandidateData,
        classes: HostClasses,
        floor: int,
        ceiling: int,
        hopeless: bool,
        on_bound: OnBound,
    ) -> int:
        """Bisect for the least ceiling that has a solution."""
        costs = row_costs(data, candidate, classes)
        mean_counts = data.p2p == "async"
        low, high = floor, ceiling + 1  # nothing is below low; high or more was not refuted
        joined: set[frozenset[int]] = set()
        least_step = max(1, int((high - low) * STEP))
        probe = ceiling if hopeless else (low + high) // 2
        while low < high and not self.is_over:
            if self._refutes(candidate, classes, costs, probe, joined, mean_counts):
                low = probe + 1
                on_bound(low)
            else:
                high = probe
            near = high - low <= least_step
            if near and high <= ceiling:
                break
            probe = ceiling if near else (low + high) // 2
        return low

    def _refutes(
        self,
        candidate: CandidateData,
        classes: HostClasses,
        costs: RowCosts,
        ceiling: int,
        joined: set[frozenset[int]],
        mean_counts: bool,
    ) -> bool:
        """Whether no counts cost at most the ceiling; learns which classes must be joined."""
        built = build_rows(candidate, classes, costs, ceiling, joined, mean_counts=mean_counts)
        if built is None:
            return True
        ends = time.perf_counter() + PROBE_SHARE * max(0.0, self.ends - time.perf_counter())
        while not self.stop.is_set():
            left = ends - time.perf_counter()
            if left <= 0:
                return False
            solver = cp_model.CpSolver()
            solver.parameters.num_workers = self.workers
            solver.parameters.random_seed = self.seed
            solver.parameters.max_time_in_seconds = left
            solver.parameters.catch_sigint_signal = False
            status = solver.solve(built.model)
            if status == cp_model.INFEASIBLE:
                return True
            if status != cp_model.OPTIMAL or not built.separate(solver):
                return False
            joined |= built.joined
        return False

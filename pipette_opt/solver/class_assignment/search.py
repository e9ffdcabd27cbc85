"""Bounds of a candidate from patterns of classes: what none of them reaches, finer classes in turn."""

import logging
import threading
import time
from collections.abc import Callable

import numpy as np
from ortools.sat.python import cp_model

from pipette_opt.base.types import IntArray
from pipette_opt.problem.best_links import has_room
from pipette_opt.problem.data import CandidateData, ProblemData
from pipette_opt.problem.objective import placed_objective_ticks
from pipette_opt.solver.class_assignment.model import build_merged, pattern_of
from pipette_opt.solver.class_assignment.problem import merge, place_classes
from pipette_opt.solver.class_assignment.splits import finer
from pipette_opt.solver.class_assignment.twins import HostClasses, host_classes
from pipette_opt.solver.stoppable import TimeSlice

logger = logging.getLogger(__name__)

FIRST_CLASSES = 8
"""Classes of hosts at first, at most. Chosen."""

MAX_ALIKE = 24
"""Classes of hosts at first, at most, on large grids whose hosts are alike. Chosen."""

ALIKE_COSTS = 0.02
"""Relative difference of costs up to which the hosts of a class are alike. Chosen."""

HOSTS_OF_A_CLASS = 4
"""Hosts to a class, on average, at least, where there are more than :data:`FIRST_CLASSES`. Chosen."""

FIRST_TOLERANCE = 0.01
"""Relative difference of costs up to which they are equal at first: symmetric models are soon solved. Chosen."""

NEAR_PATTERN = 0.125
"""Share of the gap between bound and ceiling that may lie between bound and best pattern when classes are split."""

FIRST_CALL_S = 2.0
"""Time limit of the first CP-SAT call for 32 cells or fewer, in seconds; it grows with their cube. Chosen."""

MAX_FIRST_CALL_S = 20.0
"""Time limit of the first CP-SAT call for any number of cells, in seconds. Chosen."""

SLICE_GROWTH = 2.0
"""Factor of the time limit after a call that neither found nor proved anything. Chosen."""

MAX_MINIMISED = 40
"""Cells up to which the model is minimised; above, ceilings are refuted only. Chosen by the placement benchmark."""

FIRST_REACH = 0.6
"""Share of the gap that is refuted first on grids that are not minimised: little of it takes as long as much."""

MAX_FAR = 80
"""Cells above which one call takes most of the time. Chosen by the placement benchmark."""

NEAR_REACH = 0.1
"""Share of the gap that is refuted first above :data:`MAX_FAR` cells: more is not refuted in time. Chosen."""

MIDDLE = 0.5
"""Share of the gap that is tried after that, and first once a call took too long. Chosen."""

OnBound = Callable[[int], None]
"""Called with each better bound."""

OnPattern = Callable[[IntArray], int]
"""Called with hosts that a pattern may stand for, shape of the grid; gives back the largest objective of interest."""


class MergedSearch:
    """
    The search of one candidate, which can go on where it was.

    Parameters
    ----------
    floor
        A known bound.
    ceiling
        The largest objective of interest.
    classes
        Which hosts are merged at first.

    Attributes
    ----------
    slice_s
        Seconds that a model may take.
    ended
        Whether there is nothing more to do.
    """

    def __init__(
        self,
        data: ProblemData,
        candidate: CandidateData,
        floor: int,
        ceiling: int,
        classes: HostClasses,
        seed: int = 0,
    ) -> None:
        self.data, self.candidate = data, candidate
        self.bound, self.ceiling = floor if has_room(data, candidate) else ceiling + 1, ceiling
        self.seed = seed
        self.tolerance = FIRST_TOLERANCE
        self.merged = merge(data, candidate, classes, self.tolerance)
        self.slice_s = min(MAX_FIRST_CALL_S, FIRST_CALL_S * max(1.0, candidate.num_cells / 32) ** 3)
        self.ended = self.bound > ceiling
        self._first_reach = FIRST_REACH if candidate.num_cells <= MAX_FAR else NEAR_REACH
        self._minimises = candidate.num_cells <= MAX_MINIMISED
        self._best: tuple[int, IntArray] | None = None
        self._nodes: IntArray | None = None
        self._random = np.random.default_rng(seed)

    def narrow(self, floor: int, ceiling: int, nodes: IntArray | None = None) -> None:
        """What has become known elsewhere, with the hosts of the cells of a good placement if there is one."""
        self.bound, self.ceiling = max(self.bound, floor), min(self.ceiling, ceiling)
        if nodes is not None:
            self._nodes = nodes

    def run(
        self,
        seconds: float,
        *,
        workers: int = 1,
        stop: threading.Event | None = None,
        on_bound: OnBound = lambda bound: None,
        on_pattern: OnPattern | None = None,
    ) -> int:
        """Go on for some time; returns the bound, above the ceiling if nothing of interest is left."""
        ends = time.perf_counter() + seconds
        stop = stop or threading.Event()
        while self.bound <= self.ceiling and not stop.is_set():
            started, number = time.perf_counter(), self.merged.classes.number
            complete = self._bisect(ends, workers, stop, on_bound, on_pattern)
            logger.info(
                "%d classes of hosts (costs within %g %%): bound %d, pattern %s, ceiling %d, %s in %.2f s",
                number,
                100 * self.tolerance,
                self.bound,
                None if self._best is None else self._best[0],
                self.ceiling,
                "done" if complete else "not done",
                time.perf_counter() - started,
            )
            self.ended = self.bound > self.ceiling
            if time.perf_counter() >= ends or self.ended:
                break
            if not complete:
                self.slice_s *= SLICE_GROWTH
                continue
            if not self._split():
                self.ended = True
                break
        return self.bound

    def _bisect(
        self, ends: float, workers: int, stop: threading.Event, on_bound: OnBound, on_pattern: OnPattern | None
    ) -> bool:
        """Look for patterns until the best is near the bound; False if some model took too long."""
        complete = True
        if self._nodes is not None:
            self._keep(self.merged.classes.of_host[self._nodes])
        high = self.ceiling if self._best is None else min(self.ceiling, self._best[0] - 1)
        reach = self._first_reach
        probe = high if self._minimises else self.bound + int(reach * (high - self.bound))
        while self.bound <= self.ceiling and not stop.is_set():
            left = min(self.slice_s, ends - time.perf_counter())
            if left <= 0:
                return False
            proven, pattern = self._solve(probe, left, workers, stop)
            if proven > self.bound:
                self.bound = proven
                on_bound(self.bound)
            if pattern is not None:
                value = self._take(pattern, on_pattern)
                high = min(high, value - 1, self.ceiling)
            elif proven <= probe:
                complete, high = False, min(high, probe - 1)
                if left == self.slice_s:
                    self._first_reach = max(self._first_reach, MIDDLE)
            if high < self.bound or high - self.bound < self._near * (self.ceiling - self.bound):
                break
            if self.candidate.num_cells <= MAX_FAR:
                reach = MIDDLE
            elif proven > probe:
                reach = min(MIDDLE, 2 * reach)
            probe = self.bound + int(reach * (high - self.bound))
        return complete and self._best is not None

    @property
    def _near(self) -> float:
        """Nothing may be left where the best pattern names its hosts: there is nothing to split."""
        if self._best is None:
            return NEAR_PATTERN
        return 0.0 if (self.merged.classes.sizes[np.unique(self._best[1])] == 1).all() else NEAR_PATTERN

    def _solve(self, ceiling: int, seconds: float, workers: int, stop: threading.Event) -> tuple[int, IntArray | None]:
        """
        A bound, and a pattern that costs at most the ceiling.

        The best pattern as long as that is soon found; else any, which is shown much sooner not to exist.
        """
        model = cp_model.CpModel()
        variables = build_merged(model, self.merged, min(self.bound, ceiling), ceiling)
        if not self._minimises:
            model.proto.clear_objective()
        solver = cp_model.CpSolver()
        solver.parameters.linearization_level = 0  # relaxations cost more than they tell here
        given = TimeSlice(ends=time.perf_counter() + seconds, stop=stop, workers=workers, seed=self.seed)
        status = given.solve(model, solver)
        if status == cp_model.INFEASIBLE:
            return ceiling + 1, None
        complete = status == cp_model.OPTIMAL
        proven = round(solver.objective_value) if complete and self._minimises else self.bound
        self._minimises &= complete
        if status not in (cp_model.OPTIMAL, cp_model.FEASIBLE):
            return proven, None
        return proven, pattern_of(solver, variables.grid_of(0))

    def _keep(self, pattern: IntArray) -> int:
        """Remember the best pattern; what this one costs."""
        placed = place_classes(self.merged, pattern)
        value = placed_objective_ticks(self.merged.data, self.merged.candidate, placed)
        if self._best is None or value < self._best[0]:
            self._best = value, pattern
        return value

    def _take(self, pattern: IntArray, on_pattern: OnPattern | None) -> int:
        """Keep a pattern, and hand on what it may stand for; what it costs."""
        if on_pattern is not None:
            self.ceiling = min(self.ceiling, on_pattern(self._hosts(pattern)))
        return self._keep(pattern)

    def _hosts(self, pattern: IntArray) -> IntArray:
        """Any hosts of the classes."""
        nodes = np.empty_like(pattern)
        for one in np.unique(pattern).tolist():
            here = pattern == one
            hosts = np.flatnonzero(self.merged.classes.of_host == one)
            nodes[here] = self._random.permutation(hosts)[: int(here.sum())]
        return nodes

    def _split(self) -> bool:
        """Tell costs apart, then split classes; False if all are single hosts."""
        assert self._best is not None
        classes: HostClasses | None = self.merged.classes
        if self.tolerance == 0.0:
            ceiling = max(self.ceiling, self._best[0])
            classes = finer(self.data, self.candidate, self.merged, self._best[1], ceiling)
        if classes is None:
            return False
        self.tolerance = 0.0
        self.merged, self._best = merge(self.data, self.candidate, classes), None
        return True


def first_classes(data: ProblemData, candidate: CandidateData) -> HostClasses | None:
    """Which hosts to merge at first; ``None`` if they do not fall into a few classes."""
    alike = alike_classes(data, candidate)
    return alike if alike is not None else host_classes(data, candidate, FIRST_CLASSES)


def alike_classes(data: ProblemData, candidate: CandidateData) -> HostClasses | None:
    """
    More classes than at first elsewhere, of hosts that are alike: racks with hosts that are slow in many ways.

    Only of large grids whose sends are not blocking: elsewhere fewer classes tell as much, and sooner.
    """
    if data.p2p != "async" or candidate.num_cells <= MAX_FAR:
        return None
    classes = host_classes(data, candidate, min(MAX_ALIKE, data.num_nodes // HOSTS_OF_A_CLASS))
    if classes is None or classes.tolerance > ALIKE_COSTS or classes.number <= FIRST_CLASSES:
        return None
    return classes

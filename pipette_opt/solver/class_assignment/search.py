"""Search over patterns (host class of each cell): raises a lower bound and refines the classes step by step."""

import logging
from collections.abc import Callable

import numpy as np
from ortools.sat.python import cp_model

from pipette_opt.base.types import IntArray
from pipette_opt.plans.clock import Clock
from pipette_opt.problem.best_links import has_room
from pipette_opt.problem.data import CandidateData, ProblemData
from pipette_opt.problem.objective import placed_objective_ticks
from pipette_opt.solver.class_assignment.model import build_merged, pattern_of
from pipette_opt.solver.class_assignment.problem import merge, place_classes
from pipette_opt.solver.class_assignment.splits import finer
from pipette_opt.solver.class_assignment.twins import HostClasses, host_classes
from pipette_opt.solver.stoppable import new_solver, solve_within

logger = logging.getLogger(__name__)

FIRST_CLASSES = 8
"""Largest number of host classes at the start. Chosen."""

MAX_ALIKE = 24
"""Largest number of host classes at the start, on large grids whose hosts are similar. Chosen."""

ALIKE_COSTS = 0.02
"""Largest relative difference of costs within a class of similar hosts, on large grids. Chosen."""

HOSTS_OF_A_CLASS = 4
"""Least mean number of hosts in a class, if a search starts with more than :data:`FIRST_CLASSES` classes. Chosen."""

FIRST_TOLERANCE = 0.01
"""Relative difference up to which costs count as equal at the start: symmetric models are solved quickly. Chosen."""

NEAR_PATTERN = 0.125
"""
Classes are split if the best pattern (host class of each cell) is this near to the bound, as a fraction of the gap from
bound to objective ceiling. Chosen.
"""

FIRST_CALL_S = 2.0
"""Time limit of the first CP-SAT call on up to 32 cells, seconds; grows with the cube of the cells. Chosen."""

MAX_FIRST_CALL_S = 20.0
"""Largest time limit of the first CP-SAT call, seconds. Chosen."""

SLICE_GROWTH = 2.0
"""Factor by which the time limit grows after a call that was too short. Chosen."""

MAX_MINIMISED = 40
"""
Largest number of cells at which the model minimises; larger models only ask whether an objective ceiling is reachable.

Chosen by the placement benchmark.
"""

FIRST_REACH = 0.6
"""
First objective ceiling to refute if the model does not minimise, as a fraction of the gap from bound to ceiling.

Refuting a small fraction takes as long as a large one. Chosen.
"""

MAX_FAR = 80
"""With more cells than this, a single CP-SAT call takes most of the time. Chosen by the placement benchmark."""

NEAR_REACH = 0.1
"""First fraction of the gap to refute above :data:`MAX_FAR` cells; larger ones are not refuted in time. Chosen."""

MIDDLE = 0.5
"""Fraction of the gap that later calls refute, and the first call once a call was too short. Chosen."""

OnBound = Callable[[int], None]
"""Callback with each better lower bound, integer ticks."""

OnPattern = Callable[[IntArray], int]
"""Callback with hosts that match a pattern, shape of the grid; returns the largest objective to look for, ticks."""


class MergedSearch:
    """
    Class-assignment search of one candidate configuration, which can be continued.

    Parameters
    ----------
    floor
        Known lower bound, integer ticks.
    ceiling
        Largest objective to look for, ticks.
    classes
        First partition of the hosts into classes.

    Attributes
    ----------
    slice_s
        Time limit of one CP-SAT call, seconds.
    ended
        Whether the search can improve nothing further.
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
        """Take over better bound and objective ceiling, and a good placement if one is known."""
        self.bound, self.ceiling = max(self.bound, floor), min(self.ceiling, ceiling)
        if nodes is not None:
            self._nodes = nodes

    def run(
        self,
        clock: Clock,
        workers: int = 1,
        *,
        on_bound: OnBound = lambda bound: None,
        on_pattern: OnPattern | None = None,
    ) -> int:
        """Search until the clock is over. Return a lower bound, ticks; above the ceiling: no placement is better."""
        while self.bound <= self.ceiling and not clock.stop.is_set():
            before_s, number = clock.left_s, self.merged.classes.number
            complete = self._bisect(clock, workers, on_bound, on_pattern)
            logger.info(
                "%d classes of hosts (costs within %g %%): bound %d, pattern %s, ceiling %d, %s in %.2f s",
                number,
                100 * self.tolerance,
                self.bound,
                None if self._best is None else self._best[0],
                self.ceiling,
                "done" if complete else "not done",
                before_s - clock.left_s,
            )
            self.ended = self.bound > self.ceiling
            if clock.is_over or self.ended:
                break
            if not complete:
                self.slice_s *= SLICE_GROWTH
                continue
            if not self._split():
                self.ended = True
                break
        return self.bound

    def _bisect(self, clock: Clock, workers: int, on_bound: OnBound, on_pattern: OnPattern | None) -> bool:
        """Solve models until the best pattern is near the bound. Return ``False`` if a model took too long."""
        complete = True
        if self._nodes is not None:
            self._keep(self.merged.classes.of_host[self._nodes])
        high = self.ceiling if self._best is None else min(self.ceiling, self._best[0] - 1)
        reach = self._first_reach
        probe = high if self._minimises else self.bound + int(reach * (high - self.bound))
        while self.bound <= self.ceiling and not clock.stop.is_set():
            left = min(self.slice_s, clock.left_s)
            if left <= 0:
                return False
            proven, pattern = self._solve(probe, clock.after(left), workers)
            if proven > self.bound:
                self.bound = proven
                on_bound(self.bound)
            if pattern is not None:
                if on_pattern is not None:
                    self.ceiling = min(self.ceiling, on_pattern(self._hosts(pattern)))
                value = self._keep(pattern)
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
        """
        Return the distance of bound and best pattern (host class of each cell) below which classes are split, as a
        fraction of the gap.

        The distance is 0 if all classes of the best pattern are single hosts.
        """
        if self._best is None:
            return NEAR_PATTERN
        return 0.0 if (self.merged.classes.sizes[np.unique(self._best[1])] == 1).all() else NEAR_PATTERN

    def _solve(self, ceiling: int, clock: Clock, workers: int) -> tuple[int, IntArray | None]:
        """
        Return a lower bound in integer ticks, and a pattern (host class of each cell) that costs at most the objective
        ceiling; ``None`` if none was found.

        While minimising is quick, the pattern is the best one. Later any pattern will do, as its absence is proven much
        sooner.
        """
        model = cp_model.CpModel()
        variables = build_merged(model, self.merged, min(self.bound, ceiling), ceiling)
        if not self._minimises:
            model.proto.clear_objective()
        solver = new_solver()
        solver.parameters.linearization_level = 0  # linear relaxations cost more time than they save here
        status = solve_within(solver, model, clock, workers, self.seed)
        if status == cp_model.INFEASIBLE:
            return ceiling + 1, None
        complete = status == cp_model.OPTIMAL
        proven = round(solver.objective_value) if complete and self._minimises else self.bound
        self._minimises &= complete
        if status not in (cp_model.OPTIMAL, cp_model.FEASIBLE):
            return proven, None
        return proven, pattern_of(solver, variables.grid_of(0))

    def _keep(self, pattern: IntArray) -> int:
        """Return the cost of a pattern in ticks, and keep it if it is the best so far."""
        placed = place_classes(self.merged, pattern)
        value = placed_objective_ticks(self.merged.candidate, placed)
        if self._best is None or value < self._best[0]:
            self._best = value, pattern
        return value

    def _hosts(self, pattern: IntArray) -> IntArray:
        """Return random hosts of the pattern's classes, one for each cell."""
        nodes = np.empty_like(pattern)
        for host_class in np.unique(pattern).tolist():
            here = pattern == host_class
            hosts = np.flatnonzero(self.merged.classes.of_host == host_class)
            nodes[here] = self._random.permutation(hosts)[: int(here.sum())]
        return nodes

    def _split(self) -> bool:
        """Set the cost tolerance to zero; if it is, split classes. Return ``False`` if all are single hosts."""
        assert self._best is not None
        classes: HostClasses | None = self.merged.classes
        if self.tolerance == 0.0:
            ceiling = max(self.ceiling, self._best[0])
            classes = finer(self.candidate, self.merged, self._best[1], ceiling)
        if classes is None:
            return False
        self.tolerance = 0.0
        self.merged, self._best = merge(self.data, self.candidate, classes), None
        return True


def first_classes(data: ProblemData, candidate: CandidateData) -> HostClasses | None:
    """Return the first partition of the hosts; ``None`` if they do not form a few classes."""
    alike = alike_classes(data, candidate)
    return alike if alike is not None else host_classes(data, candidate, FIRST_CLASSES)


def alike_classes(data: ProblemData, candidate: CandidateData) -> HostClasses | None:
    """
    Return a first partition into many classes of similar hosts, such as racks with slow hosts of many sorts.

    ``None`` unless the grid is large and sends are asynchronous; otherwise fewer classes give an equal bound sooner.
    """
    if data.p2p != "async" or candidate.num_cells <= MAX_FAR:
        return None
    classes = host_classes(data, candidate, min(MAX_ALIKE, data.num_nodes // HOSTS_OF_A_CLASS))
    if classes is None or classes.tolerance > ALIKE_COSTS or classes.number <= FIRST_CLASSES:
        return None
    return classes

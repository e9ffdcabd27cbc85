"""Ceilings refuted by the courses of columns."""

from collections.abc import Callable

import numpy as np
from ortools.sat.python import cp_model

from pipette_opt.base.types import IntArray
from pipette_opt.problem.data import CandidateData, ProblemData
from pipette_opt.solver.classes.racks import Racks
from pipette_opt.solver.column_types.enumeration import Courses, find_courses
from pipette_opt.solver.column_types.model import build_courses
from pipette_opt.solver.column_types.placements import placement
from pipette_opt.solver.stoppable import TimeSlice

MOST_COURSES = 250_000
"""Courses above which a range of periods is split instead: listing them takes too long. Chosen."""

MOST_BY_RACK = 1_000
"""Courses above which they are not told by rack: the model gets too large. Chosen."""

MOST_PROBED = 5_000
"""Courses above which CP-SAT does not probe: it takes longer than what it finds is worth. Chosen."""

FEW = 64
"""Courses up to which they are told by rack at once: by themselves they are refuted no sooner. Chosen."""

COARSE_SHARE = 0.15
"""Share of its time that a model has that is not told by rack, if the one told by rack follows. Chosen."""

OnPlacement = Callable[[IntArray], None]
"""Called with the hosts of each cell, shape ``(P, D)``, of placements that racks and kinds promise to be good."""


class CourseRefuter:
    """
    First by the courses alone, which is soon done unless they are few; where there are counts of them, told by rack.

    Parameters
    ----------
    on_placement
        Called with what racks and kinds promise, if they are not refuted.
    """

    def __init__(
        self,
        data: ProblemData,
        candidate: CandidateData,
        racks: Racks,
        on_placement: OnPlacement = lambda nodes: None,
    ) -> None:
        self.data, self.candidate, self.racks, self.on_placement = data, candidate, racks, on_placement
        self.random = np.random.default_rng(0)

    def __call__(
        self, ceiling: int, shortest: int, longest: int, time_slice: TimeSlice, *, thorough: bool = True
    ) -> bool | None:
        """
        Whether no placement with a period of the range costs at most the ceiling; ``None`` if that took too long.

        Unless ``thorough`` only what is soon done is tried. May raise :class:`OutOfTimeError`, which says ``None``.
        """
        courses = find_courses(
            self.candidate, self.data.p2p, self.racks, ceiling, longest, MOST_COURSES, time_slice.check
        )
        if courses is None:
            return None
        by_rack = thorough and courses.number <= MOST_BY_RACK
        if not (by_rack and courses.number <= FEW):
            share = 1.0 if thorough and not by_rack else COARSE_SHARE
            if self._refutes(courses, ceiling, shortest, time_slice.part(share), by_rack=False):
                return True
        return self._refutes(courses, ceiling, shortest, time_slice, by_rack=True) if by_rack else None

    def _refutes(
        self, courses: Courses, ceiling: int, shortest: int, time_slice: TimeSlice, *, by_rack: bool
    ) -> bool | None:
        """Whether one of the models has no solution; a solution that is told by rack is placed."""
        built = build_courses(
            self.candidate, self.racks, courses, ceiling, shortest, by_rack=by_rack, check=time_slice.check
        )
        if built is None:
            return True
        solver = cp_model.CpSolver()
        solver.parameters.linearization_level = 1
        if courses.number > MOST_PROBED:
            solver.parameters.cp_model_probing_level = 0
        status = time_slice.solve(built.model, solver)
        if status == cp_model.INFEASIBLE:
            return True
        if status not in (cp_model.OPTIMAL, cp_model.FEASIBLE):
            return None
        if by_rack:
            self.on_placement(placement(built, solver, courses, self.racks, self.random))
        return False

"""Ceilings refuted by the order of columns that take few courses."""

from dataclasses import dataclass

from ortools.sat.python import cp_model

from pipette_opt.solver.courses.enumeration import find_courses
from pipette_opt.solver.courses.model import build_courses
from pipette_opt.solver.racks.model import build_racks
from pipette_opt.solver.racks.refuting import PlacingRefuter, is_refuted
from pipette_opt.solver.stoppable import TimeSlice

MOST_COURSES = 64
"""Courses above which the order of the columns that take them is not told."""

COUNTS_SHARE = 0.1
"""Of the time, what is spent on counts of the columns of each course, which most periods are refuted by at once."""


@dataclass(eq=False)
class OrderRefuter(PlacingRefuter):
    """
    By the rack and the kind of each cell, with neighbours in the rings of all rows the same columns.

    Columns of slow hosts want neighbours in their rack, in several rows at once, which counts of courses do not see.
    """

    first_parts = 1
    slice_share = 0.3
    reach = 0.5
    joins = 1
    lowers = True

    def __call__(
        self, ceiling: int, shortest: int, longest: int, time_slice: TimeSlice, *, thorough: bool = True
    ) -> bool | None:
        """Whether the model has no solution; ``None`` as well if courses are too many."""
        courses = find_courses(
            self.candidate, self.data.p2p, self.racks, ceiling, longest, MOST_COURSES, time_slice.check
        )
        if courses is None:
            return None
        counts = build_courses(
            self.candidate, self.racks, courses, ceiling, shortest, by_rack=False, check=time_slice.check
        )
        solver = cp_model.CpSolver()
        solver.parameters.linearization_level = 1
        if counts is None or is_refuted(time_slice.part(COUNTS_SHARE).solve(counts.model, solver)):
            return True
        built = build_racks(
            self.candidate,
            self.data.p2p,
            self.racks,
            ceiling,
            shortest,
            longest,
            in_order=True,
            courses=courses.kinds,
        )
        return self.refutes_cells(built, solver, time_slice)

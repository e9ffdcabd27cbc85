"""Ceilings refuted by the courses of columns."""

from dataclasses import dataclass

from ortools.sat.python import cp_model

from pipette_opt.solver.courses.enumeration import Courses, find_courses
from pipette_opt.solver.courses.model import build_courses
from pipette_opt.solver.courses.placements import placement
from pipette_opt.solver.racks.refuting import CellRefuter, PlacingRefuter, is_refuted
from pipette_opt.solver.rows.levels import range_level
from pipette_opt.solver.rows.model import build_rows
from pipette_opt.solver.stoppable import TimeSlice

MOST_COURSES, MOST_BY_RACK, MOST_PROBED = 250_000, 1_000, 5_000
"""Courses above which rows are looked at instead, above which they are not told by rack, and above which probing takes
longer than what it finds is worth."""

FEW = 64
"""Courses that are told by rack at once: by themselves they are refuted no sooner."""

MOST_CELLS = 160
"""Cells of a grid above which it is not asked what the rack and the kind of each can be."""

FIRST_SHARE = 0.6
"""Of the time, what the model that is asked first has, if there is another."""

COARSE_SHARE = 0.15
"""Of the time, what is spent on what should soon be done: the model that is not told by rack, if the other follows."""


@dataclass(eq=False)
class CourseRefuter(PlacingRefuter):
    """
    First by the courses alone, which is soon done unless they are few; where there are counts of them, told by rack.

    With blocking sends also by cells where that takes too long, and cells are asked first from then on if they refute.
    """

    first_parts = 128
    slice_share = 0.08
    reach = 0.3
    joins = 32
    lowers = True

    def __post_init__(self) -> None:
        """Cells are asked with the same racks."""
        self.cells = CellRefuter(self.data, self.candidate, self.racks, self.on_placement)
        self.asks_cells = self.data.p2p == "blocking" and self.candidate.num_cells <= MOST_CELLS
        self.cells_first = False

    def __call__(
        self, ceiling: int, shortest: int, longest: int, time_slice: TimeSlice, *, thorough: bool = True
    ) -> bool | None:
        """Whether a model has no solution."""
        courses = find_courses(
            self.candidate, self.data.p2p, self.racks, ceiling, longest, MOST_COURSES, time_slice.check
        )
        if courses is None:
            return self._refutes_by_rows(
                ceiling, shortest, longest, time_slice if thorough else time_slice.part(COARSE_SHARE)
            )
        finest = thorough and courses.number <= MOST_BY_RACK
        if not (finest and courses.number <= FEW):
            share = 1.0 if thorough and not finest else COARSE_SHARE
            if self._refutes(courses, ceiling, shortest, time_slice.part(share), by_rack=False):
                return True
        return self._refutes_finest(courses, ceiling, shortest, longest, time_slice) if finest else None

    def _refutes_finest(
        self, courses: Courses, ceiling: int, shortest: int, longest: int, time_slice: TimeSlice
    ) -> bool | None:
        """Told by rack, and by cells; who refutes is asked first from then on."""
        if not self.asks_cells:
            return self._refutes(courses, ceiling, shortest, time_slice, by_rack=True)
        refuted: list[bool | None] = []
        for by_cells, share in ((self.cells_first, FIRST_SHARE), (not self.cells_first, 1.0)):
            part = time_slice.part(share)
            if by_cells:
                refuted.append(self.cells(ceiling, shortest, longest, part))
            else:
                refuted.append(self._refutes(courses, ceiling, shortest, part, by_rack=True))
            if refuted[-1]:
                self.cells_first = by_cells
                return True
        return False if False in refuted else None

    def _refutes(
        self, courses: Courses, ceiling: int, shortest: int, time_slice: TimeSlice, *, by_rack: bool
    ) -> bool | None:
        """Whether one of the models has no solution."""
        built = build_courses(
            self.candidate, self.racks, courses, ceiling, shortest, by_rack=by_rack, check=time_slice.check
        )
        if built is None:
            return True
        solver = cp_model.CpSolver()
        solver.parameters.linearization_level = 1
        if courses.number > MOST_PROBED:
            solver.parameters.cp_model_probing_level = 0
        refuted = is_refuted(time_slice.solve(built.model, solver))
        if by_rack and refuted is False:
            self.on_placement(placement(built, solver, courses, self.racks, self.random))
        return refuted

    def _refutes_by_rows(self, ceiling: int, shortest: int, longest: int, time_slice: TimeSlice) -> bool | None:
        """Whether there are no counts of classes in rows: often soon said of long periods; ``None`` if there are."""
        level = range_level(self.candidate, self.racks.costs, ceiling, shortest, longest)
        if level is None:
            return True
        built = build_rows(self.candidate, self.racks.classes, self.racks.costs, level, runs=self.data.p2p == "async")
        return is_refuted(time_slice.solve(built.model, cp_model.CpSolver())) or None

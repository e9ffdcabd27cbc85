"""A placement from the counts of courses by rack: any host of a rack and kind takes its cells."""

import numpy as np
from ortools.sat.python.cp_model import CpSolver

from pipette_opt.base.types import IntArray
from pipette_opt.solver.courses.enumeration import Courses
from pipette_opt.solver.courses.model import CourseModel
from pipette_opt.solver.racks.placements import any_hosts
from pipette_opt.solver.racks.structure import Racks


def placement(
    built: CourseModel, solver: CpSolver, courses: Courses, racks: Racks, random: np.random.Generator
) -> IntArray:
    """Hosts of each cell, shape ``(P, D)``, of a solution that is told by rack."""
    taken = [one for one, columns in enumerate(built.columns) if solver.value(columns)]
    parts = [_racks(built, solver, courses.kinds.shape[1], racks.num_racks, one) for one in taken]
    rack = np.concatenate(parts, axis=1)
    kind = np.repeat(courses.kinds[taken].T, [part.shape[1] for part in parts], axis=1)
    return any_hosts(rack, kind, racks, random)


def _racks(built: CourseModel, solver: CpSolver, num_rows: int, num_racks: int, course: int) -> IntArray:
    """Rack of each cell of the columns of one course, shape ``(P, columns)``: who can stay in a rack does."""

    def hosts_in(row: int, rack: int) -> int:
        place = (row, rack, course)
        return solver.value(built.hosts[place]) if place in built.hosts else 0

    hosts = [[hosts_in(row, rack) for rack in range(num_racks)] for row in range(num_rows)]
    found = [np.repeat(np.arange(num_racks), hosts[0])]
    for left in hosts[1:]:
        here = np.full(len(found[0]), -1)
        for column, rack in enumerate(found[-1].tolist()):
            if left[rack]:
                here[column] = rack
                left[rack] -= 1
        here[here < 0] = np.repeat(np.arange(num_racks), left)
        found.append(here)
    return np.stack(found)

"""CP-SAT model that assigns a host class to each grid cell; such an assignment is called a pattern."""

import itertools

import numpy as np
from ortools.sat.python.cp_model import CpModel, CpSolver, LinearExpr

from pipette_opt.base.types import IntArray
from pipette_opt.problem.data import UNUSABLE_TICKS
from pipette_opt.solver.class_assignment.problem import Merged
from pipette_opt.solver.class_assignment.symmetry import interchangeable
from pipette_opt.solver.constraints import RULES
from pipette_opt.solver.objective import add_objective
from pipette_opt.solver.variables import Cell, GridVariables, Variables

MAX_DOUBLED = 30
"""
With at most this many rows, the weights that order equal classes double from row to row. Chosen; avoids overflow.

A host in one row then outweighs all hosts in later rows.
"""


def build_merged(model: CpModel, merged: Merged, bound: int, ceiling: int) -> Variables:
    """
    Build the placement model with host classes, each in at most as many cells as it has members.

    Interchangeable classes break the symmetry of equal patterns; ordering the columns would cost more than it saves.

    Parameters
    ----------
    bound
        Known lower bound of the candidate configuration, integer ticks.
    ceiling
        Largest objective to look for, ticks.
    """
    data, sizes = merged.data, merged.classes.sizes
    variables = Variables(model, data, {0: bound}, ceiling, sizes)
    for add in RULES:
        add(model, data, variables)
    grid = variables.grid_of(0)
    if int(sizes.sum()) == merged.candidate.num_cells:
        for host_class, size in enumerate(sizes.tolist()):
            model.add(LinearExpr.sum(grid.cells_on(host_class)) == size)
    _add_crossings(model, merged, grid)
    _add_order(model, grid, interchangeable(merged))
    add_objective(model, data, variables)
    return variables


def _add_crossings(model: CpModel, merged: Merged, grid: GridVariables) -> None:
    """
    Add literals for the pair of classes that each column has in two consecutive rows.

    The literals follow from the classes of the cells. They strengthen the linear relaxation.
    """
    ticks = merged.candidate.p2p_ticks
    usable = np.maximum(ticks, ticks.T) < UNUSABLE_TICKS
    P, D, K = grid.shape
    for row, column, part in np.ndindex(P - 1, D, K):
        tails, heads = grid.hosts_of((row, column, part)), grid.hosts_of((row + 1, column, part))
        crossing = {(a, b): model.new_bool_var("") for a in tails for b in heads if usable[a, b]}
        for a, tail in tails.items():
            model.add(LinearExpr.sum([both for pair, both in crossing.items() if pair[0] == a]) == tail)
        for b, head in heads.items():
            model.add(LinearExpr.sum([both for pair, both in crossing.items() if pair[1] == b]) == head)


def _add_order(model: CpModel, grid: GridVariables, classes: tuple[int, ...]) -> None:
    """Require that interchangeable classes with lower numbers are in earlier rows."""
    P = grid.shape[0]
    weight = [2 ** (P - 1 - row) if P <= MAX_DOUBLED else P - row for row in range(P)]

    def first(host_class: int) -> LinearExpr:
        cells = [cell for cell in grid.cells if host_class in grid.hosts_of(cell)]
        return LinearExpr.weighted_sum(
            [grid.hosts_of(cell)[host_class] for cell in cells], [weight[cell[0]] for cell in cells]
        )

    for earlier, later in itertools.pairwise(classes):
        model.add(first(earlier) >= first(later))


def pattern_of(solver: CpSolver, grid: GridVariables) -> IntArray:
    """Return the class of each cell, an array with the shape of the grid."""
    pattern = np.empty(grid.shape, dtype=np.int64)
    cell: Cell
    for cell in grid.cells:
        pattern[cell] = next(host_class for host_class, host in grid.hosts_of(cell).items() if solver.value(host))
    return pattern

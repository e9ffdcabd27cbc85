"""Patterns of classes as a CP-SAT model."""

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
"""Rows up to which a host in one outweighs any in those behind."""


def build_merged(model: CpModel, merged: Merged, bound: int, ceiling: int) -> Variables:
    """
    The placement model with classes for hosts, each in as many cells as it has members.

    Equal patterns are told apart by classes that may change places, not by the columns' order: that would cost more
    than it saves here.

    Parameters
    ----------
    bound
        A known bound of the candidate.
    ceiling
        Largest objective of interest.
    """
    data, sizes = merged.data, merged.classes.sizes
    variables = Variables(model, data, {0: bound}, ceiling, sizes)
    for add in RULES:
        add(model, data, variables)
    grid = variables.grid_of(0)
    if int(sizes.sum()) == merged.candidate.num_cells:
        for one, size in enumerate(sizes.tolist()):
            model.add(LinearExpr.sum(grid.cells_on(one)) == size)
    _add_crossings(model, merged, grid)
    _add_order(model, grid, interchangeable(merged))
    add_objective(model, data, variables)
    return variables


def _add_crossings(model: CpModel, merged: Merged, grid: GridVariables) -> None:
    """
    Which two classes each column has in a row and in the next.

    Implied by the classes of the cells; relaxations see more through them.
    """
    ticks = merged.candidate.p2p_ticks
    usable = np.maximum(ticks, ticks.T) < UNUSABLE_TICKS
    P, D, K = grid.shape
    for row, column, part in np.ndindex(P - 1, D, K):
        tails, heads = grid.hosts_of((row, column, part)), grid.hosts_of((row + 1, column, part))
        crossing = {(a, b): model.new_bool_var("") for a in tails for b in heads if usable[a, b]}
        for a, tail in tails.items():
            model.add(LinearExpr.sum([one for pair, one in crossing.items() if pair[0] == a]) == tail)
        for b, head in heads.items():
            model.add(LinearExpr.sum([one for pair, one in crossing.items() if pair[1] == b]) == head)


def _add_order(model: CpModel, grid: GridVariables, classes: tuple[int, ...]) -> None:
    """Of classes that may change places, those listed first have the first rows."""
    P = grid.shape[0]
    weight = [2 ** (P - 1 - row) if P <= MAX_DOUBLED else P - row for row in range(P)]

    def first(one: int) -> LinearExpr:
        cells = [cell for cell in grid.cells if one in grid.hosts_of(cell)]
        return LinearExpr.weighted_sum(
            [grid.hosts_of(cell)[one] for cell in cells], [weight[cell[0]] for cell in cells]
        )

    for one, other in itertools.pairwise(classes):
        model.add(first(one) >= first(other))


def pattern_of(solver: CpSolver, grid: GridVariables) -> IntArray:
    """Class of each cell, shape of the grid."""
    pattern = np.empty(grid.shape, dtype=np.int64)
    cell: Cell
    for cell in grid.cells:
        pattern[cell] = next(one for one, host in grid.hosts_of(cell).items() if solver.value(host))
    return pattern

"""Rules of a placement as CP-SAT constraints; the docstring of each function is its rule."""

import itertools

import numpy as np
from ortools.sat.python.cp_model import CpModel, IntVar, LinearExpr

from pipette_opt.base.types import BoolArray
from pipette_opt.problem.data import ProblemData
from pipette_opt.solver.variables import Cell, GridVariables, Variables, usable_hops


def add_one_candidate(model: CpModel, data: ProblemData, variables: Variables) -> None:
    """Exactly one candidate configuration is chosen."""
    model.add_exactly_one(variables.chosen.values())


def add_one_host_per_cell(model: CpModel, data: ProblemData, variables: Variables) -> None:
    """Every cell of the chosen candidate configuration's grid has one host; cells of other grids have none."""
    for grid in variables.grids:
        for cell in grid.cells:
            model.add(LinearExpr.sum(list(grid.hosts_of(cell).values())) == variables.used(grid))


def add_one_cell_per_host(model: CpModel, data: ProblemData, variables: Variables) -> None:
    """No host is in two cells; a class of hosts is in at most as many cells as it has members."""
    for grid in variables.grids:
        for node, copies in enumerate(grid.copies.tolist()):
            cells = grid.cells_on(node)
            if copies == 1 and len(cells) > 1:
                model.add_at_most_one(cells)
            elif len(cells) > copies:
                model.add(LinearExpr.sum(cells) <= copies)


def add_memory_capacity(model: CpModel, data: ProblemData, variables: Variables) -> None:
    """The GPUs of a cell's host have the memory that the stages of the cell's row need."""
    for grid in variables.grids:
        needs = np.array([candidate.row_need_mib for candidate in grid.candidates])  # (members, P)
        chosen = [variables.chosen[index] for index in grid.members]
        for cell in grid.cells:
            hosts = grid.hosts_of(cell)
            capacity = LinearExpr.weighted_sum(list(hosts.values()), data.capacity_mib[list(hosts)].tolist())
            model.add(capacity >= LinearExpr.weighted_sum(chosen, needs[:, cell[0]].tolist()))


def add_links_exist(model: CpModel, data: ProblemData, variables: Variables) -> None:
    """Cells that exchange messages are on hosts with a link that the chosen candidate configuration may use."""
    for grid in variables.grids:
        for kind, tail, head in grid.hops():
            usable = [usable_hops(candidate, kind, tail, head, grid.copies) for candidate in grid.candidates]
            for_some: BoolArray = np.logical_or.reduce(usable)
            _forbid(model, grid, tail, head, ~for_some, [])
            for index, for_this in zip(grid.members, usable, strict=True):
                _forbid(model, grid, tail, head, for_some & ~for_this, [variables.chosen[index]])


def _forbid(
    model: CpModel, grid: GridVariables, tail: Cell, head: Cell, pairs: BoolArray, condition: list[IntVar]
) -> None:
    """
    Under a condition, the two cells are not on any of the given pairs of hosts.

    Two cells on one host are excluded by another rule, unless the host stands for a class with several members.
    """
    heads = grid.hosts_of(head)
    for node, host in grid.hosts_of(tail).items():
        others = [
            heads[other]
            for other in np.flatnonzero(pairs[node]).tolist()
            if other in heads and (other != node or grid.copies[node] > 1)
        ]
        if others:
            model.add(LinearExpr.sum(others) == 0).only_enforce_if([host, *condition])


def add_first_column_has_least_host(model: CpModel, data: ProblemData, variables: Variables) -> None:
    """
    The first cell has the host with the lowest index among the hosts of the first row.

    Rotating the rings of all columns together, or all tensor rings, changes no cost, so this rule loses nothing.
    Reversing a ring or the pipeline may change costs. The parts of a context group keep their order, as gradient rings
    pass through them column by column.
    """
    for grid in variables.grids:
        _, D, K = grid.shape
        first = grid.hosts_of((0, 0, 0))
        for d, k in itertools.product(range(D), range(K // grid.context_nodes)):
            if (d, k) != (0, 0):
                others = grid.hosts_of((0, d, k))
                for node in first:
                    before = [other for host, other in others.items() if host < node]
                    if before:
                        model.add_at_most_one([first[node], *before])


RULES = (
    add_one_candidate,
    add_one_host_per_cell,
    add_one_cell_per_host,
    add_memory_capacity,
    add_links_exist,
)
"""Rules that every placement satisfies, in the order in which they are added."""

CONSTRAINTS = (*RULES, add_first_column_has_least_host)
"""All rules of a placement, and the rule that breaks the symmetry of equal placements."""

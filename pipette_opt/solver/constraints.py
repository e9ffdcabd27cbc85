"""The rules of a placement; each is one function, and its docstring is the rule."""

import itertools

import numpy as np
from ortools.sat.python.cp_model import CpModel, IntVar, LinearExpr

from pipette_opt.problem import ProblemData
from pipette_opt.solver.variables import Variables, usable_arcs


def add_one_candidate(model: CpModel, data: ProblemData, variables: Variables) -> None:
    """Exactly one candidate is chosen."""
    model.add_exactly_one(variables.chosen.values())


def add_one_host_per_cell(model: CpModel, data: ProblemData, variables: Variables) -> None:
    """Every cell of the chosen candidate's grid has one host; cells of other grids have none."""
    for grid in variables.grids:
        for cell in grid.cells:
            hosts = LinearExpr.sum(list(grid.hosts_of(cell).values()))
            model.add(hosts == (variables.used(grid) if len(variables.grids) > 1 else 1))


def add_one_cell_per_host(model: CpModel, data: ProblemData, variables: Variables) -> None:
    """No host has two cells."""
    for grid in variables.grids:
        for node in range(data.num_nodes):
            cells = grid.cells_on(node)
            if len(cells) > 1:
                model.add_at_most_one(cells)


def add_memory_capacity(model: CpModel, data: ProblemData, variables: Variables) -> None:
    """The GPUs of a cell's host have the memory that the stages of the cell's row need."""
    for grid in variables.grids:
        needs = np.array([one.row_need_mib for one in grid.candidates])  # (members, P)
        chosen = [variables.chosen[index] for index in grid.members]
        for cell in grid.cells:
            hosts = grid.hosts_of(cell)
            capacity = LinearExpr.weighted_sum(list(hosts.values()), data.capacity_mib[list(hosts)].tolist())
            model.add(capacity >= LinearExpr.weighted_sum(chosen, needs[:, cell[0]].tolist()))


def add_hops_follow_hosts(model: CpModel, data: ProblemData, variables: Variables) -> None:
    """Cells that talk use the one directed link from host to host, and this link exists."""
    for grid in variables.grids:
        for _, tail, head in grid.hops():
            arcs = grid.arcs(tail, head)
            leaving: dict[int, list[IntVar]] = {node: [] for node in grid.hosts_of(tail)}
            entering: dict[int, list[IntVar]] = {node: [] for node in grid.hosts_of(head)}
            for (u, v), arc in arcs.items():
                leaving[u].append(arc)
                entering[v].append(arc)
            for node, host in grid.hosts_of(tail).items():
                model.add(LinearExpr.sum(leaving[node]) == host)
            for node, host in grid.hosts_of(head).items():
                model.add(LinearExpr.sum(entering[node]) == host)


def add_links_exist(model: CpModel, data: ProblemData, variables: Variables) -> None:
    """A candidate is not chosen together with a link that it may not use, where others of its shape may."""
    for grid in variables.grids:
        for tail, head, arcs in grid.made_arcs():
            for index, candidate in zip(grid.members, grid.candidates, strict=True):
                usable = usable_arcs(candidate, tail, head)
                for (u, v), arc in arcs.items():
                    if not usable[u, v]:
                        model.add_bool_or(arc.negated(), variables.chosen[index].negated())


def add_first_column_has_least_host(model: CpModel, data: ProblemData, variables: Variables) -> None:
    """
    Of the hosts of the first row, the first cell has the one listed first.

    Turning all rings of columns together, or all tensor rings, changes no cost; going round backwards may, and so
    may reversing the pipeline, so those stay.
    """
    for grid in variables.grids:
        _, D, K = grid.shape
        first = grid.hosts_of((0, 0, 0))
        for d, k in itertools.product(range(D), range(K)):
            if (d, k) != (0, 0):
                others = grid.hosts_of((0, d, k))
                for node in first:
                    before = [other for host, other in others.items() if host < node]
                    if before:
                        model.add(LinearExpr.sum([first[node], *before]) <= variables.used(grid))


def add_one_role_per_link(model: CpModel, data: ProblemData, variables: Variables) -> None:
    """A pair of hosts is used by one hop of the grid at most (implied; it joins path and ring in the relaxation)."""
    for grid in variables.grids:
        if sum(size > 1 for size in grid.shape) < 2:
            continue
        pairs: dict[tuple[int, int], list[IntVar]] = {}
        for _, _, arcs in grid.made_arcs():
            for (u, v), arc in arcs.items():
                pairs.setdefault((min(u, v), max(u, v)), []).append(arc)
        for uses in pairs.values():
            if len(uses) > 1:
                model.add_at_most_one(uses)


CONSTRAINTS = (
    add_one_candidate,
    add_one_host_per_cell,
    add_one_cell_per_host,
    add_memory_capacity,
    add_hops_follow_hosts,
    add_links_exist,
    add_first_column_has_least_host,
    add_one_role_per_link,
)
"""All rules, in the order in which they are added."""

"""Warm start of the CP-SAT placement model from a known solution."""

from ortools.sat.python.cp_model import CpModel

from pipette_opt.base.types import IntArray
from pipette_opt.problem.solution import Solution
from pipette_opt.solver.variables import Variables


def add_hint(model: CpModel, variables: Variables, solution: Solution) -> None:
    """Add the candidate configuration and the hosts of a solution as hints; the candidate must be in the model."""
    for index, chosen in variables.chosen.items():
        model.add_hint(chosen, index == solution.candidate)
    for grid in variables.grids:
        active = solution.candidate in grid.members
        nodes = _turned(solution.nodes) if active else None
        for cell in grid.cells:
            for node, host in grid.hosts_of(cell).items():
                model.add_hint(host, nodes is not None and int(nodes[cell]) == node)


def _turned(nodes: IntArray) -> IntArray:
    """Return an equal placement with rotated rings, whose first cell has the lowest host of the first row."""
    first = nodes[0]
    column, part = divmod(int(first.argmin()), first.shape[1])
    turned: IntArray = _roll(nodes, column, part)
    return turned


def _roll(nodes: IntArray, column: int, part: int) -> IntArray:
    columns = [(d + column) % nodes.shape[1] for d in range(nodes.shape[1])]
    parts = [(k + part) % nodes.shape[2] for k in range(nodes.shape[2])]
    return nodes[:, columns][:, :, parts]

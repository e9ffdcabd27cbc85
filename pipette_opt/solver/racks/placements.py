"""A placement from the rack and the kind of each cell: any hosts of these take it."""

import numpy as np
from ortools.sat.python.cp_model import CpSolver

from pipette_opt.base.types import IntArray
from pipette_opt.solver.racks.model import RackModel
from pipette_opt.solver.racks.structure import Racks


def placement(built: RackModel, solver: CpSolver, racks: Racks, random: np.random.Generator) -> IntArray:
    """Hosts of each cell, shape ``(P, D)``, of a solution."""
    told = [
        [next(pair for pair, is_pair in cells.items() if solver.value(is_pair)) for cells in column]
        for column in built.cells
    ]
    rack, kind = np.array(told, dtype=np.int64).transpose(2, 1, 0)
    return any_hosts(rack, kind, racks, random)


def any_hosts(rack: IntArray, kind: IntArray, racks: Racks, random: np.random.Generator) -> IntArray:
    """Hosts of these racks and kinds, each once, shape ``(P, D)`` as theirs."""
    nodes = np.full(rack.shape, -1, dtype=np.int64)
    for one, other in np.argwhere(racks.sizes).tolist():
        here = (rack == one) & (kind == other)
        nodes[here] = random.permutation(racks.hosts(one, other))[: int(here.sum())]
    return nodes

"""The decisions of the placement model, behind questions."""

from collections.abc import Iterator

import numpy as np
from ortools.sat.python.cp_model import CpModel, IntVar, LinearExpr

from pipette_opt.base.types import BoolArray, IntArray
from pipette_opt.problem.data import UNUSABLE_TICKS, CandidateData, ProblemData

Cell = tuple[int, int, int]
"""Pipeline row, data column, tensor part."""


class GridVariables:
    """
    Placement of one grid shape, shared by the candidates that have it.

    Parameters
    ----------
    members
        Indices of these candidates.
    copies
        How many cells each host may be in, shape ``(num_nodes,)``.
    """

    def __init__(self, model: CpModel, data: ProblemData, members: list[int], copies: IntArray) -> None:
        self.members = members
        self.copies = copies
        self.candidates: list[CandidateData] = [data.candidates[index] for index in members]
        self.shape = self.candidates[0].grid
        self.num_nodes = data.num_nodes
        allowed: BoolArray = np.logical_or.reduce([data.allowed(one) for one in self.candidates])
        P, D, K = self.shape
        self.cells: list[Cell] = [(p, d, k) for p in range(P) for d in range(D) for k in range(K)]
        self._hosts: dict[Cell, dict[int, IntVar]] = {
            cell: {
                node: model.new_bool_var(f"host_{cell}_{node}") for node in np.flatnonzero(allowed[cell[0]]).tolist()
            }
            for cell in self.cells
        }

    def hosts_of(self, cell: Cell) -> dict[int, IntVar]:
        """For each host that the cell may have, whether it has it."""
        return self._hosts[cell]

    def cells_on(self, node: int) -> list[IntVar]:
        """For each cell that may be on the host, whether it is."""
        return [hosts[node] for hosts in self._hosts.values() if node in hosts]

    def hops(self) -> Iterator[tuple[Cell, Cell]]:
        """
        Every pair of cells that talk: to the next row, around the columns, around the tensor parts.

        With interleaving also from the last row to the first, which two rows do anyway.
        """
        P, D, K = self.shape
        wraps = P > 2 and any(candidate.wraps for candidate in self.candidates)
        for p, d, k in self.cells:
            if p + 1 < P or wraps:
                yield (p, d, k), ((p + 1) % P, d, k)
            if D > 1:
                yield (p, d, k), (p, (d + 1) % D, k)
            if K > 1:
                yield (p, d, k), (p, d, (k + 1) % K)


class Variables:
    """
    The choice among some candidates, and the placement of each of their grid shapes.

    ``objective`` is the integer objective of the candidate chosen.

    Parameters
    ----------
    bounds
        What is known about each candidate: its objective is at least this.
    ceiling
        Solutions above are of no interest.
    copies
        How many cells each host may be in, shape ``(num_nodes,)``; one if not given. More stand for a class of hosts,
        which then has costs to itself.
    """

    def __init__(
        self,
        model: CpModel,
        data: ProblemData,
        bounds: dict[int, int],
        ceiling: int,
        copies: IntArray | None = None,
    ) -> None:
        self.indices = list(bounds)
        self.model = model
        self.bounds = bounds
        self.ceiling = ceiling
        self.copies = np.ones(data.num_nodes, dtype=np.int64) if copies is None else copies
        self.chosen: dict[int, IntVar] = {index: model.new_bool_var(f"chosen_{index}") for index in bounds}
        shapes: dict[Cell, list[int]] = {}
        for index in bounds:
            shapes.setdefault(data.candidates[index].grid, []).append(index)
        self.grids: list[GridVariables] = [
            GridVariables(model, data, members, self.copies) for members in shapes.values()
        ]
        self.objective: IntVar = model.new_int_var(min(bounds.values()), ceiling, "objective")

    def grid_of(self, index: int) -> GridVariables:
        """The placement of a candidate."""
        return next(grid for grid in self.grids if index in grid.members)

    def used(self, grid: GridVariables) -> LinearExpr | IntVar | int:
        """1 if a candidate of this shape is chosen."""
        if len(self.grids) == 1:
            return 1
        return LinearExpr.sum([self.chosen[index] for index in grid.members])

    def condition(self, index: int) -> list[IntVar]:
        """What must hold for a candidate's costs to count: that it is chosen; nothing if it is alone."""
        return [self.chosen[index]] if len(self.indices) > 1 else []


def pairs_apart(copies: IntArray) -> BoolArray:
    """Pairs of hosts that two cells may be on: a host twice only if it has copies, shape ``(num_nodes, num_nodes)``."""
    apart: BoolArray = ~np.diag(copies < 2)
    return apart


def usable_hops(candidate: CandidateData, tail: Cell, head: Cell, copies: IntArray) -> BoolArray:
    """Directed host pairs that a candidate may use from one cell to the other, shape ``(num_nodes, num_nodes)``."""
    if head[0] < tail[0] and not candidate.wraps:
        slowest = np.zeros_like(candidate.p2p_ticks)
    elif tail[0] != head[0]:
        slowest = np.maximum(candidate.p2p_ticks, candidate.p2p_ticks.T)
    elif tail[1] != head[1]:
        stages = np.arange(tail[0] * candidate.block.stages, (tail[0] + 1) * candidate.block.stages)
        slowest = candidate.ring_ticks[np.unique(candidate.ring_class[stages])].max(axis=0)
    else:
        slowest = np.maximum(candidate.tensor_forward_ticks, candidate.tensor_backward_ticks)
    usable: BoolArray = slowest < UNUSABLE_TICKS
    return usable & pairs_apart(copies)

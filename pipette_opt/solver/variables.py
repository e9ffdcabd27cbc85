"""The decisions of the joint model, behind questions."""

from collections.abc import Iterable, Iterator

import numpy as np
from ortools.sat.python.cp_model import CpModel, IntVar, LinearExpr

from pipette_opt.problem import UNUSABLE_TICKS, CandidateData, ProblemData
from pipette_opt.types import BoolArray, IntArray

Cell = tuple[int, int, int]
"""Pipeline row, data column, tensor part."""

Arc = tuple[int, int]
"""Directed pair of hosts."""


class GridVariables:
    """
    Placement of one grid shape, shared by the candidates that have it.

    Parameters
    ----------
    members
        Indices of these candidates.
    """

    def __init__(self, model: CpModel, data: ProblemData, members: list[int]) -> None:
        self.model = model
        self.members = members
        self.candidates: list[CandidateData] = [data.candidates[index] for index in members]
        self.shape = self.candidates[0].grid
        self.num_nodes = data.num_nodes
        self.allowed: BoolArray = np.logical_or.reduce([data.allowed(one) for one in self.candidates])
        P, D, K = self.shape
        self.cells: list[Cell] = [(p, d, k) for p in range(P) for d in range(D) for k in range(K)]
        self._host: dict[tuple[Cell, int], IntVar] = {
            (cell, node): model.new_bool_var(f"host_{cell}_{node}")
            for cell in self.cells
            for node in range(self.num_nodes)
            if self.allowed[cell[0], node]
        }
        self._arcs: dict[tuple[Cell, Cell], dict[Arc, IntVar]] = {}

    def hosts_of(self, cell: Cell) -> dict[int, IntVar]:
        """For each host that the cell may have, whether it has it."""
        return {node: self._host[cell, node] for node in range(self.num_nodes) if (cell, node) in self._host}

    def cells_on(self, node: int) -> list[IntVar]:
        """For each cell that may be on the host, whether it is."""
        return [self._host[cell, node] for cell in self.cells if (cell, node) in self._host]

    def hops(self) -> Iterator[tuple[str, Cell, Cell]]:
        """Every pair of cells that talk: ``transfer`` to the next row, ``ring`` of columns, ``tensor`` ring."""
        P, D, K = self.shape
        for p, d, k in self.cells:
            if p + 1 < P:
                yield "transfer", (p, d, k), (p + 1, d, k)
            if D > 1:
                yield "ring", (p, d, k), (p, (d + 1) % D, k)
            if K > 1:
                yield "tensor", (p, d, k), (p, d, (k + 1) % K)

    def arcs(self, tail: Cell, head: Cell) -> dict[Arc, IntVar]:
        """
        For each directed pair of hosts, whether ``tail`` is on the first and ``head`` on the second.

        Made when first asked for, with the pairs that some candidate may use.
        """
        if (tail, head) in self._arcs:
            return self._arcs[tail, head]
        if (head, tail) in self._arcs:
            return {(v, u): variable for (u, v), variable in self._arcs[head, tail].items()}
        usable: BoolArray = np.logical_or.reduce([usable_arcs(one, tail, head) for one in self.candidates])
        usable &= self.allowed[tail[0]][:, None] & self.allowed[head[0]][None, :]
        arcs = {(u, v): self.model.new_bool_var(f"arc_{tail}_{head}_{u}_{v}") for u, v in np.argwhere(usable).tolist()}
        self._arcs[tail, head] = arcs
        return arcs

    def made_arcs(self) -> Iterable[tuple[Cell, Cell, dict[Arc, IntVar]]]:
        """Arc variables that exist."""
        return ((tail, head, arcs) for (tail, head), arcs in self._arcs.items())


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
    """

    def __init__(self, model: CpModel, data: ProblemData, bounds: dict[int, int], ceiling: int) -> None:
        indices = list(bounds)
        self.model = model
        self.bounds = bounds
        self.ceiling = ceiling
        self.data = data
        self.indices = indices
        self.chosen: dict[int, IntVar] = {index: model.new_bool_var(f"chosen_{index}") for index in indices}
        shapes: dict[Cell, list[int]] = {}
        for index in indices:
            shapes.setdefault(data.candidates[index].grid, []).append(index)
        self.grids: list[GridVariables] = [GridVariables(model, data, members) for members in shapes.values()]
        self.objective: IntVar = model.new_int_var(min(bounds.values()), ceiling, "objective")

    @property
    def is_joint(self) -> bool:
        """Whether there is a choice."""
        return len(self.indices) > 1

    def grid_of(self, index: int) -> GridVariables:
        """The placement of a candidate."""
        return next(grid for grid in self.grids if index in grid.members)

    def used(self, grid: GridVariables) -> LinearExpr | IntVar:
        """1 if a candidate of this shape is chosen."""
        return LinearExpr.sum([self.chosen[index] for index in grid.members])

    def at_least(self, index: int, value: LinearExpr | IntVar, least: LinearExpr | IntVar | int) -> None:
        """If this candidate is chosen, ``value >= least``."""
        constraint = self.model.add(value >= least)
        if self.is_joint:
            constraint.only_enforce_if(self.chosen[index])


def usable_arcs(candidate: CandidateData, tail: Cell, head: Cell) -> BoolArray:
    """Directed host pairs that a candidate may use from one cell to the other, shape ``(num_nodes, num_nodes)``."""
    if tail[0] != head[0]:
        usable: BoolArray = (candidate.p2p_ticks < UNUSABLE_TICKS) & (candidate.p2p_ticks.T < UNUSABLE_TICKS)
        return _off_diagonal(usable)
    if tail[1] != head[1]:
        stages = np.arange(tail[0] * candidate.block.stages, (tail[0] + 1) * candidate.block.stages)
        classes = candidate.ring_ticks[np.unique(candidate.ring_class[stages])]
        usable = classes.max(axis=0) < UNUSABLE_TICKS
        return _off_diagonal(usable & usable.T if candidate.grid[1] == 2 else usable)
    hop = np.maximum(candidate.tensor_forward_ticks, candidate.tensor_backward_ticks)
    usable = hop < UNUSABLE_TICKS
    return _off_diagonal(usable & usable.T if candidate.grid[2] == 2 else usable)


def _off_diagonal(usable: BoolArray) -> BoolArray:
    return usable & ~np.eye(len(usable), dtype=np.bool_)


def weighted(arcs: dict[Arc, IntVar], ticks: IntArray) -> LinearExpr | IntVar | int:
    """Cost of the arc that is used, by a matrix over hosts."""
    if not arcs:
        return 0
    tails, heads = np.array(list(arcs), dtype=np.int64).T
    return LinearExpr.weighted_sum(list(arcs.values()), ticks[tails, heads].tolist())

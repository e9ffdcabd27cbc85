"""Decision variables of the placement model, behind methods that name them."""

from collections.abc import Iterator
from typing import Literal

import numpy as np
from ortools.sat.python.cp_model import CpModel, IntVar, LinearExpr

from pipette_opt.base.types import BoolArray, IntArray
from pipette_opt.problem.data import UNUSABLE_TICKS, CandidateData, ProblemData

Cell = tuple[int, int, int]
"""Cell of a grid: pipeline row, data column, part of the slot."""

HopKind = Literal["transfer", "ring", "slot"]
"""Traffic of a hop: activations to the next row, gradients around a ring, or tensor and context rings inside a slot."""


class GridVariables:
    """
    Placement variables of one grid shape, shared by the candidate configurations with this shape.

    Parameters
    ----------
    copies
        Number of cells that each host may be in, shape ``(num_nodes,)``.
    """

    def __init__(self, model: CpModel, data: ProblemData, members: list[int], copies: IntArray) -> None:
        self.members = members
        self.copies = copies
        self.candidates: list[CandidateData] = [data.candidates[index] for index in members]
        self.shape, self.context_nodes = shape_of(self.candidates[0])
        self.num_nodes = data.num_nodes
        allowed: BoolArray = np.logical_or.reduce([data.allowed(candidate) for candidate in self.candidates])
        P, D, K = self.shape
        self.cells: list[Cell] = [(p, d, k) for p in range(P) for d in range(D) for k in range(K)]
        self._hosts: dict[Cell, dict[int, IntVar]] = {
            cell: {
                node: model.new_bool_var(f"host_{cell}_{node}") for node in np.flatnonzero(allowed[cell[0]]).tolist()
            }
            for cell in self.cells
        }

    def hosts_of(self, cell: Cell) -> dict[int, IntVar]:
        """Return a literal for each host that may be in the cell, by host."""
        return self._hosts[cell]

    def cells_on(self, node: int) -> list[IntVar]:
        """Return a literal for each cell that may be on the host."""
        return [hosts[node] for hosts in self._hosts.values() if node in hosts]

    def hops(self) -> Iterator[tuple[HopKind, Cell, Cell]]:
        """
        Yield every pair of cells that exchange messages: from row to row, around gradient rings, around rings of slots.

        Interleaving adds the pairs from the last row to the first; with two rows, they are already included.
        """
        P = self.shape[0]
        wraps = P > 2 and any(candidate.wraps for candidate in self.candidates)
        for p, d, k in self.cells:
            if p + 1 < P or wraps:
                yield "transfer", (p, d, k), ((p + 1) % P, d, k)
        for row in range(P):
            for tail, head in ring_hops(self.candidates[0], row):
                yield "ring", tail, head
            for column in range(self.shape[1]):
                for tail, head in slot_hops(self.candidates[0], row, column):
                    yield "slot", tail, head


class Variables:
    """
    Variables for the choice among several candidate configurations, and for the placement of each of their grid shapes.

    ``objective`` is the integer objective of the chosen candidate, ticks.

    Parameters
    ----------
    bounds
        Known lower bound of each candidate, ticks.
    ceiling
        Largest objective to look for, ticks.
    copies
        Number of cells that each host may be in, shape ``(num_nodes,)``; ``None``: 1. A larger number stands for a
        class of hosts.
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
        shapes: dict[tuple[Cell, int], list[int]] = {}
        for index in bounds:
            shapes.setdefault(shape_of(data.candidates[index]), []).append(index)
        self.grids: list[GridVariables] = [
            GridVariables(model, data, members, self.copies) for members in shapes.values()
        ]
        self.objective: IntVar = model.new_int_var(min(bounds.values()), ceiling, "objective")

    def grid_of(self, index: int) -> GridVariables:
        """Return the placement variables of a candidate configuration."""
        return next(grid for grid in self.grids if index in grid.members)

    def used(self, grid: GridVariables) -> LinearExpr | IntVar | int:
        """Return an expression that is 1 if a candidate configuration of this shape is chosen."""
        if len(self.grids) == 1:
            return 1
        return LinearExpr.sum([self.chosen[index] for index in grid.members])

    def condition(self, index: int) -> list[IntVar]:
        """Return the literals under which a candidate's costs count: its choice, or none if it is the only one."""
        return [self.chosen[index]] if len(self.indices) > 1 else []


def shape_of(candidate: CandidateData) -> tuple[Cell, int]:
    """Return the grid and the context parts of a slot, which decide the cells that exchange messages."""
    return candidate.grid, candidate.tile.context_nodes


def ring_hops(candidate: CandidateData, row: int) -> list[tuple[Cell, Cell]]:
    """Return the hops of a row's gradient rings: column by column, in each through the slot's context parts."""
    _, D, K = candidate.grid
    if candidate.ring_length == 1:
        return []
    step = candidate.tile.tensor_nodes
    order = [(row, d, k) for d in range(D) for k in range(K)]
    return [(cell, order[(index + step) % len(order)]) for index, cell in enumerate(order)]


def slot_hops(candidate: CandidateData, row: int, column: int) -> list[tuple[Cell, Cell]]:
    """Return the hops of the tensor or context rings inside a slot; empty if the slot is on one host."""
    K, size = candidate.grid[2], candidate.slot_ring
    if size == 1:
        return []
    return [((row, column, k), (row, column, k // size * size + (k + 1) % size)) for k in range(K)]


def pairs_apart(copies: IntArray) -> BoolArray:
    """
    Return a mask of the host pairs on which two cells may be, shape ``(num_nodes, num_nodes)``.

    A host pairs with itself only if it may be in several cells.
    """
    apart: BoolArray = ~np.diag(copies < 2)
    return apart


def usable_hops(candidate: CandidateData, kind: HopKind, tail: Cell, head: Cell, copies: IntArray) -> BoolArray:
    """
    Return a mask of the directed host pairs that a candidate configuration may use between two cells, shape
    ``(num_nodes, num_nodes)``.
    """
    if head[0] < tail[0] and not candidate.wraps:
        slowest = np.zeros_like(candidate.p2p_ticks)
    elif kind == "transfer":
        slowest = np.maximum(candidate.p2p_ticks, candidate.p2p_ticks.T)
    elif kind == "ring":
        stages = np.arange(tail[0] * candidate.tile.stages, (tail[0] + 1) * candidate.tile.stages)
        slowest = candidate.ring_ticks[np.unique(candidate.ring_class[stages])].max(axis=0)
    else:
        slowest = np.maximum(candidate.tensor_forward_ticks, candidate.tensor_backward_ticks)
    usable: BoolArray = slowest < UNUSABLE_TICKS
    return usable & pairs_apart(copies)

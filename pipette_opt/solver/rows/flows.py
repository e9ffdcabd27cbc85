"""Columns counted as a flow through states, in place of windows of three rows."""

from collections.abc import Sequence

import numpy as np
from ortools.sat.python.cp_model import CpModel, CpSolver, IntVar, LinearExpr

from pipette_opt.solver.rows.columns import Columns
from pipette_opt.solver.rows.means import Crossing
from pipette_opt.types import IntArray


class Flow:
    """
    How many columns go from each state to the next.

    Parameters
    ----------
    hosts
        Hosts of each row and class.
    """

    def __init__(self, model: CpModel, columns: Columns, hosts: Sequence[Sequence[IntVar]], num_columns: int) -> None:
        self.columns, self.num_columns = columns, num_columns
        self.numbers = [[model.new_int_var(0, num_columns, "") for _ in tails] for tails in columns.tails]
        for row, of_class in enumerate(columns.of_class):
            into = self._ends(columns.heads, row - 1, len(of_class))
            out = self._ends(columns.tails, row, len(of_class))
            for arrive, leave in zip(into or [], out or [], strict=False):
                model.add(LinearExpr.sum(arrive) == LinearExpr.sum(leave))
            through = out or into
            for one, number in enumerate(hosts[row]):
                states = np.flatnonzero(of_class == one).tolist()
                model.add(LinearExpr.sum([arc for state in states for arc in through[state]]) == number)

    def _ends(self, ends: Sequence[IntArray], boundary: int, number: int) -> list[list[IntVar]]:
        """Arcs of a boundary by the state where they end; empty beyond the first and the last row."""
        if not 0 <= boundary < len(ends):
            return []
        found: list[list[IntVar]] = [[] for _ in range(number)]
        for state, arc in zip(ends[boundary].tolist(), self.numbers[boundary], strict=True):
            found[state].append(arc)
        return found

    def crossings(self) -> list[Crossing]:
        """Of each boundary, its columns by pair of classes."""
        found: list[Crossing] = []
        for row, numbers in enumerate(self.numbers):
            pairs: dict[tuple[int, int], list[IntVar]] = {}
            above = self.columns.of_class[row][self.columns.tails[row]].tolist()
            below = self.columns.of_class[row + 1][self.columns.heads[row]].tolist()
            for pair, number in zip(zip(above, below, strict=True), numbers, strict=True):
                pairs.setdefault(pair, []).append(number)
            found.append({pair: LinearExpr.sum(arcs) for pair, arcs in pairs.items()})
        return found

    def pattern(self, solver: CpSolver) -> IntArray:
        """Class of each row and column of a solution, shape ``(P, D)``."""
        at: list[int] = []
        rows: list[list[int]] = []
        for boundary, numbers in enumerate(self.numbers):
            tails, heads = self.columns.tails[boundary].tolist(), self.columns.heads[boundary].tolist()
            onward: dict[int, list[int]] = {}
            for tail, head, number in zip(tails, heads, numbers, strict=True):
                onward.setdefault(tail, []).extend([head] * solver.value(number))
            if not boundary:
                at = [tail for tail in sorted(onward) for _ in onward[tail]]
                rows.append(at)
            at = [onward[state].pop() for state in at]
            rows.append(at)
        return np.array([of_class[row] for of_class, row in zip(self.columns.of_class, rows, strict=True)])

"""
How many hosts with slow links a run of rows can have, sends being asynchronous.

A column's period is at least the mean over any run of its stages. What a run may take above its least work and least
transfers is therefore known, and each host of a slow class takes up a part of it with each of its transfers: so many of
them are in one column, rounded down, and so many times the columns in all. A mean over all columns would leave out
the rounding.
"""

from collections.abc import Iterator, Sequence

import numpy as np
from ortools.sat.python.cp_model import CpModel, IntVar, LinearExpr

from pipette_opt.base.types import IntArray
from pipette_opt.problem.data import CandidateData
from pipette_opt.solver.rows.costs import RowCosts


def add_slow_runs(
    model: CpModel,
    candidate: CandidateData,
    costs: RowCosts,
    hosts: Sequence[Sequence[IntVar]],
    longest: int,
) -> None:
    """In each run of three rows or more, no more hosts of slow classes than the longest period allows."""
    P, D, _ = candidate.grid
    if P < 3:
        return
    least = int(costs.period_arc.min())
    work = np.append(0, costs.period_node.min(axis=1).cumsum())
    for slow, extra in slow_classes(costs.period_arc[0], least):
        counts = [LinearExpr.sum([row[one] for one in slow]) for row in hosts]
        for first in range(P - 2):
            for last in range(first + 2, P):
                number = last + 1 - first
                spent = int(work[last + 1] - work[first]) + (number - 1) * least
                most = (number * candidate.block.stages * longest - spent) // extra  # of transfers, in one column
                if most < 2 * (number - 1):
                    transfers = 2 * LinearExpr.sum(counts[first + 1 : last]) + counts[first] + counts[last]
                    model.add(transfers <= D * most)


def slow_classes(transfer: IntArray, least: int) -> Iterator[tuple[list[int], int]]:
    """Sets of classes, and what each transfer of one of their hosts takes at least above the least of all."""
    either = np.minimum(transfer, transfer.T) - least
    nearest = either.min(axis=1)
    for level in np.unique(nearest[nearest > 0]).tolist():
        slow = nearest >= level
        extra = min(level, int(either[np.ix_(slow, slow)].min()) // 2)  # two of them share a transfer
        if extra:
            yield np.flatnonzero(slow).tolist(), extra

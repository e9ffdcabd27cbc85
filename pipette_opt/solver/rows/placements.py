"""
A placement from counts of classes.

Windows are joined to columns, row by row, as they fit; the columns are ordered so that the rings' worst
hops are as early as can be had by turning parts round; any host of a class takes its cells. What the counts leave out
(which host, one order for all rows) is for annealing to mend.
"""

import numpy as np

from pipette_opt.base.types import IntArray
from pipette_opt.problem.data import CandidateData
from pipette_opt.solver.rows.classes import HostClasses
from pipette_opt.solver.rows.costs import RowCosts
from pipette_opt.solver.rows.model import Window

MOST_TURNS = 20_000
"""Parts of the columns' order that are turned round on trial."""


def placement(
    windows: dict[Window, int],
    candidate: CandidateData,
    classes: HostClasses,
    costs: RowCosts,
    random: np.random.Generator,
) -> IntArray:
    """
    Hosts of each cell, shape ``(P, D)``.

    Parameters
    ----------
    windows
        How many columns go through each window, by its index in ``RowCosts.window``.
    """
    pattern = np.array(_columns(windows, candidate.grid[0], random), dtype=np.int64).T
    pattern = pattern[:, _ring_order(pattern, costs, candidate.block.stages)]
    nodes = np.empty_like(pattern)
    for one in range(classes.number):
        here = pattern == one
        hosts = np.flatnonzero(classes.of_host == one)
        nodes[here] = random.permutation(hosts)[: int(here.sum())]
    return nodes


def _columns(windows: dict[Window, int], num_rows: int, random: np.random.Generator) -> list[list[int]]:
    """Columns as classes; every window is used as often as it is counted."""
    left = dict(windows)
    width = min(num_rows, 3)
    columns: list[list[int]] = []
    for (row, *members), number in left.items():
        if row == 0:
            classes = {1: members[1:2], 2: members[:2], 3: members}[width]
            columns += [list(classes) for _ in range(number)]
    for row in range(1, num_rows - 2):
        for place in random.permutation(len(columns)).tolist():
            column = columns[place]
            fitting = [
                window for window, number in left.items() if number and window[:3] == (row, column[-2], column[-1])
            ]
            window = fitting[int(random.integers(len(fitting)))]
            left[window] -= 1
            column.append(window[3])
    return columns


def _ring_order(pattern: IntArray, costs: RowCosts, stages_per_row: int) -> IntArray:
    """An order of the columns in which the hops that end last end early."""
    number = pattern.shape[1]
    ends = costs.least_end.reshape(len(costs.watched), -1).min(axis=1)
    late = np.zeros((number, number), dtype=np.int64)
    for watched, stage in enumerate(costs.watched.tolist()):
        row = pattern[stage // stages_per_row]
        late = np.maximum(late, costs.hop[watched][np.ix_(row, row)] + ends[watched])
    order = np.arange(number)
    value = _descending(late, order)
    turns, improved = 0, number > 3
    while improved and turns < MOST_TURNS:
        improved = False
        for low in range(number - 1):
            for high in range(low + 1, number):
                turns += 1
                trial = order.copy()
                trial[low : high + 1] = trial[low : high + 1][::-1]
                found = _descending(late, trial)
                if found < value:
                    order, value, improved = trial, found, True
    return order


def _descending(late: IntArray, order: IntArray) -> list[int]:
    hops = late[order, np.roll(order, -1)]
    found: list[int] = np.sort(hops)[::-1].tolist()
    return found

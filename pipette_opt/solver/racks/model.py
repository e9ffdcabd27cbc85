"""
The rack and the kind of each cell as a CP-SAT model.

Decisions: of each cell its kind, its rack, and both together; of each transfer its sort; of each row the hops of its
ring by sort, with the ends that each rack has; of each column its period. No rack has more hosts of a kind than there
are, all of them where every host must be used. At most the ceiling is, for each column and each stage that is watched,
the end of the stage with ``m - 1`` of the column's own periods, plus the slowest hop of the stage's row.

Rings are relaxed: each host has two hops, and those inside a rack, or a rack's kind, are fewer than the hosts there
unless these are the whole row. Which columns are neighbours is left open, so columns may change places, and the kinds
in their rows, read as a number, tell them apart.
"""

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from ortools.sat.python.cp_model import CpModel, IntVar, LinearExpr

from pipette_opt.problem import CandidateData
from pipette_opt.solver.racks.structure import Racks
from pipette_opt.solver.rows.costs import NEVER
from pipette_opt.types import BoolArray, IntArray, P2PMode

MOST_WEIGHED = 40
"""Rows that columns are told apart by, and bits of the numbers that racks are."""

Term = LinearExpr | IntVar | int
Sort = tuple[int, int, int]


@dataclass(slots=True, eq=False)
class _Column:
    """
    One column.

    Parameters
    ----------
    kinds
        Of each row, whether its host is of each kind.
    cells
        The same by rack and kind.
    sorts
        Of each boundary, whether the transfer is of each sort.
    """

    kinds: list[list[IntVar]]
    cells: list[dict[tuple[int, int], IntVar]]
    sorts: list[dict[Sort, IntVar]]


def build_racks(
    candidate: CandidateData, p2p: P2PMode, racks: Racks, ceiling: int, shortest: int, longest: int
) -> CpModel:
    """
    The model of placements that cost at most the ceiling, the slowest column's period being in a range.

    The grid has two rows and two columns at least, and stages of a row are one.
    """
    P, D, _ = candidate.grid
    costs, model = racks.costs, CpModel()
    period = racks.of_links(costs.period_arc[0])
    columns = [_add_column(model, racks, P, np.argwhere(period < NEVER).tolist()) for _ in range(D)]
    counts = [
        {
            pair: _named(model, [column.cells[row][pair] for column in columns], min(D, int(racks.sizes[pair])))
            for pair in columns[0].cells[row]
        }
        for row in range(P)
    ]
    for pair in counts[0]:
        used, size = LinearExpr.sum([row[pair] for row in counts]), int(racks.sizes[pair])
        # said as it is: without a linear relaxation nothing would find out that there is none to spare
        model.add(used == size if int(racks.sizes.sum()) == candidate.num_cells else used <= size)
    ends = [_least_ends(racks, watched) for watched in range(len(costs.watched))]
    rounds = candidate.num_microbatches - 1
    limits = [ceiling - int(after) - end - rounds * shortest for after, end in zip(costs.after, ends, strict=True)]
    rings = _add_rings(model, candidate, racks, counts, limits)
    slowest = []
    for column in columns:
        own = model.new_int_var(0, longest, "")
        is_slowest = model.new_bool_var("")
        model.add(own >= shortest).only_enforce_if(is_slowest)
        slowest.append(is_slowest)
        _add_period(model, candidate, p2p, racks, column, own)
        for watched, ring in enumerate(rings):
            taken = [_of_hosts(column, racks.of_hosts(costs.end_node[watched]))]
            taken += [_of_links(column.sorts[row], racks.of_links(costs.end_arc[watched][row])) for row in range(P - 1)]
            model.add(LinearExpr.sum(taken) + rounds * own + ring <= ceiling - int(costs.after[watched]))
    model.add_bool_or(slowest)
    for row in range(P - 1):
        _add_flows(model, racks, columns, row, counts[row], counts[row + 1])
    _add_orders(model, racks, columns, counts)
    return model


def _add_column(model: CpModel, racks: Racks, num_rows: int, usable: Sequence[Sequence[int]]) -> _Column:
    """Kinds, racks and sorts of transfers that agree with each other."""
    room = racks.of_hosts(np.where(racks.costs.room, 0, NEVER)) == 0
    everywhere = [(rack, kind) for rack, kind in np.argwhere(racks.sizes).tolist()]
    column = _Column([], [], [])
    for row in range(num_rows):
        kinds = [model.new_bool_var("") for _ in range(racks.num_kinds)]
        cells = {pair: model.new_bool_var("") for pair in everywhere}
        model.add_exactly_one(kinds)
        model.add_exactly_one(cells.values())
        for kind, is_kind in enumerate(kinds):
            model.add(LinearExpr.sum([one for pair, one in cells.items() if pair[1] == kind]) == is_kind)
            if not room[row, kind]:
                model.add(is_kind == 0)
        column.kinds.append(kinds)
        column.cells.append(cells)
    in_rack = [[model.new_bool_var("") for _ in range(racks.num_racks)] for _ in range(num_rows)]
    for cells, racks_here in zip(column.cells, in_rack, strict=True):
        model.add_exactly_one(racks_here)
        for rack, is_rack in enumerate(racks_here):
            model.add(LinearExpr.sum([one for pair, one in cells.items() if pair[0] == rack]) == is_rack)
    for row in range(num_rows - 1):
        sorts: dict[Sort, IntVar] = {(i, j, across): model.new_bool_var("") for i, j, across in usable}
        for kind in range(racks.num_kinds):
            model.add(_sum([one for sort, one in sorts.items() if sort[0] == kind]) == column.kinds[row][kind])
            model.add(_sum([one for sort, one in sorts.items() if sort[1] == kind]) == column.kinds[row + 1][kind])
        same = _sum([one for sort, one in sorts.items() if sort[2] == 0])
        for here, there in zip(in_rack[row], in_rack[row + 1], strict=True):
            model.add(here + same <= 1 + there)
            model.add(there + same <= 1 + here)
            model.add(here + there <= 1 + same)
        column.sorts.append(sorts)
    return column


def _add_flows(
    model: CpModel,
    racks: Racks,
    columns: Sequence[_Column],
    row: int,
    here: dict[tuple[int, int], IntVar],
    there: dict[tuple[int, int], IntVar],
) -> None:
    """
    Columns by rack and kinds at a boundary: who stays in its rack, who leaves it, and who comes.

    Implied by the columns; but what is said in counts is seen before all columns are decided.
    """
    D, pairs = len(columns), range(racks.num_kinds)
    stay = {
        (rack, i, j): model.new_int_var(0, D, "") for rack, i in here for j in pairs if (rack, j) in there
    }  # whatever is not usable is zero by the sums below
    leave = {pair: model.new_int_var(0, D, "") for pair in here}
    come = {pair: model.new_int_var(0, D, "") for pair in there}
    for (rack, i), number in here.items():
        model.add(number == leave[rack, i] + _sum([one for flow, one in stay.items() if flow[:2] == (rack, i)]))
    for (rack, j), number in there.items():
        model.add(number == come[rack, j] + _sum([one for flow, one in stay.items() if flow[::2] == (rack, j)]))
    across: dict[tuple[int, int], LinearExpr | int] = {}
    for i, j in itertools.product(pairs, pairs):
        inside = _sum([column.sorts[row][i, j, 0] for column in columns if (i, j, 0) in column.sorts[row]])
        across[i, j] = _sum([column.sorts[row][i, j, 1] for column in columns if (i, j, 1) in column.sorts[row]])
        model.add(_sum([one for flow, one in stay.items() if flow[1:] == (i, j)]) == inside)
    for kind in pairs:
        gone = _sum([one for pair, one in leave.items() if pair[1] == kind])
        model.add(gone == _sum([across[kind, j] for j in pairs]))
        arrived = _sum([one for pair, one in come.items() if pair[1] == kind])
        model.add(arrived == _sum([across[i, kind] for i in pairs]))
    for rack in range(racks.num_racks):  # who leaves a rack comes to another
        ends = [one for flows in (leave, come) for pair, one in flows.items() if pair[0] == rack]
        model.add(_sum(ends) <= _sum(list(across.values())))


def _add_period(
    model: CpModel, candidate: CandidateData, p2p: P2PMode, racks: Racks, column: _Column, own: IntVar
) -> None:
    """A column's period is at least what each stage waits for, or the mean over each run of stages."""
    P = candidate.grid[0]
    node = racks.of_hosts(racks.costs.period_node)
    work = [_of_hosts(column, node, row) for row in range(P)]
    link = racks.of_links(racks.costs.period_arc[0])
    transfer = [_of_links(sorts, link) for sorts in column.sorts]  # twice if sends are blocking
    if p2p == "blocking":
        for row in range(P):
            model.add(2 * work[row] + LinearExpr.sum(transfer[max(0, row - 1) : row + 1]) <= 2 * own)
        return
    for first in range(P):
        for last in range(first, P):
            run = LinearExpr.sum([*work[first : last + 1], *transfer[first:last]])
            model.add(run <= (last + 1 - first) * own)


def _least_ends(racks: Racks, watched: int) -> int:
    """What a column takes at least to the last backward of a watched stage, without the periods."""
    costs = racks.costs
    return int(costs.end_node[watched].min(axis=1).sum() + costs.end_arc[watched].min(axis=(1, 2)).sum())


def _add_rings(
    model: CpModel,
    candidate: CandidateData,
    racks: Racks,
    counts: Sequence[dict[tuple[int, int], IntVar]],
    limits: Sequence[int],
) -> list[Term]:
    """
    Hops of the rows' rings; the slowest of each watched stage.

    Parameters
    ----------
    limits
        The slowest hop that there is time for.
    """
    costs, slowest = racks.costs, []
    for watched, stage in enumerate(costs.watched.tolist()):
        cost = racks.of_links(np.minimum(costs.hop[watched], costs.hop[watched].T))
        hops = _add_ring(model, racks, candidate.grid[1], counts[stage], cost <= limits[watched])
        slowest.append(_slowest(model, cost, hops, candidate.grid[1]))
    return slowest


def _add_ring(
    model: CpModel, racks: Racks, num_columns: int, counts: dict[tuple[int, int], IntVar], usable: BoolArray
) -> dict[Sort, list[IntVar]]:
    """Hops of one ring by sort, in either direction; their sum over the racks is the number of hops of a sort."""
    ends: dict[tuple[int, int], list[Term]] = {pair: [] for pair in counts}
    inside: list[list[IntVar]] = [[] for _ in range(racks.num_racks)]
    hops: dict[Sort, list[IntVar]] = {}
    for i, j in itertools.combinations_with_replacement(range(racks.num_kinds), 2):
        if usable[i, j, 0]:
            hops[i, j, 0] = []
            for rack in range(racks.num_racks):
                if (rack, i) in counts and (rack, j) in counts:
                    hop = model.new_int_var(0, num_columns, "")
                    hops[i, j, 0].append(hop)
                    inside[rack].append(hop)
                    ends[rack, i].append(hop)
                    ends[rack, j].append(hop)
                    if i == j:
                        _join(model, [hop], [counts[rack, i]], num_columns)
        if usable[i, j, 1]:
            one_end = {rack: model.new_int_var(0, num_columns, "") for rack, kind in counts if kind == i}
            other_end = {rack: model.new_int_var(0, num_columns, "") for rack, kind in counts if kind == j}
            hops[i, j, 1] = list(one_end.values())
            model.add(_sum(list(one_end.values())) == _sum(list(other_end.values())))
            for rack in range(racks.num_racks):
                here = [one[rack] for one in (one_end, other_end) if rack in one]
                model.add(_sum(here) <= _sum(list(one_end.values())))  # one of its ends is elsewhere
            for kind, found in ((i, one_end), (j, other_end)):
                for rack, end in found.items():
                    ends[rack, kind].append(end)
    for pair, number in counts.items():
        model.add(_sum(ends[pair]) == 2 * number)
    for rack, within in enumerate(inside):
        _join(model, within, [one for pair, one in counts.items() if pair[0] == rack], num_columns)
    return hops


def _join(model: CpModel, within: Sequence[IntVar], members: Sequence[IntVar], num_columns: int) -> None:
    """Hosts that are not the whole row have fewer hops among them than they are."""
    here = LinearExpr.sum(list(members))
    some, all_ = model.new_bool_var(""), model.new_bool_var("")
    model.add(here == 0).only_enforce_if(~some)
    model.add(here == num_columns).only_enforce_if(all_)
    model.add(_sum(list(within)) <= here - some + all_)


def _slowest(model: CpModel, cost: IntArray, hops: dict[Sort, list[IntVar]], num_columns: int) -> Term:
    """The slowest hop, as a sum of steps from level to level."""
    by_level: dict[int, list[IntVar]] = {}
    for sort, number in hops.items():
        by_level.setdefault(int(cost[sort]), []).extend(number)
    levels = sorted(by_level)
    if not levels:
        return int(cost.min())
    total: list[Term] = [levels[0]]
    before: IntVar | None = None
    for low, high in itertools.pairwise(levels):
        reached = model.new_bool_var("")
        model.add(_sum(by_level[high]) <= num_columns * reached)
        if before is not None:
            model.add_implication(reached, before)
        total.append((high - low) * reached)
        before = reached
    return LinearExpr.sum(total)


def _add_orders(
    model: CpModel, racks: Racks, columns: Sequence[_Column], counts: Sequence[dict[tuple[int, int], IntVar]]
) -> None:
    """Columns may change places, and so may racks that are equal: their hosts in the first rows tell them apart."""
    kinds, base = racks.num_kinds, len(columns) + 1
    rows = min(len(counts), MOST_WEIGHED)
    weighed = counts[: int(MOST_WEIGHED / math.log2(base))]

    def number(column: _Column) -> LinearExpr:
        return LinearExpr.sum([(1 << row) * one for row in range(rows) for one in column.kinds[row][1:]])

    def in_rows(pair: tuple[int, int]) -> LinearExpr:
        return LinearExpr.sum([base ** (len(weighed) - 1 - row) * one[pair] for row, one in enumerate(weighed)])

    if kinds > 1:
        for before, behind in itertools.pairwise(columns):
            model.add(number(before) <= number(behind))
    for rack in range(racks.num_racks - 1):
        pair, other = (rack, kinds - 1), (rack + 1, kinds - 1)
        if (racks.sizes[rack] == racks.sizes[rack + 1]).all() and pair in counts[0]:
            model.add(in_rows(pair) <= in_rows(other))


def _of_hosts(column: _Column, ticks: IntArray, row: int | None = None) -> Term:
    """What the hosts of a column cost, or that of one row, from costs ``(P, kinds)``."""
    rows = range(len(column.kinds)) if row is None else (row,)
    least = ticks.min(axis=1)
    extra = [
        int(ticks[at, kind] - least[at]) * one
        for at in rows
        for kind, one in enumerate(column.kinds[at])
        if least[at] < ticks[at, kind] < NEVER
    ]
    return int(least[list(rows)].sum()) + LinearExpr.sum(extra) if extra else int(least[list(rows)].sum())


def _of_links(sorts: dict[Sort, IntVar], ticks: IntArray) -> LinearExpr:
    return LinearExpr.weighted_sum(list(sorts.values()), [int(ticks[sort]) for sort in sorts])


def _named(model: CpModel, terms: Sequence[IntVar], most: int) -> IntVar:
    total = model.new_int_var(0, most, "")
    model.add(LinearExpr.sum(list(terms)) == total)
    return total


def _sum(terms: Sequence[Term]) -> LinearExpr | int:
    return LinearExpr.sum(list(terms)) if terms else 0

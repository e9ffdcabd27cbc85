"""
The rack and the kind of each cell as a CP-SAT model.

Decisions: of each cell its kind, its rack, and both together; of each transfer its sort; of each row the hops of its
ring by sort, with the ends that each rack has; of each column its period. No rack has more hosts of a kind than there
are, all of them where every host must be used. At most the ceiling is, for each column and each stage that is watched,
the end of the stage with ``m - 1`` of the column's own periods, plus the slowest hop of the stage's row.

Rings are relaxed (:mod:`~pipette_opt.solver.racks.rings`). Which columns are neighbours is left open if there are more
than four, unless it is asked for; where it is told, no hop of neighbours is slower than the ring. The kinds in their
rows, read as a number, tell columns apart that may change places.
"""

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from ortools.sat.python.cp_model import CpModel, IntVar, LinearExpr

from pipette_opt.base.types import IntArray, P2PMode
from pipette_opt.problem.data import CandidateData
from pipette_opt.solver.racks.flows import add_flows
from pipette_opt.solver.racks.rings import Counts, Ring, Sort, Term, add_ring
from pipette_opt.solver.racks.structure import Racks
from pipette_opt.solver.rows.costs import NEVER

MOST_IN_ORDER = 4
"""Columns in rings whose order is always told: with more it takes time, and often tells nothing."""

MOST_WEIGHED = 40
"""Rows that columns are told apart by, and bits of the numbers that racks are."""


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
    racks
        The same by rack.
    sorts
        Of each boundary, whether the transfer is of each sort.
    """

    kinds: list[list[IntVar]]
    cells: list[Counts]
    racks: list[list[IntVar]]
    sorts: list[dict[Sort, IntVar]]


@dataclass(slots=True, eq=False)
class RackModel:
    """
    The model with handles to read a solution.

    Parameters
    ----------
    cells
        Of each column and row, whether its host is of each rack and kind.
    """

    model: CpModel
    cells: list[list[Counts]]


def build_racks(
    candidate: CandidateData,
    p2p: P2PMode,
    racks: Racks,
    ceiling: int,
    shortest: int,
    longest: int,
    *,
    in_order: bool = False,
    courses: IntArray | None = None,
) -> RackModel:
    """
    The model of placements that cost at most the ceiling, the slowest column's period being in a range.

    The grid has two rows and two columns at least, and stages of a row are one.

    Parameters
    ----------
    in_order
        Whether the order of the columns is told even if they are many.
    courses
        Kind in each row, shape ``(N, P)``, of all courses that a column may take, if they are known.
    """
    P, D, _ = candidate.grid
    in_order = in_order or D <= MOST_IN_ORDER
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
    rings = [
        add_ring(model, racks, watched, D, counts[stage], limits[watched])
        for watched, stage in enumerate(costs.watched.tolist())
    ]
    if in_order:
        _add_neighbours(model, racks, columns, rings)
    if courses is not None:
        for column in columns:
            _add_course(model, column, courses)
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
            model.add(LinearExpr.sum(taken) + rounds * own + ring.slowest <= ceiling - int(costs.after[watched]))
    model.add_bool_or(slowest)
    pairs = list(itertools.product(range(racks.num_kinds), range(racks.num_kinds)))
    for row in range(P - 1):
        # implied by the columns; but what is said in counts is seen before all columns are decided
        inside, across = (
            {
                (i, j): _sum([one.sorts[row][i, j, side] for one in columns if (i, j, side) in one.sorts[row]])
                for i, j in pairs
            }
            for side in (0, 1)
        )
        add_flows(model, racks, D, counts[row], counts[row + 1], inside, across)
    _add_orders(model, racks, columns, counts, in_order=in_order)
    return RackModel(model=model, cells=[column.cells for column in columns])


def _add_column(model: CpModel, racks: Racks, num_rows: int, usable: Sequence[Sequence[int]]) -> _Column:
    """Kinds, racks and sorts of transfers that agree with each other."""
    room = racks.of_hosts(np.where(racks.costs.room, 0, NEVER)) == 0
    everywhere = [(rack, kind) for rack, kind in np.argwhere(racks.sizes).tolist()]
    column = _Column([], [], [], [])
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
    column.racks += [[model.new_bool_var("") for _ in range(racks.num_racks)] for _ in range(num_rows)]
    for cells, racks_here in zip(column.cells, column.racks, strict=True):
        model.add_exactly_one(racks_here)
        for rack, is_rack in enumerate(racks_here):
            model.add(LinearExpr.sum([one for pair, one in cells.items() if pair[0] == rack]) == is_rack)
    for row in range(num_rows - 1):
        sorts: dict[Sort, IntVar] = {(i, j, across): model.new_bool_var("") for i, j, across in usable}
        for kind in range(racks.num_kinds):
            model.add(_sum([one for sort, one in sorts.items() if sort[0] == kind]) == column.kinds[row][kind])
            model.add(_sum([one for sort, one in sorts.items() if sort[1] == kind]) == column.kinds[row + 1][kind])
        same = _sum([one for sort, one in sorts.items() if sort[2] == 0])
        for here, there in zip(column.racks[row], column.racks[row + 1], strict=True):
            model.add(here + same <= 1 + there)
            model.add(there + same <= 1 + here)
            model.add(here + there <= 1 + same)
        column.sorts.append(sorts)
    return column


def _add_course(model: CpModel, column: _Column, courses: IntArray) -> None:
    """A column takes one of these courses."""
    takes = [model.new_bool_var("") for _ in courses]
    model.add_exactly_one(takes)
    for row, kinds in enumerate(column.kinds):
        for kind, is_kind in enumerate(kinds):
            these = np.flatnonzero(courses[:, row] == kind).tolist()
            model.add(_sum([takes[one] for one in these]) == is_kind)


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


def _add_neighbours(model: CpModel, racks: Racks, columns: Sequence[_Column], rings: Sequence[Ring]) -> None:
    """Neighbouring columns have no hop that is slower than the ring."""
    costs = racks.costs
    pairs = list(itertools.pairwise([*columns, columns[0]]))[: None if len(columns) > 2 else 1]
    for (watched, row), (one, other) in itertools.product(enumerate(costs.watched.tolist()), pairs):
        hop = costs.hop[watched]
        cost, reached = racks.of_links(np.minimum(hop, hop.T)), rings[watched].reached
        across = model.new_bool_var("")
        for here, there in zip(one.racks[row], other.racks[row], strict=True):
            model.add_bool_or(~here, ~there, ~across)
            model.add_bool_or(~here, there, across)
        for i, j in itertools.product(range(racks.num_kinds), range(racks.num_kinds)):
            for crosses, of_sort in ((~across, int(cost[i, j, 0])), (across, int(cost[i, j, 1]))):
                if of_sort not in reached:  # there is no time for it
                    model.add_bool_or(~one.kinds[row][i], ~other.kinds[row][j], ~crosses)
                elif (as_slow := reached[of_sort]) is not None:
                    model.add_bool_or(~one.kinds[row][i], ~other.kinds[row][j], ~crosses, as_slow)


def _least_ends(racks: Racks, watched: int) -> int:
    """What a column takes at least to the last backward of a watched stage, without the periods."""
    costs = racks.costs
    return int(costs.end_node[watched].min(axis=1).sum() + costs.end_arc[watched].min(axis=(1, 2)).sum())


def _add_orders(
    model: CpModel, racks: Racks, columns: Sequence[_Column], counts: Sequence[Counts], *, in_order: bool
) -> None:
    """Columns may change places, and so may racks that are equal."""
    rows = min(len(counts), MOST_WEIGHED)

    def number(column: _Column) -> LinearExpr:
        return LinearExpr.sum([(1 << row) * one for row in range(rows) for one in column.kinds[row][1:]])

    if racks.num_kinds > 1:
        pairs = list(itertools.pairwise(columns))
        if in_order and len(columns) > 3:  # a ring may begin anywhere, and be gone around in both directions
            pairs = [*((columns[0], other) for other in columns[1:]), (columns[1], columns[-1])]
        for before, behind in pairs:
            model.add(number(before) <= number(behind))
    order_racks(model, racks, len(columns), counts)


def order_racks(model: CpModel, racks: Racks, num_columns: int, counts: Sequence[Counts]) -> None:
    """Racks that are equal are told apart by their hosts in the first rows."""
    kind, base = racks.num_kinds - 1, num_columns + 1
    weighed = counts[: int(MOST_WEIGHED / math.log2(base))]

    def number(rack: int) -> LinearExpr:
        return LinearExpr.sum([base ** (len(weighed) - 1 - row) * one[rack, kind] for row, one in enumerate(weighed)])

    last: dict[tuple[int, ...], int] = {}
    for rack, sizes in enumerate(racks.sizes.tolist()):
        before = last.get(tuple(sizes))
        if before is not None and (rack, kind) in counts[0]:
            model.add(number(before) <= number(rack))
        last[tuple(sizes)] = rack


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

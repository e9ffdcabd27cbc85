"""
Bounds on clusters of many hosts, by counting hosts instead of looking at placements.

What counts of a host is only how slow its best links are. However the grid is filled, so many hosts are in rows that
have two neighbours, so many hosts are in the first rows, and hosts that are slow among each other cannot be more than
half of a ring that is faster than that. Each argument orders the hosts once; all figures are exact integers.
"""

import numpy as np

from pipette_opt.base.types import IntArray
from pipette_opt.problem.data import UNUSABLE_TICKS, CandidateData, ProblemData
from pipette_opt.problem.objective import PlacedTicks, finish_ticks, period_ticks

NUM_LEVELS = 48
"""Levels of slow hosts that are tried."""


def counts_hosts(candidate: CandidateData) -> bool:
    """Whether this bound is for the candidate: a closed form, and one host for each cell."""
    return candidate.exact and candidate.grid[2] == 1


def counting_bound(data: ProblemData, candidate: CandidateData) -> int:
    """
    No placement of the candidate has a smaller integer objective; ``UNUSABLE_TICKS`` if hosts lack the links.

    The candidate has room for all its rows.
    """
    ends = _least_ends(data, candidate)
    if ends is None:
        return UNUSABLE_TICKS
    rows = np.arange(candidate.num_stages) // candidate.block.stages
    floor = candidate.ring_floor_ticks
    best = int((ends + floor).max())
    if candidate.grid[1] > 1:
        for which in np.unique(candidate.ring_class):
            of_class = candidate.ring_class == which
            row_ends = np.array(
                [ends[of_class & (rows == row)].max(initial=0) for row in range(candidate.grid[0])], dtype=np.int64
            )
            if not all((of_class & (rows == row)).any() for row in range(candidate.grid[0])):
                continue  # the slowest hop may be where this class is not
            ring = _ring_bound(candidate, candidate.ring_ticks[which], row_ends)
            if ring is None:
                return UNUSABLE_TICKS
            best = max(best, ring)
    return best + candidate.optimizer_ticks


def _least_ends(data: ProblemData, candidate: CandidateData) -> IntArray | None:
    """
    When each stage has finished at the earliest in the column with the slowest window, shape ``(pp,)``.

    A lower period and cheaper links end every stage earlier.
    """
    pp, stages = candidate.num_stages, candidate.block.stages
    P, D, _ = candidate.grid
    kinds = np.unique(data.kind_of_node)
    forward = candidate.forward_ticks[kinds].min(axis=0)
    backward = candidate.backward_ticks[kinds].min(axis=0)
    rows = np.arange(pp) // stages
    between = rows[:-1] != rows[1:]
    send = np.full(pp - 1, candidate.intra_p2p_ticks, dtype=np.int64)
    if not between.any():
        return _finish(data, candidate, forward, backward, send, 0)
    apart = _without_diagonal(candidate.p2p_ticks)
    least = int(apart.min())
    if least >= UNUSABLE_TICKS:
        return None
    send[between] = least
    if P < 3:
        return _finish(data, candidate, forward, backward, send, 0)
    both = np.maximum(apart, apart.T) if data.p2p == "blocking" else apart + apart.T
    two = np.sort(np.partition(both, 1, axis=1)[:, :2].sum(axis=1))
    slowest = int(two[(P - 2) * D - 1])  # of so many hosts with a neighbour on both sides one is as slow
    if slowest >= UNUSABLE_TICKS:
        return None
    period = 0
    if stages == 1:
        cost = forward + backward
        inner = int(cost[1:-1].min())
        if data.p2p == "blocking":
            period = inner + slowest
        else:  # the run of the host and its two neighbours
            three = int((cost[:-2] + cost[1:-1] + cost[2:]).min())
            period = -(-(three + slowest) // 3)
    return _finish(data, candidate, forward, backward, send, period)


def _finish(
    data: ProblemData, candidate: CandidateData, forward: IntArray, backward: IntArray, send: IntArray, period: int
) -> IntArray:
    """Ends of all stages over such links, and with at least such a period, shape ``(pp,)``."""
    placed = PlacedTicks(
        forward=forward[:, None],
        backward=backward[:, None],
        send_forward=send[:, None],
        send_backward=send[:, None],
        ring=np.zeros(candidate.num_stages, dtype=np.int64),
    )
    longer = max(0, period - int(period_ticks(placed, data.p2p)[0]))
    ends: IntArray = finish_ticks(data, candidate, placed)[:, 0] + (candidate.num_microbatches - 1) * longer
    return ends


def _ring_bound(candidate: CandidateData, ticks: IntArray, row_ends: IntArray) -> int | None:
    """
    The latest end with rings of one class; ``None`` if hosts lack the links.

    Parameters
    ----------
    row_ends
        When the row is finished at the earliest, shape ``(P,)``; does not rise with the row.
    """
    P, D, _ = candidate.grid
    apart = _without_diagonal(ticks)
    either = np.minimum(apart, apart.T)
    nearest = np.partition(either, 1, axis=1)[:, : 2 if D > 2 else 1].max(axis=1)  # hops to and from different hosts
    order = np.argsort(nearest, kind="stable")
    levels = nearest[order]
    number = len(levels)
    least = int(levels[P * D - 1])
    if least >= UNUSABLE_TICKS:
        return None
    ends = np.minimum.accumulate(row_ends)
    best = int(ends[-1]) + int(levels[P * D - 1])
    for start in np.unique(np.linspace(0, P * D - 1, NUM_LEVELS).astype(np.int64)).tolist():
        level = int(levels[start])
        first = int(np.searchsorted(levels, level))
        used = P * D - first  # of the hosts as slow at least so many are in the grid
        spread = int(ends[P - -(-used // D)]) + level
        slow = order[first:]
        among = int(either[np.ix_(slow, slow)].min(initial=UNUSABLE_TICKS)) if number - first > 1 else UNUSABLE_TICKS
        if D > 2 and used > 0:
            needed = -(-used // (D // 2))  # rows, if no two of them are neighbours in a ring
            apart_end = int(ends[P - needed]) + level if needed <= P else UNUSABLE_TICKS
            spread = max(spread, min(apart_end, int(ends[-1]) + among))
        best = max(best, spread)
    return best


def _without_diagonal(ticks: IntArray) -> IntArray:
    copy: IntArray = ticks.copy()
    np.fill_diagonal(copy, UNUSABLE_TICKS)
    return copy

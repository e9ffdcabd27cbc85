"""Periods of the slowest column that are told apart, and what each leaves for reductions."""

from dataclasses import dataclass

import numpy as np

from pipette_opt.base.types import IntArray
from pipette_opt.problem.data import CandidateData
from pipette_opt.solver.rows.costs import NEVER, RowCosts

MOST_LEVELS = 128
"""Periods that are told apart; costs are rounded down to them."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Levels:
    """
    Levels of the longest period of a column.

    Parameters
    ----------
    of_window
        Level of each window, -1 if it cannot be used, shape of ``RowCosts.window``.
    periods
        Least period of each level, ascending.
    longest
        The longest period of the last level; ``None`` if columns may have longer ones than their windows tell.
    ends
        For each watched stage, the least end in a column with a period of each level or above, with ``m - 1`` periods,
        shape ``(watched, levels)``.
    ceiling
        What nothing may exceed.
    """

    of_window: IntArray
    periods: IntArray
    longest: int | None
    ends: IntArray
    ceiling: int

    @property
    def number(self) -> int:
        """Levels."""
        return len(self.periods)

    def ring_limit(self, costs: RowCosts, watched: int) -> IntArray:
        """The slowest reduction of a watched stage that each level leaves, shape ``(levels,)``."""
        limit: IntArray = self.ceiling - self.ends[watched] - int(costs.after[watched])
        return limit


def window_levels(candidate: CandidateData, costs: RowCosts, ceiling: int) -> Levels | None:
    """
    Levels up to the ceiling, as windows tell them; ``None`` if every one is above it.

    If sends are blocking a period is that of a window; else a column's may be longer, and it ends no earlier for that.
    """
    usable = costs.window < NEVER
    if not usable.any():
        return None
    rounds, pp = candidate.num_microbatches - 1, candidate.num_stages
    periods = np.unique(costs.window[usable])
    position = np.searchsorted(periods, costs.window)
    ends = []
    for least_end, mean_end in zip(costs.least_end, costs.mean_end, strict=True):
        slowest = _least_from(position[usable], least_end[usable], len(periods)) + rounds * periods
        mean = -(-_least_from(position[usable], mean_end[usable], len(periods)) // pp)
        ends.append(np.maximum(slowest, mean))
    all_ends = np.stack(ends)
    best = all_ends + (costs.hop.min(axis=(1, 2)) + costs.after)[:, None]
    possible = int((best.max(axis=0) <= ceiling).sum())  # ends never fall with the level
    if not possible:
        return None
    least = best[:, :possible].max(axis=0)
    bins = (least - least[0]) // max(1, (ceiling - int(least[0])) // MOST_LEVELS)
    first = np.flatnonzero(np.diff(bins, prepend=-1))
    merged = np.searchsorted(first, np.arange(possible), side="right") - 1
    low = usable & (position < possible)
    of_window = np.full(costs.window.shape, -1, dtype=np.int64)
    of_window[low] = merged[position[low]]
    return Levels(
        of_window=of_window,
        periods=periods[first],
        longest=None,
        ends=all_ends[:, first],
        ceiling=ceiling,
    )


def range_level(candidate: CandidateData, costs: RowCosts, ceiling: int, shortest: int, longest: int) -> Levels | None:
    """
    One level, of placements whose slowest column has a period in a range; ``None`` if all are above the ceiling.

    There is more than one micro-batch; a period may be longer than that of any window.
    """
    usable = costs.window < NEVER
    spent = costs.hop.min(axis=(1, 2)) + costs.after
    rounds, pp = candidate.num_microbatches - 1, candidate.num_stages
    allowed = usable & (costs.window <= longest)
    if not allowed.any():
        return None
    least_end = np.array([one[allowed].min() for one in costs.least_end])
    mean_end = np.array([-(-int(one[allowed].min()) // pp) for one in costs.mean_end])
    ends = np.maximum(least_end + rounds * shortest, mean_end)
    if (ends + spent > ceiling).any():
        return None
    top = min(longest, int(((ceiling - spent - least_end) // rounds).min()))
    return Levels(
        of_window=np.where(allowed & (costs.window <= top), 0, -1),
        periods=np.array([shortest]),
        longest=top,
        ends=ends[:, None],
        ceiling=ceiling,
    )


def _least_from(position: IntArray, values: IntArray, number: int) -> IntArray:
    """Of each position, the least value at it or above, shape ``(number,)``."""
    least = np.full(number, NEVER, dtype=np.int64)
    np.minimum.at(least, position, values)
    running: IntArray = np.minimum.accumulate(least[::-1])[::-1]
    return running

"""
What the slowest column takes at least, its period being in a range.

A long period needs slow links somewhere, and these are on the column's path, too. So the path of the slowest column is
longer than the shortest of all columns, and leaves less for reductions. Dynamic programming goes down the columns that
may have a period of the range: not above it if their links are the fastest of their classes, not below it if they are
the slowest. Of those with the same state only the shortest path for each excess over the least period counts.
"""

from dataclasses import replace

from pipette_opt.problem import CandidateData
from pipette_opt.solver.rows.columns import Columns
from pipette_opt.solver.rows.costs import RowCosts
from pipette_opt.solver.rows.levels import Levels

REACHED = 1 << 62
"""In place of an excess: some run takes the least period already, rounded up."""

Paths = list[tuple[int, int]]
"""
Excess of the worst run that ends here over what rounds up to less than the least period, and what the path takes; more
of one for more of the other.
"""


def tightened(candidate: CandidateData, costs: RowCosts, levels: Levels, columns: Columns) -> Levels | None:
    """
    A range of periods with the ends of its slowest column; ``None`` if there is no such column below the ceiling.

    Parameters
    ----------
    columns
        All of the range's longest period at most.
    """
    shortest, rounds = int(levels.periods[0]), candidate.num_microbatches - 1
    ends = levels.ends.copy()
    for watched in range(len(costs.watched)):
        least = least_path(costs, columns, shortest, watched)
        if least is None:
            return None
        ends[watched, 0] = max(ends[watched, 0], least + rounds * shortest)
    spent = costs.hop.min(axis=(1, 2)) + costs.after
    return None if (ends[:, 0] + spent > levels.ceiling).any() else replace(levels, ends=ends)


def least_path(costs: RowCosts, columns: Columns, shortest: int, watched: int) -> int | None:
    """
    What a column takes at least until a watched stage ends, without the ``m - 1`` periods; ``None`` if there is none.

    Parameters
    ----------
    shortest
        Its period is at least this.
    """
    node, arc = costs.end_node[watched], costs.end_arc[watched]
    paths: list[Paths] = [
        [(_followed(costs, 0, one, shortest, 0, 0), int(node[0, one]))] for one in columns.of_class[0].tolist()
    ]
    for row, (tails, heads) in enumerate(zip(columns.tails, columns.heads, strict=True), start=1):
        longer: list[Paths] = [[] for _ in columns.of_class[row]]
        above, here = columns.of_class[row - 1].tolist(), columns.of_class[row].tolist()
        for tail, head in zip(tails.tolist(), heads.tolist(), strict=True):
            a, b = above[tail], here[head]
            transfer, taken = int(costs.period_most[row - 1, a, b]), int(arc[row - 1, a, b] + node[row, b])
            for excess, path in paths[tail]:
                longer[head].append((_followed(costs, row, b, shortest, excess, transfer), path + taken))
        paths = [_undominated(one) for one in longer]
    return min((path for one in paths for excess, path in one if excess == REACHED), default=None)


def _followed(costs: RowCosts, row: int, one: int, shortest: int, excess: int, transfer: int) -> int:
    """The excess after another row of a class."""
    for stage, work in enumerate(costs.stage_work[row, :, one].tolist()):
        if excess == REACHED:
            break
        excess = max(excess + (costs.inside if stage else transfer), 0) + work - (shortest - 1)
        if excess > 0:
            excess = REACHED
    return excess


def _undominated(paths: Paths) -> Paths:
    """Without those that take as long as others with more excess."""
    kept: Paths = []
    for excess, path in sorted(paths, key=lambda one: (one[1], -one[0])):
        if not kept or excess > kept[-1][0]:
            kept.append((excess, path))
    return kept

"""Lower bounds on the transfers between stages: least cost of each, and a cost that the slowest reaches."""

from dataclasses import dataclass

import numpy as np

from pipette_opt.base.types import BoolArray, IntArray
from pipette_opt.problem.data import UNUSABLE_TICKS, CandidateData, ProblemData
from pipette_opt.solver.matching import bottleneck_level


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Transfers:
    """
    Least costs of a candidate configuration's transfers.

    Paths count the two directions of a link separately; both reach the level of the faster direction.

    Parameters
    ----------
    least
        Least ticks from each stage to the next and back, two arrays ``(num_links,)``.
    between
        Indices of the links between hosts.
    level
        Cost that at least one transfer reaches, integer ticks.
    """

    least: tuple[IntArray, IntArray]
    between: IntArray
    level: int

    def at_level(self, level: int) -> tuple[IntArray, IntArray]:
        """Return transfers where each link in turn costs ``level`` ticks: both ways, ``(num_links, scenarios)``."""
        number = len(self.between)
        send, back = (np.repeat(side[:, None], max(number, 1), axis=1) for side in self.least)
        here = (self.between, np.arange(number))
        send[here], back[here] = np.maximum(send[here], level), np.maximum(back[here], level)
        return send, back


def transfer_cost(candidate: CandidateData) -> IntArray:
    """
    Return the cost of the faster direction between each pair of hosts, ticks, shape ``(num_nodes, num_nodes)``.

    ``UNUSABLE_TICKS`` if a direction is missing.
    """
    forth, home = candidate.p2p_ticks, candidate.p2p_ticks.T
    cost: IntArray = np.where(np.maximum(forth, home) < UNUSABLE_TICKS, np.minimum(forth, home), UNUSABLE_TICKS)
    np.fill_diagonal(cost, UNUSABLE_TICKS)
    return cost


def least_transfers(data: ProblemData, candidate: CandidateData) -> Transfers | None:
    """Return the least costs of a candidate configuration's transfers; ``None`` if too few links exist."""
    rows = np.arange(candidate.num_stages) // candidate.tile.stages
    following = np.roll(rows, -1)
    between = np.flatnonzero(rows != following)[: candidate.grid[0] - 1 + candidate.wraps]
    send = np.full(candidate.num_links, candidate.intra_p2p_ticks, dtype=np.int64)
    back = send.copy()
    if not len(between):
        return Transfers(least=(send, back), between=between, level=0)
    cost, allowed = transfer_cost(candidate), data.allowed(candidate)
    for link in between:
        pairs = np.ix_(allowed[rows[link]], allowed[following[link]])
        if cost[pairs].min() >= UNUSABLE_TICKS:
            return None
        send[link], back[link] = candidate.p2p_ticks[pairs].min(), candidate.p2p_ticks.T[pairs].min()
    level = bottleneck_level(cost, len(between) * candidate.grid[1] * candidate.grid[2])
    level = max(level, some_host_has(cost.min(axis=1), allowed, candidate.num_cells))
    if level >= UNUSABLE_TICKS:
        return None
    return Transfers(least=(send, back), between=between, level=level)


def some_host_has(values: IntArray, allowed: BoolArray, num_used: int) -> int:
    """Return the largest value that at least one of any ``num_used`` allowed hosts must reach."""
    possible = np.sort(values[np.logical_or.reduce(allowed, axis=0)])
    return int(possible[num_used - 1])

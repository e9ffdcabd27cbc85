"""Lower bounds on the transfers between stages: least cost of each, and a cost that the slowest reaches."""

from dataclasses import dataclass
from typing import Literal

import numpy as np

from pipette_opt.base.types import BoolArray, IntArray
from pipette_opt.problem.data import UNUSABLE_TICKS, CandidateData, ProblemData
from pipette_opt.solver.matching import bottleneck_level

TransferCount = Literal["slower", "sum", "faster"]
"""Cost of a link in a bound, from its two directions: the slower one, their sum, or the faster one."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Transfers:
    """
    Least costs of a candidate configuration's transfers.

    The analytical 1F1B model counts the slower direction of a link (blocking sends) or the sum of both. The forward
    direction is then taken to be as fast as any link: of all pairs with that maximum or sum, this pair ends every stage
    earliest. Paths of a relaxation count the directions separately; both reach the level of the faster direction.

    Parameters
    ----------
    least
        Least ticks from each stage to the next and back, two arrays ``(num_links,)``.
    between
        Indices of the links between hosts.
    counts
        Cost of a link from its two directions.
    level
        Cost that at least one transfer reaches, integer ticks.
    """

    least: tuple[IntArray, IntArray]
    between: IntArray
    counts: TransferCount
    level: int

    def at_level(self, level: int) -> tuple[IntArray, IntArray]:
        """Return transfers where each link in turn costs ``level`` ticks: both ways, ``(num_links, scenarios)``."""
        number = len(self.between)
        send, back = (np.repeat(side[:, None], max(number, 1), axis=1) for side in self.least)
        here = (self.between, np.arange(number))
        if self.counts == "sum":
            back[here] = np.maximum(back[here], level - send[here])
            return send, back
        back[here] = np.maximum(back[here], level)
        if self.counts == "faster":
            send[here] = np.maximum(send[here], level)
        return send, back


def transfer_count(data: ProblemData, candidate: CandidateData) -> TransferCount:
    """Return the cost of a link from its two directions that a candidate configuration's bounds use."""
    if not candidate.has_analytical_model:
        return "faster"
    return "slower" if data.p2p == "blocking" else "sum"


def transfer_cost(data: ProblemData, candidate: CandidateData) -> IntArray:
    """
    Return the cost of each pair of hosts by :func:`transfer_count`, ticks, shape ``(num_nodes, num_nodes)``.

    ``UNUSABLE_TICKS`` if a direction is missing.
    """
    forth, home = candidate.p2p_ticks, candidate.p2p_ticks.T
    combine = {"slower": np.maximum, "sum": np.add, "faster": np.minimum}[transfer_count(data, candidate)]
    cost: IntArray = np.where(np.maximum(forth, home) < UNUSABLE_TICKS, combine(forth, home), UNUSABLE_TICKS)
    np.fill_diagonal(cost, UNUSABLE_TICKS)
    return cost


def least_transfers(data: ProblemData, candidate: CandidateData) -> Transfers | None:
    """Return the least costs of a candidate configuration's transfers; ``None`` if too few links exist."""
    rows = np.arange(candidate.num_stages) // candidate.tile.stages
    following = np.roll(rows, -1)
    between = np.flatnonzero(rows != following)[: candidate.grid[0] - 1 + candidate.wraps]
    counts = transfer_count(data, candidate)
    send = np.full(candidate.num_links, candidate.intra_p2p_ticks, dtype=np.int64)
    back = send.copy()
    if not len(between):
        return Transfers(least=(send, back), between=between, counts=counts, level=0)
    cost, allowed = transfer_cost(data, candidate), data.allowed(candidate)
    fastest = np.minimum(candidate.p2p_ticks, candidate.p2p_ticks.T)
    for link in between:
        pairs = np.ix_(allowed[rows[link]], allowed[following[link]])
        best = int(cost[pairs].min())
        if best >= UNUSABLE_TICKS:
            return None
        if counts == "faster":
            send[link], back[link] = candidate.p2p_ticks[pairs].min(), candidate.p2p_ticks.T[pairs].min()
        else:
            send[link] = fastest[pairs].min()
            back[link] = best - (send[link] if counts == "sum" else 0)
    level = bottleneck_level(cost, len(between) * candidate.grid[1] * candidate.grid[2])
    level = max(level, some_host_has(cost.min(axis=1), allowed, candidate.num_cells))
    if level >= UNUSABLE_TICKS:
        return None
    return Transfers(least=(send, back), between=between, counts=counts, level=level)


def some_host_has(values: IntArray, allowed: BoolArray, num_used: int) -> int:
    """Return the largest value that at least one of any ``num_used`` allowed hosts must reach."""
    possible = np.sort(values[np.logical_or.reduce(allowed, axis=0)])
    return int(possible[num_used - 1])

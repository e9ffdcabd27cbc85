"""
The objective of a single column of hosts as a maximum of linear rows.

One host follows the other, as many as the grid has rows, and no ring between hosts: what a placement costs is then the
longest of some sums, each over the hosts and over the links from one to the next. Rows of the closed form are pairs of
a stage that ends and of what makes the period; otherwise the candidate's paths are the rows.
"""

from dataclasses import dataclass
from itertools import combinations_with_replacement

import numpy as np

from pipette_opt.base.types import BoolArray, IntArray
from pipette_opt.problem.data import UNUSABLE_TICKS, CandidateData, ProblemData
from pipette_opt.solver.rows.costs import watched_stages

MOST_ROWS = 1000
"""Rows that are made at most; more would not fit in memory."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ChainRows:
    """
    ``R`` rows over ``P`` hosts in a chain out of ``M``.

    No placement costs less than ``(const + hosts + links) / scale`` of any row.

    Parameters
    ----------
    node
        A host at a position, shape ``(R, P, M)``.
    link
        From a host at a position to one at the next, shape ``(R, P, M, M)``; the last position's lead back to the first
        and are zero if nothing is sent there.
    const, scale
        Of each row, shape ``(R,)``.
    usable
        Pairs of hosts that may follow each other, shape ``(P, M, M)``.
    closed
        Whether anything is sent between the last host and the first.
    """

    node: IntArray
    link: IntArray
    const: IntArray
    scale: IntArray
    usable: BoolArray
    closed: bool


@dataclass(slots=True)
class _Coefficients:
    """
    How often each row counts what, one row of the arrays each.

    Parameters
    ----------
    forward, backward
        Work of the stages, shape ``(R, pp)``.
    up, down, slower
        Transfers to the next stage, back, and the slower of both, shape ``(R, pp)``.
    end
        The stage that ends, shape ``(R,)``.
    """

    forward: IntArray
    backward: IntArray
    up: IntArray
    down: IntArray
    slower: IntArray
    end: IntArray
    scale: IntArray


def num_rows(data: ProblemData, candidate: CandidateData) -> int:
    """How many rows there are."""
    if candidate.paths is not None:
        return len(candidate.paths)
    stages = candidate.num_stages
    periods = stages if data.p2p == "blocking" else stages * (stages + 1) // 2
    return periods * len(ending_stages(candidate))


def ending_stages(candidate: CandidateData) -> IntArray:
    """Stages that can end last: those with a reduction longer than the first's by more than what is done before it."""
    before = np.concatenate([[0], np.cumsum(candidate.backward_ticks.min(axis=0))[:-1]])
    ring = candidate.ring_floor_ticks
    return np.array(
        [end for end in watched_stages(candidate).tolist() if end == 0 or ring[end] - before[end] > ring[0]]
    )


def chain_rows(data: ProblemData, candidate: CandidateData) -> ChainRows:
    """The rows of a candidate with one column of whole tensor-parallel groups and two hosts at least."""
    count = _path_coefficients(candidate) if candidate.paths is not None else _closed_coefficients(data, candidate)
    rows, stages, per_host = candidate.grid[0], candidate.num_stages, candidate.block.stages
    number, hosts = len(count.end), data.num_nodes
    kinds = data.kind_of_node
    work = np.zeros((number, candidate.forward_ticks.shape[0], stages), dtype=np.int64)
    work += count.forward[:, None] * candidate.forward_ticks + count.backward[:, None] * candidate.backward_ticks
    if candidate.paths is not None:
        work += candidate.paths.work_ticks
    node = work.reshape(number, -1, rows, per_host).sum(axis=3).transpose(0, 2, 1)[:, :, kinds]
    const = count.scale * (candidate.ring_floor_ticks[count.end] + candidate.optimizer_ticks)
    there = candidate.p2p_ticks.astype(np.int64)
    missing = (there >= UNUSABLE_TICKS) | (there.T >= UNUSABLE_TICKS)
    there = np.where(missing, 0, there)
    link = np.zeros((number, rows, hosts, hosts), dtype=np.int64)
    usable: BoolArray = np.broadcast_to(~np.eye(hosts, dtype=np.bool_), (rows, hosts, hosts)).copy()
    for stage in range(candidate.num_links):
        row = stage // per_host
        if row == (stage + 1) % stages // per_host:
            const += (count.up + count.down + count.slower)[:, stage] * candidate.intra_p2p_ticks
            continue
        sides = ((count.up, there), (count.down, there.T), (count.slower, np.maximum(there, there.T)))
        for times, ticks in sides:
            link[:, row] += times[:, stage, None, None] * ticks
        usable[row] &= ~missing
    tied = candidate.has_tied_stages
    if tied and not candidate.embedding_ticks.size:
        const += count.scale * candidate.embedding_floor_ticks * _ends(count.end, stages)
    elif tied:
        last_to_first = candidate.embedding_ticks.T
        usable[-1] &= last_to_first < UNUSABLE_TICKS
        ticks = np.where(last_to_first < UNUSABLE_TICKS, last_to_first, 0)
        link[:, -1] += (count.scale * _ends(count.end, stages))[:, None, None] * ticks
    allowed = data.allowed(candidate)
    usable &= allowed[:, :, None] & np.roll(allowed, -1, axis=0)[:, None, :]
    closed = candidate.wraps or bool(candidate.embedding_ticks.size)
    return ChainRows(node=node, link=link, const=const, scale=count.scale, usable=usable, closed=closed)


def _ends(end: IntArray, stages: int) -> IntArray:
    """One where the ending stage reduces tied embeddings."""
    return np.isin(end, (0, stages - 1)).astype(np.int64)


def _path_coefficients(candidate: CandidateData) -> _Coefficients:
    paths = candidate.paths
    assert paths is not None
    none = np.zeros_like(paths.up)
    return _Coefficients(none, none, paths.up, paths.down, none, paths.stage, np.ones(len(paths), dtype=np.int64))


def _closed_coefficients(data: ProblemData, candidate: CandidateData) -> _Coefficients:
    """
    Round trip, ``m - 1`` periods, less what the stages before the ending one still have to do.

    A period over ``l`` stages is a mean, so its rows are scaled by ``l``; that periods are whole ticks is left out.
    """
    stages, rounds = candidate.num_stages, candidate.num_microbatches - 1
    periods: list[tuple[IntArray, IntArray, IntArray, int]] = []  # work, transfers there and back, slower ones, scale
    if data.p2p == "blocking":
        for stage in range(stages):
            slower = np.zeros(stages, dtype=np.int64)
            slower[max(stage - 1, 0) : min(stage + 1, stages - 1)] = 1
            periods.append((np.eye(stages, dtype=np.int64)[stage], np.zeros(stages, dtype=np.int64), slower, 1))
    else:
        for first, last in combinations_with_replacement(range(stages), 2):
            work, sends = np.zeros((2, stages), dtype=np.int64)
            work[first : last + 1], sends[first:last] = 1, 1
            periods.append((work, sends, np.zeros(stages, dtype=np.int64), last - first + 1))
    rows = []
    linked = np.arange(stages) < candidate.num_links
    for end in ending_stages(candidate).tolist():
        before = np.arange(stages) < end
        for work, sends, slower, scale in periods:
            forward, up = scale + rounds * work, scale * linked + rounds * sends
            rows.append((forward, forward - scale * before, up, up - scale * before, rounds * slower, end, scale))
    return _Coefficients(*(np.array(column, dtype=np.int64) for column in zip(*rows, strict=True)))

"""
Times of columns, rings and placements on plain grids (cells are single hosts), by the analytical 1F1B model.

A placement lists all hosts, the grid first, row by row. The kernels keep these arrays of it. ``work``, ``between`` and
``wait`` have shape ``(D, pp)``. They are the compute of each stage of each column, the sum of its transfers to the next
stage and back, and the longer of the two. ``hop``, shape ``(W, D)``, is the time of each watched stage's ring from each
column to the next. A watched stage is a stage whose end can decide the objective.
"""

from typing import NamedTuple

import numpy as np

from pipette_opt.annealing.compiled import ASYNC, BLOCKING, Tables
from pipette_opt.base.jit import njit
from pipette_opt.base.types import IntArray


class Grid(NamedTuple):
    """
    Arrays of a candidate configuration for the plain-grid kernels, times in integer ticks; ``W`` is the number of
    watched stages (able to decide the end) (:class:`~pipette_opt.annealing.compiled.Tables`).

    Parameters
    ----------
    sizes
        Rows, columns, all hosts, stages, watched stages, micro-batches, 1 if sends are blocking.
    link
        Transfers of a pair of hosts in both directions, shape ``(M, M, 2)``.
    cost
        Forward plus backward of each stage on each host, shape ``(pp, M)``.
    inside
        Transfer to the next stage on the same host, one direction.
    row_back, own_back
        Time of a host to pass a gradient back through its whole row, shape ``(P, M)``, and through the stages of the
        row before each watched stage, shape ``(W, M)``.
    hop
        Reduction of a stage of each ring class whose slowest hop is (i, j), shape ``(num_classes, M, M)``.
    which, floor, watched_row
        Ring class, least reduction and grid row of each watched stage, shape ``(W,)``.
    first_watched
        Index of the first watched stage of each row, shape ``(P + 1,)``.
    embedding, embedding_floor
        Reduction of tied embeddings by host pair, and its least time.
    allowed
        Mask of hosts with enough memory for each row, shape ``(P, M)``.
    """

    sizes: IntArray
    link: IntArray
    cost: IntArray
    inside: int
    row_back: IntArray
    own_back: IntArray
    hop: IntArray
    which: IntArray
    floor: IntArray
    first_watched: IntArray
    watched_row: IntArray
    embedding: IntArray
    embedding_floor: int
    optimizer: int
    allowed: np.ndarray


def has_grid(t: Tables) -> bool:
    """Return whether the plain-grid kernels support the candidate: single hosts as cells, analytical 1F1B."""
    return int(t.shape[2]) == 1 and int(t.scalars[0]) in (BLOCKING, ASYNC)


def grid_of(t: Tables) -> Grid:
    """Return the arrays of a candidate configuration, rearranged for the plain-grid kernels."""
    P, D = int(t.shape[0]), int(t.shape[1])
    pp, M, W = len(t.row), len(t.kind), len(t.watched)
    forward, backward = t.forward[t.kind].T, t.backward[t.kind].T  # (pp, M)
    inside = int(t.scalars[2])
    first_stage = np.searchsorted(t.row, np.arange(P))
    passing = backward + inside  # time of a stage whose next stage is on the same host
    row_back = np.stack([passing[t.row == row].sum(axis=0) - inside for row in range(P)])
    own_back = np.stack([passing[first_stage[t.row[stage]] : stage].sum(axis=0) for stage in t.watched])
    return Grid(
        sizes=np.array([P, D, M, pp, W, t.scalars[1], t.scalars[0] == BLOCKING], dtype=np.int64),
        link=np.stack([t.p2p, t.p2p.T], axis=-1) if P > 1 else np.zeros((M, M, 2), dtype=np.int64),
        cost=np.ascontiguousarray(forward + backward),
        inside=inside,
        row_back=np.ascontiguousarray(row_back),
        own_back=np.ascontiguousarray(own_back),
        hop=t.ring,
        which=np.ascontiguousarray(t.ring_class[t.watched]),
        floor=np.ascontiguousarray(t.ring_floor[t.watched]),
        first_watched=t.first_watched.astype(np.int64),
        watched_row=np.ascontiguousarray(t.row[t.watched].astype(np.int64)),
        embedding=t.embedding,
        embedding_floor=int(t.scalars[5]),
        optimizer=int(t.scalars[3]),
        allowed=t.allowed,
    )


@njit(cache=True, nogil=True)
def read_placement(g, nodes, work, between, wait, hop):  # type: ignore[no-untyped-def]
    """Fill ``work``, ``between``, ``wait`` and ``hop`` from a placement."""
    P, D, pp, W = g.sizes[0], g.sizes[1], g.sizes[3], g.sizes[4]
    a = pp // P
    for d in range(D):
        for s in range(pp):
            work[d, s] = g.cost[s, nodes[(s // a) * D + d]]
        for s in range(pp - 1):
            if (s + 1) % a != 0:
                between[d, s] = 2 * g.inside
                wait[d, s] = g.inside
        for r in range(P - 1):
            u, v = nodes[r * D + d], nodes[(r + 1) * D + d]
            send, send_back = g.link[u, v, 0], g.link[u, v, 1]
            between[d, (r + 1) * a - 1] = send + send_back
            wait[d, (r + 1) * a - 1] = max(send, send_back)
    for index in range(W if D > 1 else 0):
        r = g.watched_row[index]
        for d in range(D):
            v = nodes[r * D + d + 1] if d + 1 < D else nodes[r * D]
            hop[index, d] = g.hop[g.which[index], nodes[r * D + d], v]


@njit(cache=True, nogil=True)
def column_times(d, pp, work, between, wait, guess, blocking):  # type: ignore[no-untyped-def]
    """Return round trip and period of a column, integer ticks; ``guess`` is a period close to the result."""
    total = np.int64(0)
    period = np.int64(0)
    before = np.int64(0)
    if blocking:
        for s in range(pp):
            value = work[d, s]
            total += value + between[d, s]
            period = max(period, before + value + wait[d, s])
            before = wait[d, s]
        return total, period
    for s in range(pp):
        total += work[d, s] + between[d, s]
    period = guess
    reached = False
    while True:  # the largest mean over runs of stages, rounded up: Newton's method, at first from either side
        best = np.int64(-1) << 62
        best_sum = np.int64(0)
        best_length = np.int64(1)
        excess = np.int64(-1)
        run_sum = np.int64(0)
        length = np.int64(0)
        link = np.int64(0)
        for s in range(pp):
            value = work[d, s]
            if excess + link > 0:
                excess += link + value - period
                run_sum += link + value
                length += 1
            else:
                excess = value - period
                run_sum = value
                length = np.int64(1)
            if excess > best:
                best = excess
                best_sum = run_sum
                best_length = length
            link = between[d, s]
        if best == 0 or (best < 0 and reached):
            return total, period
        period = -((-best_sum) // best_length)
        reached = True


@njit(cache=True, nogil=True)
def slowest_hop(least, hop, index):  # type: ignore[no-untyped-def]
    """Return the reduction of a watched stage (able to decide the end), ticks: its slowest hop, or ``least``."""
    slowest = least
    for d in range(hop.shape[1]):
        slowest = max(slowest, hop[index, d])
    return slowest


@njit(cache=True, nogil=True)
def _finish(g, nodes, total, finish):  # type: ignore[no-untyped-def]
    """Write the end of each watched stage (able to decide the end) of each column into ``finish``, shape ``(W, D)``."""
    D, W = g.sizes[1], g.sizes[4]
    for d in range(D):
        before = np.int64(0)
        row = 0
        for index in range(W):
            while row < g.watched_row[index]:
                here, following = nodes[row * D + d], nodes[(row + 1) * D + d]
                before += g.row_back[row, here] + g.link[here, following, 1]
                row += 1
            finish[index, d] = total[d] - before - g.own_back[index, nodes[row * D + d]]


@njit(cache=True, nogil=True)
def ends_below(g, nodes, d, total, ring, limit):  # type: ignore[no-untyped-def]
    """Return whether all watched stages (able to decide the end) of a column end before ``limit``, with reductions."""
    D, W = g.sizes[1], g.sizes[4]
    if total + ring[0] >= limit:
        return False
    before = np.int64(0)
    row = 0
    for index in range(W):
        while row < g.watched_row[index]:
            here, following = nodes[row * D + d], nodes[(row + 1) * D + d]
            before += g.row_back[row, here] + g.link[here, following, 1]
            row += 1
        if total - before - g.own_back[index, nodes[row * D + d]] + ring[index] >= limit:
            return False
    return True


@njit(cache=True, nogil=True)
def objective(g, nodes, total, finish, ring):  # type: ignore[no-untyped-def]
    """Return the integer objective, ticks; fill ``finish``."""
    P, D, W = g.sizes[0], g.sizes[1], g.sizes[4]
    _finish(g, nodes, total, finish)
    worst = np.int64(0)
    ends = np.int64(0)
    for index in range(W):
        latest = np.int64(0)
        for d in range(D):
            latest = max(latest, finish[index, d])
        worst = max(worst, latest + ring[index])
        if index == 0 or index == W - 1:
            ends = max(ends, latest + ring[index])
    return max(worst, ends + embedding(g, nodes, P, D)) + g.optimizer


@njit(cache=True, nogil=True)
def embedding(g, nodes, P, D):  # type: ignore[no-untyped-def]
    """Return the reduction of tied embeddings, integer ticks: the slowest column's, between its first and last host."""
    slowest = np.int64(g.embedding_floor)
    if g.embedding.shape[0] > 0:
        for d in range(D):
            slowest = max(slowest, g.embedding[nodes[d], nodes[(P - 1) * D + d]])
    return slowest

"""
The integer objective, compiled: the same numbers as ``problem.objective_ticks``, a column or a row at a time.

For what evaluates placements by the million; links that may not be used cost a penalty instead of being refused.
"""

from typing import NamedTuple

import numpy as np

from pipette_opt.jit import njit
from pipette_opt.problem import UNUSABLE_TICKS, CandidateData, ProblemData
from pipette_opt.types import BoolArray, IntArray

BLOCKING, ASYNC, LOWER = 0, 1, 2


class Tables(NamedTuple):
    """
    One candidate as flat arrays; see :class:`~pipette_opt.problem.CandidateData`.

    Parameters
    ----------
    shape
        Pipeline, data and tensor size of the grid, shape ``(3,)``.
    scalars
        Form (``BLOCKING``, ``ASYNC`` or ``LOWER``), micro-batches, transfer inside a host, optimizer step, penalty.
    row
        Grid row of each stage, shape ``(pp,)``.
    watched
        Stages whose end can decide the objective, ascending.
    first_watched
        Where the watched stages of each row begin, shape ``(P + 1,)``.
    """

    shape: IntArray
    scalars: IntArray
    row: IntArray
    watched: IntArray
    first_watched: IntArray
    kind: IntArray
    forward: IntArray
    backward: IntArray
    first_forward: IntArray
    first_backward: IntArray
    layers: IntArray
    p2p: IntArray
    tensor_forward: IntArray
    tensor_backward: IntArray
    ring_class: IntArray
    ring: IntArray
    ring_floor: IntArray
    embedding: IntArray
    allowed: BoolArray


def tables(data: ProblemData, candidate: CandidateData) -> Tables:
    """Arrays for the kernels; a link that may not be used costs more than any plan without it."""
    row = np.arange(candidate.num_stages) // candidate.block.stages
    watched = _watched_stages(candidate, row)
    penalty = _penalty(candidate)
    form = LOWER if not candidate.exact else BLOCKING if data.p2p == "blocking" else ASYNC
    return Tables(
        shape=np.array(candidate.grid, dtype=np.int64),
        scalars=np.array(
            [
                form,
                candidate.num_microbatches,
                candidate.intra_p2p_ticks,
                candidate.optimizer_ticks,
                penalty,
                candidate.embedding_floor_ticks,
            ],
            dtype=np.int64,
        ),
        row=row,
        watched=watched,
        first_watched=np.searchsorted(row[watched], np.arange(candidate.grid[0] + 1)),
        kind=data.kind_of_node.copy(),
        forward=candidate.forward_ticks.copy(),
        backward=candidate.backward_ticks.copy(),
        first_forward=candidate.first_forward_ticks.copy(),
        first_backward=candidate.first_backward_ticks.copy(),
        layers=np.array(candidate.config.layers_per_stage, dtype=np.int64),
        p2p=_penalised(candidate.p2p_ticks, penalty),
        tensor_forward=_penalised(candidate.tensor_forward_ticks, penalty),
        tensor_backward=_penalised(candidate.tensor_backward_ticks, penalty),
        ring_class=candidate.ring_class.copy(),
        ring=_penalised(candidate.ring_ticks, penalty),
        ring_floor=candidate.ring_floor_ticks.copy(),
        embedding=candidate.embedding_ticks.copy(),
        allowed=data.allowed(candidate),
    )


def _watched_stages(candidate: CandidateData, row: IntArray) -> IntArray:
    """
    Stages whose end can decide the objective.

    In the exact forms a later stage ends earlier: of the stages of a row with equal rings only the first counts, and
    the last stage if it has tied embeddings to reduce. The first stage is always the first of these, and the last
    stage, where embeddings are tied, the last.
    """
    stages = range(candidate.num_stages)
    if not candidate.exact:
        return np.array(stages, dtype=np.int64)
    ring = list(zip(row.tolist(), candidate.ring_class.tolist(), candidate.ring_floor_ticks.tolist(), strict=True))
    tied = {stages[-1]} if candidate.has_tied_stages else set()
    return np.array([stage for stage in stages if ring[stage] not in ring[:stage] or stage in tied], dtype=np.int64)


def _penalty(candidate: CandidateData) -> int:
    """More than any placement on usable links costs."""
    link = _largest_usable(candidate.p2p_ticks) + candidate.intra_p2p_ticks
    layer = _largest_usable(candidate.tensor_forward_ticks) + _largest_usable(candidate.tensor_backward_ticks)
    compute = int(candidate.forward_ticks.max() + candidate.backward_ticks.max())
    stage = compute + max(candidate.config.layers_per_stage) * layer + 2 * link
    ring = _largest_usable(candidate.ring_ticks) + int(candidate.ring_floor_ticks.max())
    ring += int(candidate.embedding_ticks.max(initial=candidate.embedding_floor_ticks))
    return 2 * (candidate.num_microbatches + candidate.num_stages) * stage + ring


def _largest_usable(ticks: IntArray) -> int:
    return int(ticks[ticks < UNUSABLE_TICKS].max(initial=0))


def _penalised(ticks: IntArray, penalty: int) -> IntArray:
    return np.where(ticks < UNUSABLE_TICKS, ticks, penalty)


FORWARD, BACKWARD, SEND, SEND_BACK, FIRST_FORWARD, FIRST_BACKWARD = range(6)
"""Rows of a column's ``times``: of each stage, and of its boundary with the next."""


@njit(cache=True, nogil=True)
def finish_of_column(t, nodes, column, finish, times):  # type: ignore[no-untyped-def]
    """Write when each watched stage of a column has finished into ``finish[:, column]``; ``times``: (6, pp)."""
    D, K = t.shape[1], t.shape[2]
    pp = t.row.shape[0]
    for s in range(pp):
        base = (t.row[s] * D + column) * K
        f = np.int64(0)
        b = np.int64(0)
        for k in range(K):
            kind = t.kind[nodes[base + k]]
            f = max(f, t.forward[kind, s])
            b = max(b, t.backward[kind, s])
        if K > 1:
            hop_f = np.int64(0)
            hop_b = np.int64(0)
            for k in range(K):
                u, v = nodes[base + k], nodes[base + (k + 1) % K]
                hop_f = max(hop_f, t.tensor_forward[u, v])
                hop_b = max(hop_b, t.tensor_backward[u, v])
            f += t.layers[s] * hop_f
            b += t.layers[s] * hop_b
        times[FORWARD, s] = f
        times[BACKWARD, s] = b
        if t.scalars[0] == LOWER:
            f = np.int64(0)
            b = np.int64(0)
            for k in range(K):
                kind = t.kind[nodes[base + k]]
                f = max(f, t.first_forward[kind, s])
                b = max(b, t.first_backward[kind, s])
            times[FIRST_FORWARD, s] = f
            times[FIRST_BACKWARD, s] = b
        if s + 1 < pp:
            if t.row[s + 1] == t.row[s]:
                times[SEND, s] = t.scalars[2]
                times[SEND_BACK, s] = t.scalars[2]
            else:
                there = base + D * K
                p = np.int64(0)
                q = np.int64(0)
                for k in range(K):
                    u, v = nodes[base + k], nodes[there + k]
                    p = max(p, t.p2p[u, v])
                    q = max(q, t.p2p[v, u])
                times[SEND, s] = p
                times[SEND_BACK, s] = q
    finish_of_times(t, times, column, finish)


@njit(cache=True, nogil=True)
def finish_of_times(t, times, column, finish):  # type: ignore[no-untyped-def]
    """Write when each watched stage has finished into ``finish[:, column]``, from the times of stages and transfers."""
    form, m = t.scalars[0], t.scalars[1]
    if form == LOWER:
        _lower_finish(t, times, column, finish)
        return
    pp = t.row.shape[0]
    total = np.int64(0)
    period = np.int64(0)
    before = np.int64(0)
    for s in range(pp):
        cost = times[FORWARD, s] + times[BACKWARD, s]
        wait = np.int64(0)
        if s + 1 < pp:
            wait = max(times[SEND, s], times[SEND_BACK, s])
            total += times[SEND, s] + times[SEND_BACK, s]
        total += cost
        period = max(period, cost + before + wait)
        before = wait
    if form == ASYNC:
        period = _largest_segment_mean(times, pp)
    total += (m - 1) * period
    before = np.int64(0)
    done = 0
    for index in range(t.watched.shape[0]):
        stage = t.watched[index]
        while done < stage:
            before += times[BACKWARD, done] + times[SEND_BACK, done]
            done += 1
        finish[index, column] = total - before


@njit(cache=True, nogil=True)
def _largest_segment_mean(times, pp):  # type: ignore[no-untyped-def]
    """Largest mean of cost plus transfers inside over runs of stages, rounded up: Newton's method on the mean."""
    level = np.int64(0)
    for s in range(pp):
        level = max(level, times[FORWARD, s] + times[BACKWARD, s])
    while True:
        best = np.int64(0)
        best_sum = np.int64(0)
        best_length = np.int64(1)
        excess = np.int64(0)
        run_sum = np.int64(0)
        length = np.int64(0)
        for s in range(pp):
            cost = times[FORWARD, s] + times[BACKWARD, s]
            link = times[SEND, s - 1] + times[SEND_BACK, s - 1] if s else np.int64(0)
            if length > 0 and excess + link > 0:
                excess += link + cost - level
                run_sum += link + cost
                length = length + 1
            else:
                excess = cost - level
                run_sum = cost
                length = np.int64(1)
            if excess > best:
                best = excess
                best_sum = run_sum
                best_length = length
        if best <= 0:
            return level
        level = -((-best_sum) // best_length)


@njit(cache=True, nogil=True)
def _lower_finish(t, times, column, finish):  # type: ignore[no-untyped-def]
    """The lower form: when each stage can have finished at the earliest."""
    m = t.scalars[1]
    start = np.int64(0)
    back = np.int64(0)
    first = np.int64(0)
    for s in range(t.row.shape[0]):
        ended = start + m * (times[FORWARD, s] + times[BACKWARD, s])
        finish[s, column] = ended
        first = max(first, ended + back)
        start += times[FIRST_FORWARD, s] + times[SEND, s]
        back += times[FIRST_BACKWARD, s] + times[SEND_BACK, s]
    finish[0, column] = first


@njit(cache=True, nogil=True)
def ring_of_row(t, nodes, row, ring):  # type: ignore[no-untyped-def]
    """Write the gradient reduction of the watched stages of a row into ``ring``."""
    D, K = t.shape[1], t.shape[2]
    begin, end = t.first_watched[row], t.first_watched[row + 1]
    known = np.int64(-1)
    slowest = np.int64(0)
    for index in range(begin, end):
        stage = t.watched[index]
        which = t.ring_class[stage]
        if D > 1 and which != known:
            known = which
            slowest = np.int64(0)
            base = row * D * K
            for k in range(K):
                u = nodes[base + (D - 1) * K + k]
                for d in range(D):
                    v = nodes[base + d * K + k]
                    slowest = max(slowest, t.ring[which, u, v])
                    u = v
        ring[index] = max(slowest, t.ring_floor[stage])


@njit(cache=True, nogil=True)
def slowest_end(t, nodes, finish, ring):  # type: ignore[no-untyped-def]
    """The objective, from all columns and rings, and the embeddings of the first and the last stage."""
    worst = np.int64(0)
    ends = np.int64(0)
    last = ring.shape[0] - 1
    for index in range(ring.shape[0]):
        latest = np.int64(0)
        for column in range(finish.shape[1]):
            latest = max(latest, finish[index, column])
        worst = max(worst, latest + ring[index])
        if index == 0 or index == last:
            ends = max(ends, latest + ring[index])
    embedding = t.scalars[5]
    if t.embedding.shape[0] > 0:
        width = t.shape[1] * t.shape[2]
        back = (t.shape[0] - 1) * width
        for cell in range(width):
            embedding = max(embedding, t.embedding[nodes[cell], nodes[back + cell]])
    return max(worst, ends + embedding) + t.scalars[3]


@njit(cache=True, nogil=True)
def evaluate(t, nodes, finish, ring, times):  # type: ignore[no-untyped-def]
    """The objective of a placement from scratch; fills ``finish`` and ``ring``."""
    for column in range(t.shape[1]):
        finish_of_column(t, nodes, column, finish, times)
    for row in range(t.shape[0]):
        ring_of_row(t, nodes, row, ring)
    return slowest_end(t, nodes, finish, ring)

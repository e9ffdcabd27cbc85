"""
Compiled integer objective: equal to ``problem.objective.objective_ticks``, for one column or one row at a time.

Annealing evaluates millions of placements with it. A link that must not be used costs a penalty instead of being
refused.
"""

from typing import NamedTuple

import numpy as np

from pipette_opt.base.jit import njit
from pipette_opt.base.types import BoolArray, IntArray
from pipette_opt.problem.data import UNUSABLE_TICKS, CandidateData, ProblemData
from pipette_opt.problem.objective import largest_ticks


class Tables(NamedTuple):
    """
    Arrays of one candidate for the kernels; see :class:`~pipette_opt.problem.data.CandidateData`.

    Parameters
    ----------
    shape
        Rows, columns and hosts of a slot of the grid, hosts of a slot's context groups, and hosts of a ring inside a
        slot, shape ``(5,)``.
    scalars
        Transfer inside a host, optimizer step, penalty, least embedding reduction, shape ``(4,)``.
    row
        Grid row of each stage, shape ``(pp,)``.
    first_stage
        First stage of each grid row, and the number of stages, shape ``(P + 1,)``.
    path_stage, path_work, path_forward, path_backward, path_up, path_down, path_least, path_ring, ring_added
        The candidate's :class:`~pipette_opt.problem.data.Paths`.
    ring_level
        Level of each hop of overlapped rings; empty ``(0, 0)`` without such rings.
    """

    shape: IntArray
    scalars: IntArray
    row: IntArray
    first_stage: IntArray
    kind: IntArray
    p2p: IntArray
    tensor_forward: IntArray
    tensor_backward: IntArray
    ring_class: IntArray
    ring: IntArray
    ring_floor: IntArray
    embedding: IntArray
    allowed: BoolArray
    wraps: bool
    path_stage: IntArray
    path_work: IntArray
    path_forward: IntArray
    path_backward: IntArray
    path_up: IntArray
    path_down: IntArray
    path_least: IntArray
    path_ring: IntArray
    ring_added: IntArray
    ring_level: IntArray


def tables(data: ProblemData, candidate: CandidateData) -> Tables:
    """Return the arrays of a candidate; a link that must not be used costs more than any plan without it."""
    row = np.arange(candidate.num_stages) // candidate.tile.stages
    paths = candidate.paths
    penalty = largest_ticks(candidate) + 1
    return Tables(
        shape=np.array([*candidate.grid, candidate.tile.context_nodes, candidate.slot_ring], dtype=np.int64),
        scalars=np.array(
            [candidate.intra_p2p_ticks, candidate.optimizer_ticks, penalty, candidate.embedding_floor_ticks],
            dtype=np.int64,
        ),
        row=row,
        first_stage=np.arange(candidate.grid[0] + 1) * candidate.tile.stages,
        kind=data.kind_of_node.copy(),
        p2p=_penalised(candidate.p2p_ticks, penalty),
        tensor_forward=_penalised(candidate.tensor_forward_ticks, penalty),
        tensor_backward=_penalised(candidate.tensor_backward_ticks, penalty),
        ring_class=candidate.ring_class.copy(),
        ring=_penalised(candidate.ring_ticks, penalty),
        ring_floor=candidate.ring_floor_ticks.copy(),
        embedding=candidate.embedding_ticks.copy(),
        allowed=data.allowed(candidate),
        wraps=candidate.config.num_chunks > 1,
        path_stage=paths.stage.copy(),
        path_work=paths.work_ticks.copy(),
        path_forward=paths.forward_layers.copy(),
        path_backward=paths.backward_layers.copy(),
        path_up=paths.up.copy(),
        path_down=paths.down.copy(),
        path_least=paths.least_ticks.copy(),
        path_ring=paths.row_ring if candidate.ring_level.size else paths.row_ring[:, :0],
        ring_added=paths.ring_ticks.copy(),
        ring_level=_penalised(candidate.ring_level, 0),
    )


def _penalised(ticks: IntArray, penalty: int) -> IntArray:
    return np.where(ticks < UNUSABLE_TICKS, ticks, penalty)


SEND, SEND_BACK, TENSOR_FORWARD, TENSOR_BACKWARD = range(4)
"""Rows of a column's ``times``: transfers of each stage to the next (cyclic) and back, tensor hops of a layer."""

NUM_TIMES = 4
"""Number of rows of a column's ``times``."""


@njit(cache=True, nogil=True)
def overwrite(target, source):  # type: ignore[no-untyped-def]
    """Copy an array into another of equal length; assigning to a slice takes numba seconds to compile."""
    for i in range(source.shape[0]):
        target[i] = source[i]


@njit(cache=True, nogil=True)
def new_lengths(t):  # type: ignore[no-untyped-def]
    """
    Return an array for the lengths of paths without overlapped rings, ``(num_paths + 1, D)``; empty without such rings.

    The last row has the slowest time of a column with a link that must not be used.
    """
    paths = t.path_stage.shape[0] + 1 if t.path_ring.shape[1] > 0 else 0
    return np.zeros((paths, t.shape[1]), np.int64)


@njit(cache=True, nogil=True)
def finish_of_column(t, nodes, column, finish, times, lengths):  # type: ignore[no-untyped-def]
    """
    Write the longest path to each stage's last backward into ``finish[:, column]``; fill ``times``, shape ``(4, pp)``.

    With overlapped rings, fill ``lengths[:, column]`` instead, for :func:`finish_with_rings`.
    """
    D, K = t.shape[1], t.shape[2]
    pp = t.row.shape[0]
    for s in range(pp):
        base = (t.row[s] * D + column) * K
        if K > 1:
            hop_f = np.int64(0)
            hop_b = np.int64(0)
            size = t.shape[4]
            for k in range(K):
                u, v = nodes[base + k], nodes[base + k // size * size + (k + 1) % size]
                hop_f = max(hop_f, t.tensor_forward[u, v])
                hop_b = max(hop_b, t.tensor_backward[u, v])
            times[TENSOR_FORWARD, s] = hop_f
            times[TENSOR_BACKWARD, s] = hop_b
        if s + 1 < pp or t.wraps:
            following = t.row[(s + 1) % pp]
            if following == t.row[s]:
                times[SEND, s] = t.scalars[0]
                times[SEND_BACK, s] = t.scalars[0]
            else:
                following_cell = (following * D + column) * K
                p = np.int64(0)
                q = np.int64(0)
                for k in range(K):
                    u, v = nodes[base + k], nodes[following_cell + k]
                    p = max(p, t.p2p[u, v])
                    q = max(q, t.p2p[v, u])
                times[SEND, s] = p
                times[SEND_BACK, s] = q
    _longest_paths(t, nodes, times, column, finish, lengths)


@njit(cache=True, nogil=True)
def _longest_paths(t, nodes, times, column, finish, lengths):  # type: ignore[no-untyped-def]
    """Write the longest path to each stage's last backward into ``finish[:, column]``, or all into ``lengths``."""
    has_rings = lengths.shape[0] > 0
    D, K = t.shape[1], t.shape[2]
    pp = t.row.shape[0]
    worst = np.int64(0)
    for s in range(pp):
        finish[s, column] = 0
        for part in range(SEND, TENSOR_BACKWARD + 1):
            worst = max(worst, times[part, s])
    if worst < t.scalars[2]:
        worst = np.int64(0)
    finish[0, column] = worst  # the paths alone may avoid a link that may not be used
    if has_rings:
        lengths[t.path_stage.shape[0], column] = worst
    for path in range(t.path_stage.shape[0]):
        length = np.int64(0)
        for s in range(pp):
            base = (t.row[s] * D + column) * K
            work = t.path_work[path, t.kind[nodes[base]], s]
            for k in range(1, K):
                work = max(work, t.path_work[path, t.kind[nodes[base + k]], s])
            length += work + t.path_up[path, s] * times[SEND, s] + t.path_down[path, s] * times[SEND_BACK, s]
            if K > 1:
                length += t.path_forward[path, s] * times[TENSOR_FORWARD, s]
                length += t.path_backward[path, s] * times[TENSOR_BACKWARD, s]
        stage = t.path_stage[path]
        if has_rings:
            lengths[path, column] = length
        else:
            finish[stage, column] = max(finish[stage, column], length)


@njit(cache=True, nogil=True)
def finish_with_rings(t, nodes, lengths, finish):  # type: ignore[no-untyped-def]
    """Write the ends of all columns from the lengths of paths and the slowest hop of each row's overlapped rings."""
    P, D, K = t.shape[0], t.shape[1], t.shape[2]
    parts = K // t.shape[3]
    length = D * t.shape[3]
    level = np.zeros(P, np.int64)
    for row in range(P):
        base = row * D * K
        for k in range(parts):
            u = nodes[base + (length - 1) * parts + k]
            for place in range(length):
                v = nodes[base + place * parts + k]
                level[row] = max(level[row], t.ring_level[u, v])
                u = v
    num_paths = t.path_stage.shape[0]
    for column in range(D):
        for stage in range(finish.shape[0]):
            finish[stage, column] = 0
        finish[0, column] = lengths[num_paths, column]
    for path in range(num_paths):
        added = -t.path_least[path]
        for row in range(P):
            added += t.ring_added[t.path_ring[path, row], level[row]]
        added = max(added, np.int64(0))
        stage = t.path_stage[path]
        for column in range(D):
            finish[stage, column] = max(finish[stage, column], lengths[path, column] + added)


@njit(cache=True, nogil=True)
def ring_of_row(t, nodes, row, ring):  # type: ignore[no-untyped-def]
    """Write the gradient reduction of each stage of a row into ``ring``, ticks."""
    length = t.shape[1] * t.shape[3]
    parts = t.shape[2] // t.shape[3]
    known = np.int64(-1)
    slowest = np.int64(0)
    for stage in range(t.first_stage[row], t.first_stage[row + 1]):
        which = t.ring_class[stage]
        if length > 1 and which != known:
            known = which
            slowest = np.int64(0)
            base = row * length * parts
            for k in range(parts):
                u = nodes[base + (length - 1) * parts + k]
                for place in range(length):
                    v = nodes[base + place * parts + k]
                    slowest = max(slowest, t.ring[which, u, v])
                    u = v
        ring[stage] = max(slowest, t.ring_floor[stage])


@njit(cache=True, nogil=True)
def slowest_end(t, nodes, finish, ring):  # type: ignore[no-untyped-def]
    """Return the objective from the ends of all columns, the rings, and the embeddings of both ends, ticks."""
    worst = np.int64(0)
    ends = np.int64(0)
    last = ring.shape[0] - 1
    for stage in range(ring.shape[0]):
        latest = np.int64(0)
        for column in range(finish.shape[1]):
            latest = max(latest, finish[stage, column])
        worst = max(worst, latest + ring[stage])
        if stage == 0 or stage == last:
            ends = max(ends, latest + ring[stage])
    embedding = t.scalars[3]
    if t.embedding.shape[0] > 0:
        width = t.shape[1] * t.shape[2]
        back = (t.shape[0] - 1) * width
        for cell in range(width):
            embedding = max(embedding, t.embedding[nodes[cell], nodes[back + cell]])
    return max(worst, ends + embedding) + t.scalars[1]


@njit(cache=True, nogil=True)
def evaluate(t, nodes, finish, ring, times):  # type: ignore[no-untyped-def]
    """Return the objective of a placement, integer ticks, computed from scratch; fills ``finish`` and ``ring``."""
    return evaluate_paths(t, nodes, finish, ring, times, new_lengths(t))


@njit(cache=True, nogil=True)
def evaluate_paths(t, nodes, finish, ring, times, lengths):  # type: ignore[no-untyped-def]
    """Return the objective as :func:`evaluate`; also fills ``lengths`` of :func:`new_lengths`."""
    for column in range(t.shape[1]):
        finish_of_column(t, nodes, column, finish, times, lengths)
    if lengths.shape[0] > 0:
        finish_with_rings(t, nodes, lengths, finish)
    for row in range(t.shape[0]):
        ring_of_row(t, nodes, row, ring)
    return slowest_end(t, nodes, finish, ring)

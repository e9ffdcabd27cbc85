"""
Depth-first search over the cells of a grid, compiled.

Cells are filled in a fixed order, row by row, with hosts that keep every link within what a
ceiling on the objective and on the columns' periods leaves. The search stops at a full grid or after so many hosts
tried, and goes on where it was.
"""

from typing import NamedTuple

import numpy as np

from pipette_opt.base.jit import njit
from pipette_opt.base.types import BoolArray, IntArray


class Grid(NamedTuple):
    """
    A candidate as flat arrays; ``P`` rows, ``D`` columns, ``a`` stages in a row, ``W`` watched stages, ``N`` hosts.

    Parameters
    ----------
    scalars
        ``P, D, a``, micro-batches less one, whether sends are blocking, transfer inside a host, whether rings may be
        turned round.
    order
        Cells in the order in which they are filled, row and column, shape ``(P * D, 2)``.
    wait
        What a period counts of a transfer, shape ``(N, N)``.
    first_wait, last_wait
        Work of a row's first and last stage with what it waits inside the host, shape ``(P, N)``.
    inner
        The longest of a row's other stages likewise, shape ``(P, N)``.
    work
        Work of each stage, forward and backward, shape ``(stages, N)``.
    least_out
        Least wait for a transfer to the next row, shape ``(N,)``.
    node
        What a host adds to the end of each watched stage, shape ``(W, P, N)``.
    arc
        What a transfer adds: 0 where only forwards counts, 1 both ways, shape ``(W, P - 1)``.
    transfer
        Transfers in the direction of forwards, and both ways, shape ``(2, N, N)``.
    rest
        Least that the rows below a host add to the end of each watched stage, shape ``(W, P, N)``.
    mean_node, mean_rest
        What a host adds to the sum of what a column's stages take in a period, and the rows below at least,
        shape ``(P, N)``.
    hop
        Reduction of each watched stage by ring hop, shape ``(W, N, N)``.
    least_hop, after
        Least reduction of each watched stage, and what follows it, shape ``(W,)``.
    row
        Row of each watched stage, shape ``(W,)``.
    """

    scalars: IntArray
    order: IntArray
    wait: IntArray
    first_wait: IntArray
    last_wait: IntArray
    inner: IntArray
    work: IntArray
    least_out: IntArray
    node: IntArray
    arc: IntArray
    transfer: IntArray
    rest: IntArray
    mean_node: IntArray
    mean_rest: IntArray
    hop: IntArray
    least_hop: IntArray
    after: IntArray
    row: IntArray


class Limits(NamedTuple):
    """
    What a part of the search allows.

    Parameters
    ----------
    values
        Ceiling of the objective, largest period of a column.
    room
        Hosts of each row, shape ``(P, N)``.
    down
        Whether a column may go from a host of a row to a host of the next, shape ``(P, N, N)``.
    along
        Whether a row's ring may go from a host to another, shape ``(P, N, N)``.
    last
        The last row that each host may have if every host must be used, else ``P``, shape ``(N,)``.
    """

    values: IntArray
    room: BoolArray
    down: BoolArray
    along: BoolArray
    last: IntArray


class State(NamedTuple):
    """
    Where the search is; all by position in the order of cells, or by cell.

    Parameters
    ----------
    depth
        The position being filled, -1 when all is done; hosts tried so far.
    tried
        The next host to try at each position.
    nodes
        Host of each cell, shape ``(P, D)``.
    used
        Whether a host is in a cell.
    period, mean, wait_in
        Of each column down to a row: least period, sum of its stages' parts of it, wait for the transfer into the row,
        shape ``(P, D)``.
    passed
        Work and transfers of a column down to each stage, shape ``(stages, D)``.
    end
        Of each watched stage and column, what the rows down to one add to its end, shape ``(W, P, D)``.
    latest, ring
        Of each watched stage, the latest column's least end and the slowest hop so far, shape ``(P * D + 1, W)``.
    """

    depth: IntArray
    tried: IntArray
    nodes: IntArray
    used: BoolArray
    period: IntArray
    mean: IntArray
    wait_in: IntArray
    passed: IntArray
    end: IntArray
    latest: IntArray
    ring: IntArray


@njit(cache=True, nogil=True)
def explore(g, limits, state, budget):  # type: ignore[no-untyped-def]
    """Go on until a full grid (1), the end of the search (0) or so many hosts tried (2)."""
    P, D = g.scalars[0], g.scalars[1]
    cells, N = P * D, g.wait.shape[0]
    used, room, down, along = state.used, limits.room, limits.down, limits.along
    depth = state.depth[0]
    if depth == cells:  # go on behind a full grid
        depth -= 1
        r, d = g.order[depth, 0], g.order[depth, 1]
        state.used[state.nodes[r, d]] = False
    left = budget
    while depth >= 0:
        r, d = g.order[depth, 0], g.order[depth, 1]
        v = state.tried[depth]
        placed = False
        up = state.nodes[r - 1, d] if r > 0 else -1
        side = state.nodes[r, d - 1] if d > 0 else -1
        start = state.nodes[r, 0] if d == D - 1 and D > 1 else -1
        after = state.nodes[0, 0] if r == 0 and d > 0 else -1  # one of all equal ways to turn the rings
        if g.scalars[6] and r == 0 and d == D - 1 and d > 1:
            after = max(after, state.nodes[0, 1])
        due = 0  # hosts that no later row takes
        for host in range(N):
            due += not used[host] and limits.last[host] <= r
        if due > D - d:
            v = N
        while v < N:
            if (
                not used[v]
                and room[r, v]
                and (due < D - d or limits.last[v] <= r)
                and v > after
                and (up < 0 or down[r - 1, up, v])
                and (side < 0 or along[r, side, v])
                and (start < 0 or along[r, v, start])
            ):
                left -= 1
                if _put(g, limits, state, depth, r, d, v):
                    placed = True
                    break
            v += 1
        if placed:
            state.tried[depth] = v + 1
            state.nodes[r, d] = v
            state.used[v] = True
            depth += 1
            if depth == cells:
                state.depth[0] = depth
                state.depth[1] += budget - left
                return 1
            state.tried[depth] = 0
        else:
            depth -= 1
            if depth >= 0:
                state.used[state.nodes[g.order[depth, 0], g.order[depth, 1]]] = False
        if left <= 0:
            break
    state.depth[0] = depth
    state.depth[1] += budget - left
    return 0 if depth < 0 else 2


@njit(cache=True, nogil=True)
def _put(g, limits, state, depth, r, d, v):  # type: ignore[no-untyped-def]
    """Write what a host in a cell costs; False if that is too much."""
    D, rounds, blocking = g.scalars[1], g.scalars[3], g.scalars[4]
    above = state.nodes[r - 1, d] if r > 0 else 0
    period = _blocking_period(g, state, r, d, above, v) if blocking else _async_period(g, state, r, d, above, v)
    if period > limits.values[1]:
        return False
    mean = g.mean_node[r, v]
    if r > 0:
        mean += state.mean[r - 1, d] + (2 if blocking else 1) * g.wait[above, v]
    stages = g.work.shape[0]
    least_period = max(period, -(-(mean + g.mean_rest[r, v]) // stages))
    if least_period > limits.values[1]:
        return False
    state.period[r, d], state.mean[r, d] = period, mean
    left = state.nodes[r, d - 1] if d > 0 else 0
    first = state.nodes[r, 0]
    for w in range(g.node.shape[0]):
        end = g.node[w, r, v]
        if r > 0:
            end += state.end[w, r - 1, d] + g.transfer[g.arc[w, r - 1], above, v]
        state.end[w, r, d] = end
        latest = max(state.latest[depth, w], end + g.rest[w, r, v] + rounds * least_period)
        ring = state.ring[depth, w]
        if g.row[w] == r:
            if d > 0:
                ring = max(ring, g.hop[w, left, v])
            if d == D - 1 and D > 1:
                ring = max(ring, g.hop[w, v, first])
        if latest + ring + g.after[w] > limits.values[0]:
            return False
        state.latest[depth + 1, w] = latest
        state.ring[depth + 1, w] = ring
    return True


@njit(cache=True, nogil=True)
def _blocking_period(g, state, r, d, above, v):  # type: ignore[no-untyped-def]
    """Least period of a column down to a row: each stage works and waits for both neighbours."""
    P, single = g.scalars[0], g.scalars[2] == 1
    into = np.int64(0)
    period = g.inner[r, v]
    if r > 0:
        into = g.wait[above, v]
        before = g.last_wait[r - 1, above] + into
        if single:
            before += state.wait_in[r - 1, d]
        period = max(period, state.period[r - 1, d], before)
    state.wait_in[r, d] = into
    out = g.least_out[v] if r < P - 1 else np.int64(0)
    if single:
        return max(period, g.first_wait[r, v] + into + out)
    return max(period, g.first_wait[r, v] + into, g.last_wait[r, v] + out)


@njit(cache=True, nogil=True)
def _async_period(g, state, r, d, above, v):  # type: ignore[no-untyped-def]
    """Largest mean, rounded up, over consecutive stages down to a row."""
    a = g.scalars[2]
    period = np.int64(0)
    if r > 0:
        period = state.period[r - 1, d]
    for s in range(r * a, (r + 1) * a):
        passed = g.work[s, v]
        if s > 0:
            passed += state.passed[s - 1, d] + (g.wait[above, v] if s == r * a else 2 * g.scalars[5])
        state.passed[s, d] = passed
        for j in range(s + 1):
            start = np.int64(0)  # of all before stage j, its transfer included
            if j > 0:
                host = state.nodes[j // a, d] if j // a < r else v
                start = state.passed[j, d] - g.work[j, host]
            period = max(period, -(-(passed - start) // (s - j + 1)))
    return period

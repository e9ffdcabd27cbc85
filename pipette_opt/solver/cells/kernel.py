"""
Depth-first search over the cells of a grid, compiled.

Each host that is put in a cell takes hosts out of the other cells. What has the fewest choices left is next: a cell,
or a host if there are no more hosts than cells, so that each needs one. The search stops at a full grid or after so
many hosts tried, and goes on where it was.
"""

from typing import NamedTuple

import numpy as np

from pipette_opt.base.jit import njit
from pipette_opt.base.types import BoolArray, IntArray
from pipette_opt.solver.cells.bits import WORD, BitArray, bit, lowest, number_of, without_lowest
from pipette_opt.solver.cells.filter import hosts_left, keep_column, keep_hops, keep_needed, keep_ring

TIMES = 3
"""How often at most all that has changed is filtered after a host is put in a cell."""

_NONE = np.uint64(0)


class State(NamedTuple):
    """
    Where the search is; mostly by depth, the number of cells that are filled, up to ``P * D``.

    Parameters
    ----------
    depth
        The depth, -1 when all is done; hosts tried so far.
    cell, host
        What is being tried: a cell and -1, or a host with its latest cell; cells are counted row by row.
    left
        Hosts (or cells) still to be tried, as bits, shape ``(depths, words)``.
    ways
        How many there were, shape ``(depths,)``.
    cells
        Hosts that each cell may have, as bits, shape ``(depths, P * D, words)``.
    turned
        Whether turning the rings round would change what is filled.
    latest, ring
        Of each watched stage, the latest column's least end and the slowest hop so far, shape ``(depths, W)``.
    nodes
        Host of each cell, -1 where it has none, shape ``(P * D,)``.
    places, caps
        Memory to work in, shapes ``(N,)`` and ``(W + 1,)``.
    """

    depth: IntArray
    cell: IntArray
    host: IntArray
    left: BitArray
    ways: IntArray
    cells: BitArray
    turned: BoolArray
    latest: IntArray
    ring: IntArray
    nodes: IntArray
    places: IntArray
    caps: IntArray


@njit(cache=True, nogil=True)
def explore(g, limits, work, state, budget):  # type: ignore[no-untyped-def]
    """Go on until a full grid (1), the end of the search (0) or so many hosts tried (2)."""
    num_cells, words = state.cells.shape[1], state.cells.shape[2]
    depth = state.depth[0]
    left = budget
    if depth == num_cells:  # go on behind a full grid
        depth -= 1
        state.nodes[state.cell[depth]] = -1
    elif state.cell[depth] < 0:
        _choose(g, state, depth)
    while depth >= 0 and left > 0:
        one = -1
        for k in range(words):
            if state.left[depth, k]:
                one = k * WORD + lowest(state.left[depth, k])
                state.left[depth, k] = without_lowest(state.left[depth, k])
                break
        if one < 0:
            depth -= 1
            if depth >= 0:
                state.nodes[state.cell[depth]] = -1
            continue
        left -= 1
        if state.host[depth] >= 0:
            state.cell[depth] = one
        cell, host = state.cell[depth], state.host[depth] if state.host[depth] >= 0 else one
        placed = _put(g, state, depth, cell, host) and _settle(g, limits, work, state, depth + 1, cell, host)
        _forget_equals(g, state, depth, cell, host)
        if placed:
            state.nodes[cell] = host
            depth += 1
            if depth == num_cells:
                break
            _choose(g, state, depth)
    state.depth[0] = depth
    state.depth[1] += budget - left
    return 1 if depth == num_cells else 0 if depth < 0 else 2


@njit(cache=True, nogil=True)
def share_done(state):  # type: ignore[no-untyped-def]
    """Which share of the search is behind, if all that can be tried at a depth takes equally long."""
    share, each = 0.0, 1.0
    for depth in range(state.depth[0] + 1):
        if state.ways[depth] == 0:
            break
        left = 0
        for k in range(state.left.shape[1]):
            left += number_of(state.left[depth, k])
        tried = state.ways[depth] - left
        each /= state.ways[depth]
        share += each * (tried if depth == state.depth[0] else tried - 1)
    return share


@njit(cache=True, nogil=True)
def _choose(g, state, depth):  # type: ignore[no-untyped-def]
    """What has the fewest choices is next; of hosts with equally few, the slowest."""
    cells = state.cells[depth]
    num_cells, words = cells.shape
    state.places[:] = 0
    fewest = np.int64(1 << 30)
    each_needed = hosts_left(cells) == num_cells
    for cell in range(num_cells):
        if state.nodes[cell] >= 0:
            continue
        number = np.int64(0)
        for k in range(words):
            number += number_of(cells[cell, k])
        if number < fewest:
            fewest, state.cell[depth] = number, cell
        if each_needed and _is_first(g, state, depth, cell):
            for k in range(words):
                bits = cells[cell, k]
                while bits:
                    state.places[k * WORD + lowest(bits)] += 1
                    bits = without_lowest(bits)
    state.host[depth] = -1
    for host in g.slowest:
        if 0 < state.places[host] < fewest:
            fewest, state.host[depth] = state.places[host], host
    host = state.host[depth]
    for k in range(words):
        state.left[depth, k] = cells[state.cell[depth], k] if host < 0 else _NONE
    if host >= 0:
        for cell in range(num_cells):
            there = cells[cell, host // WORD] & bit(host)
            if there and state.nodes[cell] < 0 and _is_first(g, state, depth, cell):
                state.left[depth, cell // WORD] |= bit(cell)
    state.ways[depth] = 0
    for k in range(state.left.shape[1]):
        state.ways[depth] += number_of(state.left[depth, k])


@njit(cache=True, nogil=True)
def _is_first(g, state, depth, cell):  # type: ignore[no-untyped-def]
    """Whether a cell is the first of those that turns of the rings, or turning them round, make of each other."""
    D = g.scalars[1]
    if depth == 0:
        return cell % D == 0
    if not g.scalars[6] or state.turned[depth]:
        return True
    beyond = (cell - state.cell[0]) % D
    return beyond <= D - beyond


@njit(cache=True, nogil=True)
def _forget_equals(g, state, depth, cell, host):  # type: ignore[no-untyped-def]
    """After a host has been tried in a cell, it is not in another that turning the rings makes of it."""
    D = g.scalars[1]
    r, d = cell // D, cell % D
    if depth == 0:
        for column in range(D):
            state.cells[0, r * D + column, host // WORD] &= ~bit(host)
    elif g.scalars[6] and not state.turned[depth]:
        other = (2 * state.cell[0] - d) % D
        if other != d:
            state.cells[depth, r * D + other, host // WORD] &= ~bit(host)


@njit(cache=True, nogil=True)
def _put(g, state, depth, cell, host):  # type: ignore[no-untyped-def]
    """The next depth, with a host in a cell and in no other; False if that leaves some cell without any."""
    here, cells = state.cells[depth], state.cells[depth + 1]
    for other in range(len(cells)):
        some = False
        for k in range(cells.shape[1]):
            bits = here[other, k]
            if k == host // WORD:
                bits &= ~bit(host)
            cells[other, k] = bits
            some = some or bits != _NONE
        if not some and other != cell:
            return False
    cells[cell] = _NONE
    cells[cell, host // WORD] = bit(host)
    D = g.scalars[1]
    state.turned[depth + 1] = state.turned[depth] or (2 * (state.cell[0] - cell)) % D != 0
    r, d = cell // D, cell % D
    before, behind = state.nodes[r * D + (d - 1) % D], state.nodes[r * D + (d + 1) % D]
    for w in range(len(g.row)):
        ring = state.ring[depth, w]
        if D > 1 and g.row[w] == r and before >= 0:
            ring = max(ring, g.hop[w, before, host])
        if D > 1 and g.row[w] == r and behind >= 0:
            ring = max(ring, g.hop[w, host, behind])
        state.ring[depth + 1, w] = ring
        state.latest[depth + 1, w] = state.latest[depth, w]
    return True


@njit(cache=True, nogil=True)
def _settle(g, limits, work, state, depth, cell, host):  # type: ignore[no-untyped-def]
    """Filter what has changed since a host was put in a cell; False if nothing is left."""
    P, D = g.scalars[0], g.scalars[1]
    cells, latest, ring = state.cells[depth], state.latest[depth], state.ring[depth]
    work.columns[:] = False
    work.rows[:] = False
    work.columns[cell % D] = True
    work.rows[cell // D] = True
    less = _caps(g, limits, state, depth)
    if less < 0:
        return False
    for time in range(TIMES):
        for d in range(D):
            if work.columns[d]:
                work.columns[d] = False
                if not keep_column(g, limits, work, cells, d, state.caps, less):
                    return False
                if not _is_in_time(g, limits, work.least, latest, ring):
                    return False
        if D > 1 and time == 0 and not keep_hops(g, limits, work, cells, latest, cell // D, cell % D, host):
            return False
        for r in range(P):
            if work.rows[r]:
                work.rows[r] = False
                if D > 1 and not keep_ring(g, limits, work, cells, r, cell % D):
                    return False
        if not keep_needed(g, work, cells):
            return False
        if not work.columns.any():
            break
    return True


@njit(cache=True, nogil=True)
def _caps(g, limits, state, depth):  # type: ignore[no-untyped-def]
    """The latest ends of a column, into ``state.caps``, and how much shorter its period must be than the limits say."""
    rounds, W = g.scalars[3], len(g.row)
    ceiling, high = limits.values[0], limits.values[1]
    longest = high
    for w in range(W):
        left = ceiling - g.after[w] - state.ring[depth, w]
        if w == 0:
            left = min(left, limits.values[3])
        if state.latest[depth, w] > left:
            return np.int64(-1)
        state.caps[w] = left
        if rounds > 0:
            longest = min(longest, (left - limits.path[w]) // rounds)
    state.caps[W] = longest * g.work.shape[0]
    return high - longest if longest >= limits.values[2] else np.int64(-1)


@njit(cache=True, nogil=True)
def _is_in_time(g, limits, least, latest, ring):  # type: ignore[no-untyped-def]
    """Take a column's least sums and period into the latest ends; False if that is too late."""
    period = least[len(g.row) + 1]
    if period > limits.values[1]:
        return False
    for w in range(len(g.row)):
        latest[w] = max(latest[w], least[w] + g.scalars[3] * period)
        if latest[w] + ring[w] + g.after[w] > limits.values[0]:
            return False
    return True

"""What an interval of ends of the latest column leaves of a grid before anything is tried."""

import copy
from typing import NamedTuple

import numpy as np

from pipette_opt.base.types import BoolArray, IntArray
from pipette_opt.solver.matching import matching_size
from pipette_opt.solver.tree_search.bits import WORD, BitArray
from pipette_opt.solver.tree_search.costs import NEVER, as_ints
from pipette_opt.solver.tree_search.data import Grid
from pipette_opt.solver.tree_search.filter import MUCH, Limits, Work, keep_column
from pipette_opt.solver.tree_search.kernel import State

LONGEST = int(NEVER) // 4
"""A period that no column has; with missing links it would be longer."""

MOST_TIMES = 5
"""How often limits and hosts may narrow each other."""


class Part(NamedTuple):
    """A part of a search, ready for :func:`~pipette_opt.solver.tree_search.kernel.explore`."""

    limits: Limits
    work: Work
    state: State


def part_of(g: Grid, room: BoolArray, ceiling: int, low: int, high: int) -> Part | None:
    """
    The placements whose latest column ends in ``[low, high]``; ``None`` if none of them costs at most the ceiling.

    As many hosts as there are cells are used: the column that holds the last of them, in the order of how late columns
    with them end at least, ends no earlier. That, too, is how late some column ends, and how fast rings must be.

    Parameters
    ----------
    room
        Hosts that each row may have, shape ``(P, N)``.
    low, high
        Of the end of the first stage, all periods included and its ring not.
    """
    P, D, a, rounds = (int(scalar) for scalar in g.scalars[:4])
    cells, left = P * D, ceiling - g.after - g.least_hop
    ends = np.concatenate(([min(high, left[0])], left[1:]))
    path, least = least_path(g, room), 0
    latest = path
    work = _work(g)
    column = np.zeros((cells, -(-room.shape[1] // WORD)), dtype=np.uint64)
    for _ in range(MOST_TIMES):
        longest = min(int((ends - path).min()) // rounds if rounds else LONGEST, LONGEST)
        head, tail, total = _taken(g, longest)
        room = room & (g.inner <= longest)
        latest = np.maximum(latest, np.maximum(path + rounds * least, low - _most_before(g, room, head, tail)))
        if longest < least or (latest > ends).any():
            return None
        along, into = _beside(g, room, ceiling - g.after - latest)
        limits = Limits(as_ints([ceiling, longest, least, ends[0]]), head, tail, total, path, along, into)
        column[::D] = as_bits(room & along.any(axis=2) & into.any(axis=2) if D > 1 else room)
        if not keep_column(g, limits, work, column, 0, np.append(ends, a * P * longest), 0):
            return None
        kept, late = _through(g, work)
        if (kept.sum(axis=1) < D).any() or kept.any(axis=0).sum() < cells:
            return None
        before = room.sum(), path.sum(), least, latest.sum()
        room, path, least = kept, np.maximum(path, work.least[:-2]), max(least, int(work.least[-1]))
        latest = np.maximum(latest, np.sort(late, axis=1)[:, cells - 1])
        if before == (room.sum(), path.sum(), least, latest.sum()):
            break
    if (latest > ends).any() or matching_size(np.repeat(room, D, axis=0)) < cells:
        return None
    return Part(limits, work, _state(g, room, latest))


def give_away(part: Part) -> Part | None:
    """
    A part with every second thing still to be tried where the search has the most before it, which it leaves out.

    ``None`` if there is nothing but what is being tried.
    """
    state = part.state
    last = int(state.depth[0])
    depth = next((depth for depth in range(last + 1) if state.left[depth].any()), None)
    if depth is None:
        return None
    bits = np.unpackbits(state.left[depth].view(np.uint8), bitorder="little")
    given = np.zeros_like(bits)
    given[np.flatnonzero(bits)[::2]] = 1
    other = copy.deepcopy(state)
    other.left[depth] = np.packbits(given, bitorder="little").view(np.uint64)
    state.left[depth] &= ~other.left[depth]
    other.depth[:] = depth, 0
    other.nodes[state.cell[depth:last]] = -1
    return Part(part.limits._replace(values=part.limits.values.copy()), copy.deepcopy(part.work), other)


def least_path(g: Grid, room: BoolArray) -> IntArray:
    """Least end of each watched stage in any column, without the periods, shape ``(W,)``."""
    least = np.where(room[-1], g.node[:-1, -1], MUCH)
    for row in range(len(room) - 2, -1, -1):
        below = (g.transfer[g.arc[row, :-1]] + least[:, None, :]).min(axis=2)
        least = np.where(room[row], g.node[:-1, row] + np.minimum(below, NEVER), MUCH)
    ends: IntArray = least.min(axis=1)
    return ends


def _most_before(g: Grid, room: BoolArray, head: IntArray, tail: IntArray) -> IntArray:
    """By how much each watched stage ends before the first one in any column at most, shape ``(W,)``."""
    node = g.node[:1] - g.node[:-1]  # (W, P, N)
    most = np.where(room[-1], node[:, -1], -MUCH)
    for row in range(len(room) - 2, -1, -1):
        there, back = g.wait + tail[row][:, None], g.wait + head[row + 1][None, :]
        fits = (np.maximum(there, back) if g.scalars[4] else there + head[row + 1][None, :]) <= 0
        arc = g.transfer[g.arc[row, 0]] - g.transfer[g.arc[row, :-1]]  # (W, N, N)
        below = np.where(fits, arc + most[:, None, :], -MUCH).max(axis=2)
        most = np.where(room[row], node[:, row] + np.maximum(below, -MUCH), -MUCH)
    least: IntArray = most.max(axis=1)
    return least


def as_bits(hosts: BoolArray) -> BitArray:
    """Hosts as bits of words, which take the place of the last axis."""
    words = -(-hosts.shape[-1] // WORD)
    padded = np.zeros((*hosts.shape[:-1], words * WORD), dtype=np.bool_)
    padded[..., : hosts.shape[-1]] = hosts
    return np.packbits(padded, axis=-1, bitorder="little").view("<u8").astype(np.uint64)


def _through(g: Grid, work: Work) -> tuple[BoolArray, IntArray]:
    """
    What the filter of a column has left.

    Returns
    -------
    Hosts of each row, shape ``(P, N)``, and the least end of each watched stage in a column with each host, wherever
    it is, shape ``(W, N)``.
    """
    (P, N), W = work.hosts.shape, len(g.row)
    kept, late = np.zeros((P, N), dtype=np.bool_), np.full((W, N), MUCH)
    for row in range(P):
        hosts = work.hosts[row, : work.size[row]]
        period = np.maximum(work.period[row, : len(hosts)], work.least[-1])
        paths = (work.above[row] + work.below[row])[: len(hosts), :W].T
        kept[row, hosts] = True
        late[:, hosts] = np.minimum(late[:, hosts], paths + int(g.scalars[3]) * period)
    return kept, late


def _beside(g: Grid, room: BoolArray, left: IntArray) -> tuple[BitArray, BitArray]:
    """
    Hosts that may follow and precede each in a row's ring, shape ``(P, N, words)``.

    Parameters
    ----------
    left
        Longest reduction of each watched stage.
    """
    may = room[:, :, None] & room[:, None, :]
    if g.scalars[1] > 1:
        for watched, row in enumerate(g.row.tolist()):
            may[row] &= g.hop[watched] <= left[watched]
    if g.scalars[1] == 2:
        may &= may.transpose(0, 2, 1)
    return as_bits(may), as_bits(may.transpose(0, 2, 1))


def _taken(g: Grid, high: int) -> tuple[IntArray, IntArray, IntArray]:
    """Beyond the longest period, first stages, last ones, all: see ``Limits`` of the filter."""
    P, _, a, _, blocking, inside, _ = (int(scalar) for scalar in g.scalars)
    work = g.work.reshape(P, a, -1)
    if blocking:
        waits = inside if a > 1 else 0
        total = work[:, 0] - high if a == 1 else np.full((P, work.shape[2]), -MUCH)
        return as_ints(work[:, 0] + waits - high), as_ints(work[:, -1] + waits - high), as_ints(total)
    beyond = work - high
    beyond[:, 1:] += 2 * inside
    down = np.cumsum(beyond, axis=1)
    beyond = work - high
    beyond[:, :-1] += 2 * inside
    up = np.cumsum(beyond[:, ::-1], axis=1)
    return as_ints(down.max(axis=1)), as_ints(up.max(axis=1)), as_ints(down[:, -1])


def _work(g: Grid) -> Work:
    P, D, N, sums = int(g.scalars[0]), int(g.scalars[1]), len(g.wait), len(g.node)

    def ints(*shape: int) -> IntArray:
        return np.zeros(shape, dtype=np.int64)

    return Work(
        size=ints(P),
        hosts=ints(P, N),
        above=ints(P, N, sums),
        below=ints(P, N, sums),
        into=ints(P, N),
        excess=ints(P, N),
        later=ints(P, N),
        period=ints(P, N),
        least=ints(sums + 1),
        columns=np.zeros(D, dtype=np.bool_),
        rows=np.zeros(P, dtype=np.bool_),
    )


def _state(g: Grid, room: BoolArray, latest: IntArray) -> State:
    """Nothing tried yet."""
    D, N, W = int(g.scalars[1]), len(g.wait), len(g.row)
    hosts = np.repeat(as_bits(room), D, axis=0)
    cells, words = hosts.shape
    state = State(
        depth=np.zeros(2, dtype=np.int64),
        cell=np.full(cells + 1, -1, dtype=np.int64),
        host=np.full(cells + 1, -1, dtype=np.int64),
        left=np.zeros((cells + 1, max(words, -(-cells // WORD))), dtype=np.uint64),
        ways=np.zeros(cells + 1, dtype=np.int64),
        cells=np.zeros((cells + 1, cells, words), dtype=np.uint64),
        turned=np.zeros(cells + 1, dtype=np.bool_),
        latest=np.zeros((cells + 1, W), dtype=np.int64),
        ring=np.zeros((cells + 1, W), dtype=np.int64),
        nodes=np.full(cells, -1, dtype=np.int64),
        places=np.zeros(N, dtype=np.int64),
        caps=np.zeros(W + 1, dtype=np.int64),
    )
    state.cells[0], state.latest[0], state.ring[0] = hosts, latest, g.least_hop
    return state

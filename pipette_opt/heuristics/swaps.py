"""
Annealing of grids whose cells are single hosts, with the exact 1F1B forms: a few links change, nothing else is read.

Kept up to date: each link of each column, each hop of each ring, and what follows from them. A move looks up the links
and hops of the cells that it touches, and sums over their columns and rows. The energy is the product of two sums of
exponentials; its logarithm is a soft maximum over the columns' times plus one over the rings'. Nothing is allocated
once a restart has begun.
"""

from typing import NamedTuple

import numpy as np

from pipette_opt.heuristics.compiled import ASYNC, BLOCKING, Tables
from pipette_opt.heuristics.kernels import below, uniform
from pipette_opt.jit import njit
from pipette_opt.types import IntArray

NUM_THRESHOLDS = 1 << 12
"""Random thresholds of a restart; drawn once, used in turn from a random place on."""

REBUILD = 4096
"""Moves between changes of the temperature, at which all sums are built anew."""

NUM_ARCHIVED = 16
"""Placements kept that are not worse in both of two terms, the pipelines' and the rings'."""


class Grid(NamedTuple):
    """
    A candidate as the kernel reads it; ``W`` watched stages (:class:`~pipette_opt.heuristics.compiled.Tables`).

    Parameters
    ----------
    sizes
        Rows, columns, hosts listed, stages, watched stages, micro-batches, 1 if sends are blocking.
    link
        Transfer there and back, shape ``(M, M, 2)``.
    cost
        Forward and backward of each stage on each host, shape ``(pp, M)``.
    inside
        Transfer to the next stage of the same host, one way.
    row_back, own_back
        What a host takes to pass a gradient back through its row, shape ``(P, M)``, and through the stages of the row
        before each watched one, shape ``(W, M)``.
    hop
        Reduction of a stage of each class if (i, j) is its slowest hop, shape ``(num_classes, M, M)``.
    which, floor, watched_row
        Class, least reduction and grid row of each watched stage, shape ``(W,)``.
    first_watched
        Where the watched stages of each row begin, shape ``(P + 1,)``.
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
    """Whether this kernel knows the candidate: one host for each cell, and a closed form."""
    return int(t.shape[2]) == 1 and int(t.scalars[0]) in (BLOCKING, ASYNC)


def grid_of(t: Tables) -> Grid:
    """The candidate of the tables, rearranged."""
    P, D = int(t.shape[0]), int(t.shape[1])
    pp, M, W = len(t.row), len(t.kind), len(t.watched)
    forward, backward = t.forward[t.kind].T, t.backward[t.kind].T  # (pp, M)
    inside = int(t.scalars[2])
    first_stage = np.searchsorted(t.row, np.arange(P))
    passing = backward + inside  # of a stage whose next is on the same host
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
def _column(d, pp, work, between, wait, guess, blocking):  # type: ignore[no-untyped-def]
    """Round trip and period of a column, from what its stages and transfers take; ``guess``: a period near it."""
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
def _finish(g, nodes, total, finish):  # type: ignore[no-untyped-def]
    """When each watched stage of each column has finished, into ``finish``, shape ``(W, D)``."""
    D, W = g.sizes[1], g.sizes[4]
    for d in range(D):
        before = np.int64(0)
        row = 0
        for index in range(W):
            while row < g.watched_row[index]:
                here, there = nodes[row * D + d], nodes[(row + 1) * D + d]
                before += g.row_back[row, here] + g.link[here, there, 1]
                row += 1
            finish[index, d] = total[d] - before - g.own_back[index, nodes[row * D + d]]


@njit(cache=True, nogil=True)
def _ends_below(g, nodes, d, total, ring, limit):  # type: ignore[no-untyped-def]
    """Whether all watched stages of one column are reduced before ``limit``."""
    D, W = g.sizes[1], g.sizes[4]
    if total + ring[0] >= limit:
        return False
    before = np.int64(0)
    row = 0
    for index in range(W):
        while row < g.watched_row[index]:
            here, there = nodes[row * D + d], nodes[(row + 1) * D + d]
            before += g.row_back[row, here] + g.link[here, there, 1]
            row += 1
        if total - before - g.own_back[index, nodes[row * D + d]] + ring[index] >= limit:
            return False
    return True


@njit(cache=True, nogil=True)
def _objective(g, nodes, total, finish, ring):  # type: ignore[no-untyped-def]
    """The integer objective; fills ``finish``."""
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
    return max(worst, ends + _embedding(g, nodes, P, D)) + g.optimizer


@njit(cache=True, nogil=True)
def _embedding(g, nodes, P, D):  # type: ignore[no-untyped-def]
    slowest = np.int64(g.embedding_floor)
    if g.embedding.shape[0] > 0:
        for d in range(D):
            slowest = max(slowest, g.embedding[nodes[d], nodes[(P - 1) * D + d]])
    return slowest


@njit(cache=True, nogil=True)
def _keep(archive, archived, nodes, column, ring):  # type: ignore[no-untyped-def]
    """Archive a placement unless another is as good in both terms; the one with the largest sum gives way."""
    place = -1
    largest = np.int64(-1)
    for k in range(archive.shape[0]):
        if archive[k, 0] < 0:
            place = k
            largest = np.int64(1) << 62
            continue
        if archive[k, 0] <= column and archive[k, 1] <= ring:
            return
        if column <= archive[k, 0] and ring <= archive[k, 1]:
            archive[k, 0] = -1
            place = k
            largest = np.int64(1) << 62
        elif archive[k, 0] + archive[k, 1] > largest:
            place = k
            largest = archive[k, 0] + archive[k, 1]
    if column + ring < largest:
        archive[place, 0] = column
        archive[place, 1] = ring
        for cell in range(archived.shape[1]):
            archived[place, cell] = nodes[cell]


@njit(cache=True, nogil=True)
def _draw_move(choice, P, D, M, nodes, first, second, state):  # type: ignore[no-untyped-def]
    """Pairs of cells to exchange, into ``first`` and ``second``; returns how many."""
    cells = P * D
    if choice < 86 or cells < 3:  # two cells, or a cell and a spare host
        i = below(state, cells)
        j = below(state, M - 1)
        first[0] = i
        second[0] = j + 1 if j >= i else j
        return 1
    if choice < 93:  # two columns, or their tails from a row on
        c, d = below(state, D), below(state, D)
        if c == d:
            return 0
        start = below(state, P) if choice < 90 else 0
        for row in range(start, P):
            first[row - start] = row * D + c
            second[row - start] = row * D + d
        return P - start
    if choice < 95:  # two rows
        r, s = below(state, P), below(state, P)
        if r == s:
            return 0
        for d in range(D):
            first[d] = r * D + d
            second[d] = s * D + d
        return D
    number = 0
    if choice < 97:  # some rows in reverse order, in all columns or in one
        low, high = below(state, P), below(state, P)
        low, high = min(low, high), max(low, high)
        begin, end = 0, D
        if choice < 96:
            begin = below(state, D)
            end = begin + 1
        while low < high:
            for d in range(begin, end):
                first[number] = low * D + d
                second[number] = high * D + d
                number += 1
            low += 1
            high -= 1
        return number
    low, high = below(state, D), below(state, D)  # some columns in reverse order, in all rows or in one
    low, high = min(low, high), max(low, high)
    begin, end = 0, P
    if choice < 99:
        begin = below(state, P)
        end = begin + 1
    while low < high:
        for r in range(begin, end):
            first[number] = r * D + low
            second[number] = r * D + high
            number += 1
        low += 1
        high -= 1
    return number


@njit(cache=True, nogil=True)
def anneal_grid(  # type: ignore[no-untyped-def]
    g, nodes, best, best_nodes, state, begin, end, moves, hot, cold, softness, archive, archived
):
    """
    A part of an annealing of ``nodes`` (all hosts, the grid first); returns the best objective so far.

    Parameters
    ----------
    best, best_nodes
        The best objective of the parts before, and its hosts.
    begin, end, moves
        The first move of this part, the one after its last, and how many the annealing has; ``begin`` is a multiple
        of ``REBUILD``.
    hot, cold
        First and last temperature, ticks; geometric between.
    softness
        Temperature of the soft maxima over that of the moves.
    archive
        Two terms, what columns and what rings cost, of each placement of ``archived``; shapes
        ``(NUM_ARCHIVED, 2)`` and ``(NUM_ARCHIVED, cells)``; free places have negative terms.
    """
    P, D, M, pp, W, m = g.sizes[0], g.sizes[1], g.sizes[2], g.sizes[3], g.sizes[4], g.sizes[5]
    blocking = g.sizes[6] == 1
    cells = P * D
    link, ring_of, which, floor = g.link, g.hop, g.which, g.floor
    cost, inside = g.cost, g.inside
    first_watched, watched_row = g.first_watched, g.watched_row
    allowed = g.allowed
    rings = D > 1

    a = pp // P
    work = np.zeros((D, pp), np.int64)
    between = np.zeros((D, pp), np.int64)
    wait = np.zeros((D, pp), np.int64)
    period = np.zeros(D, np.int64)
    for s in range(pp - 1):
        if (s + 1) % a != 0:
            between[:, s] = 2 * inside
            wait[:, s] = inside
    hop = np.zeros((W, D), np.int64)
    total = np.zeros(D, np.int64)
    ring = np.zeros(W, np.int64)
    column_weight = np.zeros(D)
    ring_weight = np.zeros(W)
    offset = np.zeros(W)
    finish = np.zeros((W, D), np.int64)
    first = np.zeros(cells + 1, np.int64)
    second = np.zeros(cells + 1, np.int64)
    column_mark = np.full(D, -1, np.int64)
    row_mark = np.full(P, -1, np.int64)
    columns = np.zeros(D, np.int64)
    rows = np.zeros(P, np.int64)
    old_work = np.zeros((D, pp), np.int64)
    old_between = np.zeros((D, pp), np.int64)
    old_wait = np.zeros((D, pp), np.int64)
    old_period = np.zeros(D, np.int64)
    old_hop = np.zeros((W, D), np.int64)
    old_total = np.zeros(D, np.int64)
    old_ring = np.zeros(W, np.int64)
    old_column_weight = np.zeros(D)
    old_ring_weight = np.zeros(W)
    threshold = np.zeros(NUM_THRESHOLDS)

    for index in range(NUM_THRESHOLDS):  # accepted if the energy grows by less than -T ln(u)
        threshold[index] = (1.0 - uniform(state)) ** (-1.0 / softness)
    stages = max(np.int64(1), moves // REBUILD)
    accepted = 0
    many = max(np.int64(100), 100 * cells // 256)  # moves of many cells are rarer where they take long
    tau, sum_columns, sum_rings, energy = 1.0, 1.0, 1.0, 1.0
    column_reference, ring_reference = 0.0, 0.0
    fresh = True
    emb = np.int64(0)
    at = np.int64(0)
    for move in range(begin, end):
        if fresh or move % REBUILD == 0:
            fresh = False
            temperature = hot * (cold / hot) ** (np.float64(move // REBUILD) / np.float64(max(stages - 1, 1)))
            tau = max(1.0, temperature * softness)
            for d in range(D):
                for s in range(pp):
                    work[d, s] = cost[s, nodes[(s // a) * D + d]]
                for r in range(P - 1):
                    u, v = nodes[r * D + d], nodes[(r + 1) * D + d]
                    there, back = link[u, v, 0], link[u, v, 1]
                    between[d, (r + 1) * a - 1] = there + back
                    wait[d, (r + 1) * a - 1] = max(there, back)
                trip, period[d] = _column(d, pp, work, between, wait, period[d], blocking)
                total[d] = trip + (m - 1) * period[d]
            for index in range(W):
                r = watched_row[index]
                ring[index] = floor[index]
                if rings:
                    for d in range(D):
                        v = nodes[r * D + d + 1] if d + 1 < D else nodes[r * D]
                        hop[index, d] = ring_of[which[index], nodes[r * D + d], v]
                        ring[index] = max(ring[index], hop[index, d])
            value = _objective(g, nodes, total, finish, ring)
            if value < best:
                best = value
                best_nodes[:] = nodes
            emb = _embedding(g, nodes, P, D)
            column_reference = 0.0
            for d in range(D):
                column_reference = max(column_reference, np.float64(total[d]))
            ring_reference = -1e300
            for index in range(W):
                late = 0.0
                for d in range(D):
                    late += np.float64(total[d] - finish[index, d])
                offset[index] = late / D
                if index == 0 or index == W - 1:
                    offset[index] -= np.float64(emb)
                ring_reference = max(ring_reference, np.float64(ring[index]) - offset[index])
            sum_columns = 0.0
            for d in range(D):
                column_weight[d] = np.exp((np.float64(total[d]) - column_reference) / tau)
                sum_columns += column_weight[d]
            sum_rings = 0.0
            for index in range(W):
                ring_weight[index] = np.exp((np.float64(ring[index]) - offset[index] - ring_reference) / tau)
                sum_rings += ring_weight[index]
            energy = sum_columns * sum_rings
            at = below(state, NUM_THRESHOLDS)
        if M < 2:
            return best
        choice = below(state, many)
        number = _draw_move(choice if choice < 100 else 0, P, D, M, nodes, first, second, state)
        if number == 0:
            continue
        if number == 1:
            aim = below(state, 100)  # some moves start where time is lost: in the slowest column or at the slowest hop
            if aim < 10:
                d = 0
                for q in range(1, D):
                    if total[q] > total[d]:
                        d = q
                first[0] = below(state, P) * D + d
            elif aim < 20 and rings:
                index = 0
                for q in range(1, W):
                    if ring_weight[q] > ring_weight[index]:
                        index = q
                d = 0
                for q in range(1, D):
                    if hop[index, q] > hop[index, d]:
                        d = q
                d += below(state, 2)
                first[0] = watched_row[index] * D + (d if d < D else 0)
            if first[0] == second[0]:
                continue
        possible = True
        for pair in range(number):
            i, j = first[pair], second[pair]
            if not allowed[i // D, nodes[j]] or (j < cells and not allowed[j // D, nodes[i]]):
                possible = False
        if not possible:
            continue
        num_columns = 0
        num_rows = 0
        for pair in range(number):
            i, j = first[pair], second[pair]
            nodes[i], nodes[j] = nodes[j], nodes[i]
        for pair in range(number):
            for side in range(2):
                cell = first[pair] if side == 0 else second[pair]
                if cell >= cells:
                    continue
                r = cell // D
                d = cell - r * D
                node = nodes[cell]
                if column_mark[d] != move:
                    column_mark[d] = move
                    columns[num_columns] = d
                    num_columns += 1
                    old_total[d] = total[d]
                    old_column_weight[d] = column_weight[d]
                    old_period[d] = period[d]
                    for q in range(pp):
                        old_work[d, q] = work[d, q]
                        old_between[d, q] = between[d, q]
                        old_wait[d, q] = wait[d, q]
                for q in range(r * a, r * a + a):
                    work[d, q] = cost[q, node]
                if r > 0:
                    u = nodes[cell - D]
                    there, back = link[u, node, 0], link[u, node, 1]
                    between[d, r * a - 1] = there + back
                    wait[d, r * a - 1] = max(there, back)
                if r + 1 < P:
                    v = nodes[cell + D]
                    there, back = link[node, v, 0], link[node, v, 1]
                    between[d, r * a + a - 1] = there + back
                    wait[d, r * a + a - 1] = max(there, back)
                if rings:
                    left = cell - 1 if d > 0 else cell + D - 1
                    right = cell + 1 if d + 1 < D else cell + 1 - D
                    if row_mark[r] != move:
                        row_mark[r] = move
                        rows[num_rows] = r
                        num_rows += 1
                        for index in range(first_watched[r], first_watched[r + 1]):
                            old_ring[index] = ring[index]
                            old_ring_weight[index] = ring_weight[index]
                            for q in range(D):
                                old_hop[index, q] = hop[index, q]
                    for index in range(first_watched[r], first_watched[r + 1]):
                        hop[index, left - r * D] = ring_of[which[index], nodes[left], node]
                        hop[index, d] = ring_of[which[index], node, nodes[right]]
        for k in range(num_columns):
            d = columns[k]
            trip, period[d] = _column(d, pp, work, between, wait, period[d], blocking)
            new = trip + (m - 1) * period[d]
            if new != total[d]:
                total[d] = new
                column_weight[d] = np.exp((np.float64(new) - column_reference) / tau)
        for k in range(num_rows):
            r = rows[k]
            for index in range(first_watched[r], first_watched[r + 1]):
                slowest = floor[index]
                for d in range(D):
                    slowest = max(slowest, hop[index, d])
                if slowest != ring[index]:
                    ring[index] = slowest
                    ring_weight[index] = np.exp((np.float64(slowest) - offset[index] - ring_reference) / tau)
        sum_columns = 0.0
        for d in range(D):
            sum_columns += column_weight[d]
        sum_rings = 0.0
        for index in range(W):
            sum_rings += ring_weight[index]
        trial = sum_columns * sum_rings
        at = (at + 1) & (NUM_THRESHOLDS - 1)
        if not trial <= energy * threshold[at]:
            for pair in range(number):
                i, j = first[number - 1 - pair], second[number - 1 - pair]
                nodes[i], nodes[j] = nodes[j], nodes[i]
            for k in range(num_columns):
                d = columns[k]
                total[d] = old_total[d]
                column_weight[d] = old_column_weight[d]
                period[d] = old_period[d]
                for q in range(pp):
                    work[d, q] = old_work[d, q]
                    between[d, q] = old_between[d, q]
                    wait[d, q] = old_wait[d, q]
            for k in range(num_rows):
                r = rows[k]
                for index in range(first_watched[r], first_watched[r + 1]):
                    ring[index] = old_ring[index]
                    ring_weight[index] = old_ring_weight[index]
                    for q in range(D):
                        hop[index, q] = old_hop[index, q]
            continue
        energy = trial
        if energy < 1e-200:
            fresh = True
        slowest_column = 0
        for d in range(D):
            if total[d] > total[slowest_column]:
                slowest_column = d
        better = False
        if _ends_below(g, nodes, slowest_column, total[slowest_column], ring, best - g.optimizer):
            value = _objective(g, nodes, total, finish, ring)
            better = value < best
            if better:
                best = value
                best_nodes[:] = nodes
        accepted += 1
        if better or (accepted & 15 == 0 and 2 * move > moves):
            slowest_ring = np.int64(0)
            for index in range(W):
                slowest_ring = max(slowest_ring, ring[index])
            _keep(archive, archived, nodes, total[slowest_column], slowest_ring)
    return best

"""
Annealing of plain grids (cells are single hosts) by the analytical 1F1B model, with incremental updates.

The state has each link of each column, each hop of each ring, and the times that follow from them. A move looks up the
links and hops of the cells it changes, and sums over their columns and rows. The energy is the product of two sums of
exponentials; its logarithm is a soft maximum over the columns' times plus another over the rings'. No memory is
allocated once a restart has begun.
"""

import numpy as np

from pipette_opt.annealing.compiled import overwrite
from pipette_opt.annealing.grid_moves import cell_of_slowest_column, cell_of_slowest_hop, draw_move
from pipette_opt.annealing.kernels import below, uniform
from pipette_opt.annealing.plain_grid import (
    column_times,
    embedding,
    ends_below,
    objective,
    read_placement,
    slowest_hop,
)
from pipette_opt.base.jit import njit

NUM_THRESHOLDS = 1 << 12
"""Number of random acceptance thresholds of a restart; drawn once, then used in turn from a random position. Chosen."""

REBUILD = 4096
"""Number of moves between two changes of the temperature; each change recomputes all sums. Chosen."""

NUM_ARCHIVED = 16
"""Number of archived placements; none is worse than another in both column time and ring time. Chosen."""


@njit(cache=True, nogil=True)
def _keep(archive, archived, nodes, column, ring):  # type: ignore[no-untyped-def]
    """Archive a placement unless another is as good in both times; a full archive drops the largest sum."""
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
def _weigh(total, finish, ring, tied, tau, column_weight, ring_weight, offset):  # type: ignore[no-untyped-def]
    """
    Write the weight of each column and ring in the soft maxima of temperature ``tau``. Return the times of weight 1.

    A ring's time is reduced by ``offset`` ticks: the mean time from the end of its stage to the end of the columns. At
    the first and last stage, ``tied``, the reduction of tied embeddings, is added back.
    """
    D, W = len(total), len(ring)
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
            offset[index] -= np.float64(tied)
        ring_reference = max(ring_reference, np.float64(ring[index]) - offset[index])
    for d in range(D):
        column_weight[d] = np.exp((np.float64(total[d]) - column_reference) / tau)
    for index in range(W):
        ring_weight[index] = np.exp((np.float64(ring[index]) - offset[index] - ring_reference) / tau)
    return column_reference, ring_reference


@njit(cache=True, nogil=True)
def anneal_grid(  # type: ignore[no-untyped-def]
    g, nodes, best, best_nodes, state, begin, end, moves, hot, cold, softness, archive, archived
):
    """
    Run moves ``begin`` to ``end`` of an annealing of ``nodes`` (all hosts, the grid first). Return the best objective.

    Parameters
    ----------
    g
        Arrays of the plain grid.
    best, best_nodes
        Best objective before these moves, integer ticks, and its hosts.
    state
        State of the random numbers.
    begin, end, moves
        First move of this part, the move after its last, and the moves of the whole annealing; ``begin`` is a multiple
        of ``REBUILD``.
    hot, cold
        First and last temperature, ticks; geometric between.
    softness
        Temperature of the soft maxima over that of the moves.
    archive, archived
        Column and ring time of each archived placement, ``(NUM_ARCHIVED, 2)``, and its hosts, ``(NUM_ARCHIVED,
        cells)``. Free places have negative times.
    """
    P, D, M, pp, W, m = g.sizes[0], g.sizes[1], g.sizes[2], g.sizes[3], g.sizes[4], g.sizes[5]
    blocking = g.sizes[6] == 1
    cells = P * D
    link, ring_of, which, floor = g.link, g.hop, g.which, g.floor
    cost = g.cost
    first_watched, watched_row = g.first_watched, g.watched_row
    allowed = g.allowed
    rings = D > 1

    a = pp // P
    work = np.zeros((D, pp), np.int64)
    between = np.zeros((D, pp), np.int64)
    wait = np.zeros((D, pp), np.int64)
    period = np.zeros(D, np.int64)
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
    many = max(np.int64(100), 100 * cells // 256)  # moves of many cells are rarer on large grids, where they take long
    tau, sum_columns, sum_rings, energy = 1.0, 1.0, 1.0, 1.0
    column_reference, ring_reference = 0.0, 0.0
    fresh = True
    at = np.int64(0)
    for move in range(begin, end):
        if fresh or move % REBUILD == 0:
            fresh = False
            temperature = hot * (cold / hot) ** (np.float64(move // REBUILD) / np.float64(max(stages - 1, 1)))
            tau = max(1.0, temperature * softness)
            read_placement(g, nodes, work, between, wait, hop)
            for d in range(D):
                trip, period[d] = column_times(d, pp, work, between, wait, period[d], blocking)
                total[d] = trip + (m - 1) * period[d]
            for index in range(W):
                ring[index] = slowest_hop(floor[index], hop, index)
            value = objective(g, nodes, total, finish, ring)
            if value < best:
                best = value
                overwrite(best_nodes, nodes)
            column_reference, ring_reference = _weigh(
                total, finish, ring, embedding(g, nodes, P, D), tau, column_weight, ring_weight, offset
            )
            sum_columns = 0.0
            for d in range(D):
                sum_columns += column_weight[d]
            sum_rings = 0.0
            for index in range(W):
                sum_rings += ring_weight[index]
            energy = sum_columns * sum_rings
            at = below(state, NUM_THRESHOLDS)
        if M < 2:
            return best
        choice = below(state, many)
        number = draw_move(choice if choice < 100 else 0, P, D, M, nodes, first, second, state)
        if number == 0:
            continue
        if number == 1:
            aim = below(state, 100)  # a fifth of the moves starts in the slowest column or at the slowest hop
            if aim < 10:
                first[0] = cell_of_slowest_column(total, P, state)
            elif aim < 20 and rings:
                first[0] = cell_of_slowest_hop(ring_weight, hop, watched_row, state)
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
                    send, send_back = link[u, node, 0], link[u, node, 1]
                    between[d, r * a - 1] = send + send_back
                    wait[d, r * a - 1] = max(send, send_back)
                if r + 1 < P:
                    v = nodes[cell + D]
                    send, send_back = link[node, v, 0], link[node, v, 1]
                    between[d, r * a + a - 1] = send + send_back
                    wait[d, r * a + a - 1] = max(send, send_back)
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
            trip, period[d] = column_times(d, pp, work, between, wait, period[d], blocking)
            new = trip + (m - 1) * period[d]
            if new != total[d]:
                total[d] = new
                column_weight[d] = np.exp((np.float64(new) - column_reference) / tau)
        for k in range(num_rows):
            r = rows[k]
            for index in range(first_watched[r], first_watched[r + 1]):
                slowest = slowest_hop(floor[index], hop, index)
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
        if ends_below(g, nodes, slowest_column, total[slowest_column], ring, best - g.optimizer):
            value = objective(g, nodes, total, finish, ring)
            better = value < best
            if better:
                best = value
                overwrite(best_nodes, nodes)
        accepted += 1
        if better or (accepted & 15 == 0 and 2 * move > moves):
            slowest_ring = np.int64(0)
            for index in range(W):
                slowest_ring = max(slowest_ring, ring[index])
            _keep(archive, archived, nodes, total[slowest_column], slowest_ring)
    return best

"""Compiled annealing of any candidate configuration: random placements and moves."""

import numpy as np

from pipette_opt.annealing.compiled import (
    NUM_TIMES,
    evaluate_paths,
    finish_of_column,
    finish_with_rings,
    new_lengths,
    overwrite,
    ring_of_row,
    slowest_end,
)
from pipette_opt.base.jit import njit


@njit(cache=True, nogil=True)
def fits(t, nodes):  # type: ignore[no-untyped-def]
    """Return whether every host in the grid has the memory that its row needs."""
    width = t.shape[1] * t.shape[2]
    good = True
    for cell in range(t.shape[0] * width):
        good &= t.allowed[cell // width, nodes[cell]]
    return good


@njit(cache=True, nogil=True)
def draw(state):  # type: ignore[no-untyped-def]
    """Return the next 64 random bits (xorshift64*, Vigna 2016); ``state`` is never zero."""
    x = state[0]
    x ^= x >> np.uint64(12)
    x ^= x << np.uint64(25)
    x ^= x >> np.uint64(27)
    state[0] = x
    return x * np.uint64(2685821657736338717)


@njit(cache=True, nogil=True)
def below(state, bound):  # type: ignore[no-untyped-def]
    """Return a random integer in [0, bound)."""
    return np.int64((draw(state) >> np.uint64(33)) * np.uint64(bound) >> np.uint64(31))


@njit(cache=True, nogil=True)
def uniform(state):  # type: ignore[no-untyped-def]
    """Return a random number in [0, 1)."""
    return np.float64(draw(state) >> np.uint64(11)) * (1.0 / 9007199254740992.0)


@njit(cache=True, nogil=True)
def random_start(t, nodes, state):  # type: ignore[no-untyped-def]
    """
    Fill ``nodes`` with a random order of all hosts in which every row has the memory it needs.

    Return ``False`` if none exists. Rows that need the most memory choose first. Their hosts fit every other row, so
    the choice never reaches a dead end.
    """
    P, width = t.shape[0], t.shape[1] * t.shape[2]
    M = nodes.shape[0]
    order = np.empty(M, np.int64)
    for i in range(M):
        order[i] = i
    for i in range(M - 1, 0, -1):
        j = below(state, i + 1)
        order[i], order[j] = order[j], order[i]
    room = np.zeros(P, np.int64)
    for row in range(P):
        for host in range(M):
            room[row] += t.allowed[row, host]
    used = np.zeros(M, np.bool_)
    for _ in range(P):
        row = 0  # the first row with the fewest possible hosts; a loop, because numba takes seconds to compile a sort
        for other in range(1, P):
            if room[other] < room[row]:
                row = other
        room[row] = M + 1
        placed = 0
        for host in order:
            if placed < width and not used[host] and t.allowed[row, host]:
                nodes[row * width + placed] = host
                used[host] = True
                placed += 1
        if placed < width:
            return False
    spare = P * width
    for host in order:
        if not used[host]:
            nodes[spare] = host
            spare += 1
    return True


@njit(cache=True, nogil=True)
def _swap_blocks(nodes, first, second, length):  # type: ignore[no-untyped-def]
    for i in range(length):
        nodes[first + i], nodes[second + i] = nodes[second + i], nodes[first + i]


@njit(cache=True, nogil=True)
def _grid_move(t, nodes, choice, state):  # type: ignore[no-untyped-def]
    """Apply a random tuned move that changes many cells."""
    P, D, K = t.shape[0], t.shape[1], t.shape[2]
    width = D * K
    if choice < 10:  # two columns, or their tails from a row on
        c, d = below(state, D), below(state, D)
        start = below(state, P) if choice < 7 else 0
        for row in range(start, P):
            _swap_blocks(nodes, row * width + c * K, row * width + d * K, K)
    elif choice < 17:  # two rows
        _swap_blocks(nodes, below(state, P) * width, below(state, P) * width, width)
    elif choice < 21:  # two tensor groups
        _swap_blocks(nodes, below(state, P * D) * K, below(state, P * D) * K, K)
    elif choice < 24:  # rows in reverse order
        low, high = below(state, P), below(state, P)
        low, high = min(low, high), max(low, high)
        while low < high:
            _swap_blocks(nodes, low * width, high * width, width)
            low += 1
            high -= 1
    elif choice < 27:  # columns in reverse order
        low, high = below(state, D), below(state, D)
        low, high = min(low, high), max(low, high)
        while low < high:
            for row in range(P):
                _swap_blocks(nodes, row * width + low * K, row * width + high * K, K)
            low += 1
            high -= 1
    else:  # one column, its rows in reverse order between two
        column = below(state, D)
        low, high = below(state, P), below(state, P)
        low, high = min(low, high), max(low, high)
        while low < high:
            _swap_blocks(nodes, low * width + column * K, high * width + column * K, K)
            low += 1
            high -= 1


@njit(cache=True, nogil=True)
def smoothing(t, finish, ring, spread):  # type: ignore[no-untyped-def]
    """
    Return the excess of the soft maxima over columns and over rings above the hard maxima, integer ticks.

    It distinguishes placements with equal objectives. ``spread`` is the scale of the exponentials in ticks; the excess
    vanishes with it.
    """
    if spread < 1.0:
        return 0.0
    latest = np.int64(0)
    for column in range(t.shape[1]):
        latest = max(latest, finish[0, column])
    columns = 0.0
    for column in range(t.shape[1]):
        columns += np.exp((finish[0, column] - latest) / spread)
    worst = np.int64(0)
    for index in range(ring.shape[0]):
        worst = max(worst, ring[index])
    rings = 0.0
    for index in range(ring.shape[0]):
        rings += np.exp((ring[index] - worst) / spread)
    return spread * (np.log(columns) + np.log(rings))


@njit(cache=True, nogil=True)
def _overwrite_rows(target, source):  # type: ignore[no-untyped-def]
    for row in range(source.shape[0]):
        overwrite(target[row], source[row])


@njit(cache=True, nogil=True)
def anneal_tuned(t, nodes, best_nodes, state, moves, hot, cold, softness):  # type: ignore[no-untyped-def]
    """
    Anneal ``nodes`` (all hosts, the grid first), write the best placement to ``best_nodes`` and return its objective.

    Seven of ten moves swap a cell with another cell or a spare host, and update two columns and two rows. The others
    swap or reverse columns, rows, ends of columns and tensor groups. ``hot`` and ``cold`` are in integer ticks.
    """
    P, D, K = t.shape[0], t.shape[1], t.shape[2]
    width, cells, M = D * K, P * D * K, nodes.shape[0]
    num_stages = t.row.shape[0]
    times = np.zeros((NUM_TIMES, num_stages), np.int64)
    finish = np.zeros((num_stages, D), np.int64)
    ring = np.zeros(num_stages, np.int64)
    old_finish = finish.copy()
    old_ring = ring.copy()
    old_nodes = nodes.copy()
    lengths = new_lengths(t)
    old_lengths = lengths.copy()
    has_rings = lengths.shape[0] > 0
    best = evaluate_paths(t, nodes, finish, ring, times, lengths)
    energy = np.float64(best)
    overwrite(best_nodes, nodes)
    if M < 2:
        return best
    cooling = (cold / hot) ** (1.0 / max(moves / 64.0, 1.0))
    temperature = hot
    spread = 0.0
    simple = 100 if cells < 3 else 70
    for move in range(moves):
        if move % 64 == 0:
            temperature *= cooling
        if move % 4096 == 0:
            spread = softness * temperature
            energy = slowest_end(t, nodes, finish, ring) + smoothing(t, finish, ring, spread)
        choice = below(state, 100)
        if choice < simple:
            i = below(state, cells)
            j = below(state, M - 1)
            if j >= i:
                j += 1
            row_i, row_j = i // width, j // width
            if not t.allowed[row_i, nodes[j]] or (j < cells and not t.allowed[row_j, nodes[i]]):
                continue
            nodes[i], nodes[j] = nodes[j], nodes[i]
            col_i, col_j = (i // K) % D, (j // K) % D
            second_column = j < cells and col_j != col_i
            second_row = j < cells and row_j != row_i
            if has_rings:
                _overwrite_rows(old_finish, finish)
                _overwrite_rows(old_lengths, lengths)
            for stage in range(num_stages):
                old_finish[stage, col_i] = finish[stage, col_i]
                if second_column:
                    old_finish[stage, col_j] = finish[stage, col_j]
                old_ring[stage] = ring[stage]
            finish_of_column(t, nodes, col_i, finish, times, lengths)
            if second_column:
                finish_of_column(t, nodes, col_j, finish, times, lengths)
            if has_rings:
                finish_with_rings(t, nodes, lengths, finish)
            ring_of_row(t, nodes, row_i, ring)
            if second_row:
                ring_of_row(t, nodes, row_j, ring)
            value = slowest_end(t, nodes, finish, ring)
            trial = value + smoothing(t, finish, ring, spread)
            if trial <= energy or uniform(state) < np.exp((energy - trial) / temperature):
                energy = trial
            else:
                nodes[i], nodes[j] = nodes[j], nodes[i]
                if has_rings:
                    _overwrite_rows(finish, old_finish)
                    _overwrite_rows(lengths, old_lengths)
                for stage in range(num_stages):
                    finish[stage, col_i] = old_finish[stage, col_i]
                    if second_column:
                        finish[stage, col_j] = old_finish[stage, col_j]
                    ring[stage] = old_ring[stage]
                continue
        else:
            overwrite(old_nodes, nodes[:cells])
            _grid_move(t, nodes, choice - simple, state)
            if not fits(t, nodes):
                overwrite(nodes, old_nodes[:cells])
                continue
            _overwrite_rows(old_finish, finish)
            _overwrite_rows(old_lengths, lengths)
            overwrite(old_ring, ring)
            value = evaluate_paths(t, nodes, finish, ring, times, lengths)
            trial = value + smoothing(t, finish, ring, spread)
            if trial <= energy or uniform(state) < np.exp((energy - trial) / temperature):
                energy = trial
            else:
                overwrite(nodes, old_nodes[:cells])
                _overwrite_rows(finish, old_finish)
                _overwrite_rows(lengths, old_lengths)
                overwrite(ring, old_ring)
                continue
        if value < best:
            best = value
            overwrite(best_nodes, nodes)
    return best

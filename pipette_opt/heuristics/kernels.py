"""Annealing moves and the exact integer objective, incrementally, compiled."""

from typing import NamedTuple

import numpy as np
from numba import njit

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
        Form (``BLOCKING``, ``ASYNC`` or ``LOWER``), micro-batches, transfer inside a host, optimizer step.
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
            [form, candidate.num_microbatches, candidate.intra_p2p_ticks, candidate.optimizer_ticks], dtype=np.int64
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
        allowed=data.allowed(candidate),
    )


def _watched_stages(candidate: CandidateData, row: IntArray) -> IntArray:
    """
    Stages whose end can decide the objective.

    In the exact forms a later stage ends earlier: of the stages of a row with equal rings only the first counts.
    """
    stages = range(candidate.num_stages)
    if not candidate.exact:
        return np.array(stages, dtype=np.int64)
    ring = list(zip(row.tolist(), candidate.ring_class.tolist(), candidate.ring_floor_ticks.tolist(), strict=True))
    return np.array([stage for stage in stages if ring[stage] not in ring[:stage]], dtype=np.int64)


def _penalty(candidate: CandidateData) -> int:
    """More than any placement on usable links costs."""
    link = _largest_usable(candidate.p2p_ticks) + candidate.intra_p2p_ticks
    layer = _largest_usable(candidate.tensor_forward_ticks) + _largest_usable(candidate.tensor_backward_ticks)
    compute = int(candidate.forward_ticks.max() + candidate.backward_ticks.max())
    stage = compute + max(candidate.config.layers_per_stage) * layer + 2 * link
    ring = _largest_usable(candidate.ring_ticks) + int(candidate.ring_floor_ticks.max())
    return 2 * (candidate.num_microbatches + candidate.num_stages) * stage + ring


def _largest_usable(ticks: IntArray) -> int:
    return int(ticks[ticks < UNUSABLE_TICKS].max(initial=0))


def _penalised(ticks: IntArray, penalty: int) -> IntArray:
    return np.where(ticks < UNUSABLE_TICKS, ticks, penalty)


@njit(cache=True, nogil=True)
def finish_of_column(t, nodes, column, finish, work):  # type: ignore[no-untyped-def]
    """Write when each watched stage of a column has finished into ``finish[:, column]``; ``work``: (4, pp)."""
    D, K = t.shape[1], t.shape[2]
    form, m, intra = t.scalars[0], t.scalars[1], t.scalars[2]
    pp = t.row.shape[0]
    forward, backward, send, send_back = work[0], work[1], work[2], work[3]
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
        forward[s] = f
        backward[s] = b
        if s + 1 < pp:
            if t.row[s + 1] == t.row[s]:
                send[s] = intra
                send_back[s] = intra
            else:
                there = base + D * K
                p = np.int64(0)
                q = np.int64(0)
                for k in range(K):
                    u, v = nodes[base + k], nodes[there + k]
                    p = max(p, t.p2p[u, v])
                    q = max(q, t.p2p[v, u])
                send[s] = p
                send_back[s] = q
    if form == LOWER:
        _lower_finish(t, nodes, column, finish, work)
        return
    total = np.int64(0)
    period = np.int64(0)
    before = np.int64(0)
    for s in range(pp):
        cost = forward[s] + backward[s]
        wait = np.int64(0)
        if s + 1 < pp:
            wait = max(send[s], send_back[s])
            total += send[s] + send_back[s]
        total += cost
        if form == BLOCKING:
            period = max(period, cost + before + wait)
            before = wait
    if form == ASYNC:
        period = _largest_segment_mean(forward, backward, send, send_back, pp)
    total += (m - 1) * period
    before = np.int64(0)
    done = 0
    for index in range(t.watched.shape[0]):
        stage = t.watched[index]
        while done < stage:
            before += backward[done] + send_back[done]
            done += 1
        finish[index, column] = total - before


@njit(cache=True, nogil=True)
def _largest_segment_mean(forward, backward, send, send_back, pp):  # type: ignore[no-untyped-def]
    """Largest mean of cost plus transfers inside over runs of stages, rounded up: Newton's method on the mean."""
    level = np.int64(0)
    for s in range(pp):
        level = max(level, forward[s] + backward[s])
    while True:
        best = np.int64(0)
        best_sum = np.int64(0)
        best_length = np.int64(1)
        excess = np.int64(0)
        run_sum = np.int64(0)
        length = np.int64(0)
        for s in range(pp):
            cost = forward[s] + backward[s]
            link = send[s - 1] + send_back[s - 1] if s else np.int64(0)
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
def _lower_finish(t, nodes, column, finish, work):  # type: ignore[no-untyped-def]
    """The lower form: when each stage can have finished at the earliest."""
    D, K = t.shape[1], t.shape[2]
    m = t.scalars[1]
    start = np.int64(0)
    back = np.int64(0)
    first = np.int64(0)
    for s in range(t.row.shape[0]):
        ended = start + m * (work[0, s] + work[1, s])
        finish[s, column] = ended
        first = max(first, ended + back)
        base = (t.row[s] * D + column) * K
        f = np.int64(0)
        b = np.int64(0)
        for k in range(K):
            kind = t.kind[nodes[base + k]]
            f = max(f, t.first_forward[kind, s])
            b = max(b, t.first_backward[kind, s])
        start += f + work[2, s]
        back += b + work[3, s]
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
def slowest_end(t, finish, ring):  # type: ignore[no-untyped-def]
    """The objective, from all columns and rings."""
    worst = np.int64(0)
    for index in range(ring.shape[0]):
        latest = np.int64(0)
        for column in range(finish.shape[1]):
            latest = max(latest, finish[index, column])
        worst = max(worst, latest + ring[index])
    return worst + t.scalars[3]


@njit(cache=True, nogil=True)
def evaluate(t, nodes, finish, ring, work):  # type: ignore[no-untyped-def]
    """The objective of a placement from scratch; fills ``finish`` and ``ring``."""
    for column in range(t.shape[1]):
        finish_of_column(t, nodes, column, finish, work)
    for row in range(t.shape[0]):
        ring_of_row(t, nodes, row, ring)
    return slowest_end(t, finish, ring)


@njit(cache=True, nogil=True)
def fits(t, nodes):  # type: ignore[no-untyped-def]
    """Whether every host in the grid has the memory its row needs."""
    width = t.shape[1] * t.shape[2]
    good = True
    for cell in range(t.shape[0] * width):
        good &= t.allowed[cell // width, nodes[cell]]
    return good


@njit(cache=True, nogil=True)
def draw(state):  # type: ignore[no-untyped-def]
    """Next 64 random bits (xorshift64*, Vigna 2016); the state is never zero."""
    x = state[0]
    x ^= x >> np.uint64(12)
    x ^= x << np.uint64(25)
    x ^= x >> np.uint64(27)
    state[0] = x
    return x * np.uint64(2685821657736338717)


@njit(cache=True, nogil=True)
def below(state, bound):  # type: ignore[no-untyped-def]
    """A random integer in [0, bound)."""
    return np.int64((draw(state) >> np.uint64(33)) * np.uint64(bound) >> np.uint64(31))


@njit(cache=True, nogil=True)
def uniform(state):  # type: ignore[no-untyped-def]
    """A random number in [0, 1)."""
    return np.float64(draw(state) >> np.uint64(11)) * (1.0 / 9007199254740992.0)


@njit(cache=True, nogil=True)
def random_start(t, nodes, state):  # type: ignore[no-untyped-def]
    """
    Fill ``nodes`` with a random order of all hosts whose grid part has the memory it needs; False if none exists.

    Rows that need most choose first: what fits them fits every other row, so this never runs into a dead end.
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
        room[row] = t.allowed[row].sum()
    used = np.zeros(M, np.bool_)
    for row in np.argsort(room, kind="mergesort"):
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
    """One of the tuned moves that touch many cells."""
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
def anneal_tuned(t, nodes, best_nodes, state, moves, hot, cold):  # type: ignore[no-untyped-def]
    """
    Anneal ``nodes`` (all hosts, the grid first) and return the best objective; its hosts are in ``best_nodes``.

    Seven of ten moves swap a cell with another cell or a spare host and update two columns and two rows; the
    others exchange columns, rows, tails and tensor groups or reverse them. ``hot`` and ``cold`` in ticks.
    """
    P, D, K = t.shape[0], t.shape[1], t.shape[2]
    width, cells, M = D * K, P * D * K, nodes.shape[0]
    num_watched = t.watched.shape[0]
    work = np.zeros((4, t.row.shape[0]), np.int64)
    finish = np.zeros((num_watched, D), np.int64)
    ring = np.zeros(num_watched, np.int64)
    old_finish = finish.copy()
    old_ring = ring.copy()
    old_nodes = nodes.copy()
    energy = evaluate(t, nodes, finish, ring, work)
    best = energy
    best_nodes[:] = nodes
    if M < 2:
        return best
    cooling = (cold / hot) ** (1.0 / max(moves / 64.0, 1.0))
    temperature = hot
    simple = 100 if cells < 3 else 70
    for move in range(moves):
        if move % 64 == 0:
            temperature *= cooling
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
            for index in range(num_watched):
                old_finish[index, col_i] = finish[index, col_i]
                if second_column:
                    old_finish[index, col_j] = finish[index, col_j]
                old_ring[index] = ring[index]
            finish_of_column(t, nodes, col_i, finish, work)
            if second_column:
                finish_of_column(t, nodes, col_j, finish, work)
            ring_of_row(t, nodes, row_i, ring)
            if second_row:
                ring_of_row(t, nodes, row_j, ring)
            trial = slowest_end(t, finish, ring)
            if trial <= energy or uniform(state) < np.exp((energy - trial) / temperature):
                energy = trial
            else:
                nodes[i], nodes[j] = nodes[j], nodes[i]
                for index in range(num_watched):
                    finish[index, col_i] = old_finish[index, col_i]
                    if second_column:
                        finish[index, col_j] = old_finish[index, col_j]
                    ring[index] = old_ring[index]
        else:
            old_nodes[:cells] = nodes[:cells]
            _grid_move(t, nodes, choice - simple, state)
            if not fits(t, nodes):
                nodes[:cells] = old_nodes[:cells]
                continue
            old_finish[:] = finish
            old_ring[:] = ring
            trial = evaluate(t, nodes, finish, ring, work)
            if trial <= energy or uniform(state) < np.exp((energy - trial) / temperature):
                energy = trial
            else:
                nodes[:cells] = old_nodes[:cells]
                finish[:] = old_finish
                ring[:] = old_ring
        if energy < best:
            best = energy
            best_nodes[:] = nodes
    return best


@njit(cache=True, nogil=True)
def _pipette_move(order, choice, state):  # type: ignore[no-untyped-def]
    """Pipette's five moves on a sequence: reverse a part, move or swap hosts, move a part as it is or reversed."""
    n = order.shape[0]
    low, high = below(state, n), below(state, n)
    low, high = min(low, high), max(low, high)
    if choice == 2:
        order[low], order[high] = order[high], order[low]
        return
    if choice == 0:
        order[low : high + 1] = order[low : high + 1][::-1].copy()
        return
    if choice == 1:
        high = low
    part = order[low : high + 1].copy()
    if choice == 4:
        part = part[::-1].copy()
    rest = np.concatenate((order[:low], order[high + 1 :]))
    at = below(state, rest.shape[0] + 1)
    order[:at] = rest[:at]
    order[at : at + part.shape[0]] = part
    order[at + part.shape[0] :] = rest[at:]


@njit(cache=True, nogil=True)
def anneal_pipette(t, nodes, best_nodes, state, moves, temperature, energy, best):  # type: ignore[no-untyped-def]
    """
    Go on with Pipette's annealing for some moves; returns temperature, energy and best objective.

    The sequence of hosts runs through one replica after the other, spare hosts last. A worsening is divided by
    the power of ten above it, the temperature starts at 1 and shrinks by 0.999 a move.
    """
    P, D, K = t.shape[0], t.shape[1], t.shape[2]
    cells = P * D * K
    work = np.zeros((4, t.row.shape[0]), np.int64)
    finish = np.zeros((t.watched.shape[0], D), np.int64)
    ring = np.zeros(t.watched.shape[0], np.int64)
    order = nodes.copy()
    position = np.empty(cells, np.int64)
    for row in range(P):
        for column in range(D):
            for k in range(K):
                position[(row * D + column) * K + k] = (column * P + row) * K + k
    for cell in range(cells):
        order[position[cell]] = nodes[cell]
    trial_order = order.copy()
    trial_nodes = nodes.copy()
    for _ in range(moves):
        temperature *= 0.999
        trial_order[:] = order
        _pipette_move(trial_order, below(state, 5), state)
        for cell in range(cells):
            trial_nodes[cell] = trial_order[position[cell]]
        trial_nodes[cells:] = trial_order[cells:]
        if not fits(t, trial_nodes):
            continue
        trial = evaluate(t, trial_nodes, finish, ring, work)
        worse = trial - energy
        accepted = worse <= 0
        if not accepted:
            scaled = worse / 10.0 ** (np.floor(np.log10(worse)) + 1.0)
            accepted = temperature > 0 and uniform(state) < np.exp(-scaled / temperature)
        if accepted:
            energy = trial
            order[:] = trial_order
            nodes[:] = trial_nodes
            if energy < best:
                best = energy
                best_nodes[:] = nodes
    return temperature, energy, best

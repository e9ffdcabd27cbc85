"""Annealing moves on plain grids (cells are single hosts): pairs of cells that swap their hosts."""

from pipette_opt.annealing.kernels import below
from pipette_opt.base.jit import njit


@njit(cache=True, nogil=True)
def draw_move(choice, P, D, M, nodes, first, second, state):  # type: ignore[no-untyped-def]
    """Write the pairs of cells to swap into ``first`` and ``second``. Return their number."""
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
def cell_of_slowest_column(total, P, state):  # type: ignore[no-untyped-def]
    """Return a random cell of the column with the largest ``total``, shape ``(D,)``."""
    D = total.shape[0]
    slowest = 0
    for d in range(1, D):
        if total[d] > total[slowest]:
            slowest = d
    return below(state, P) * D + slowest


@njit(cache=True, nogil=True)
def cell_of_slowest_hop(weight, hop, watched_row, state):  # type: ignore[no-untyped-def]
    """
    Return either end of the slowest hop in the ring with the largest weight.

    ``weight`` and ``hop`` have the watched stages (able to decide the end) as first axis.
    """
    W, D = hop.shape
    index = 0
    for q in range(1, W):
        if weight[q] > weight[index]:
            index = q
    d = 0
    for q in range(1, D):
        if hop[index, q] > hop[index, d]:
            d = q
    d += below(state, 2)
    return watched_row[index] * D + (d if d < D else 0)

"""
Coarse first placements of many hosts: neighbours in the network fill whole columns or whole rows, slow hosts go last.

Each rack fills as many rows, or columns, as it can. Slow hosts belong in the last rows, because the gradient reduction
of a late row has the most time. Other hosts separate them, so that no link joins two slow hosts. Slow hosts also stay
away from the border between two racks, so that none of their links crosses it.
"""

from collections.abc import Sequence
from itertools import product
from typing import NamedTuple

import numpy as np

from pipette_opt.base.types import FloatArray, IntArray
from pipette_opt.problem.neighbours import Neighbours

ALIKE, SLOW = 1.04, 1.1
"""
Ratios of hosts' usual link costs. Chosen.

Two hosts with a ratio up to ``ALIKE`` are equally good; a host above ``SLOW`` times the median is slow.
"""

DISTANCES = (2, 3)
"""
Least distances between slow hosts of a column, in rows, that are tried. Chosen.

The period of blocking sends depends on a host and its two links, so every second host may be slow. Asynchronous sends
take the mean over a run of hosts, whose links would then all be slow; with two others between, a third of the links are
not. A larger distance was no better, as slow hosts then come into earlier rows.
"""


def starts_among(neighbours: Neighbours, shape: tuple[int, int], distances: Sequence[int]) -> list[IntArray]:
    """
    Return several placements on a grid of ``shape`` rows and columns; each lists all hosts, the grid first, by row.

    ``distances``: least distances between slow hosts of a column, in rows; each gives placements of its own.
    """
    P, D = shape
    starts: dict[bytes, IntArray] = {}
    for columns, every in product((True, False), distances):
        chosen = _chosen(neighbours, P * D, P if columns else D, slow_last=not columns)
        for bands in _bands(D if columns else P, chosen.units):
            grid = _filled(chosen.order, neighbours.usual, shape, bands, columns=columns, every=every)
            nodes = np.concatenate([grid.ravel(), chosen.spare])
            starts.setdefault(nodes.tobytes(), nodes)
    return list(starts.values())


def _bands(number: int, units: list[int]) -> list[list[int]]:
    """Return lists of widths of bands of columns or rows: equal bands, or one for each rack and one for the rest."""
    equal = [[number // parts] * parts for parts in (1, 2, 4, 8) if number % parts == 0]
    rest = number - sum(units)
    return [*equal, [*units, rest] if rest else units]


class _Chosen(NamedTuple):
    """
    Hosts chosen for the grid, and the spare hosts.

    Attributes
    ----------
    order
        Hosts of the grid, racks one after the other.
    units
        Number of whole rows (or columns) that each rack fills, in the order of ``order``.
    spare
        Hosts outside the grid.
    """

    order: IntArray
    units: list[int]
    spare: IntArray


def _chosen(neighbours: Neighbours, number: int, unit: int, *, slow_last: bool) -> _Chosen:
    """
    Choose ``number`` hosts, racks in whole rows or columns as far as possible; the fastest hosts unless all are
    similar.

    Racks are next to their neighbours, or in order of speed with ``slow_last``.
    """
    usual, place = neighbours.usual, neighbours.place
    by_speed = np.argsort(usual, kind="stable")
    last = usual[by_speed[number - 1]]
    able = by_speed[usual[by_speed] <= ALIKE * last]
    if usual[by_speed[0]] * ALIKE < last:
        able = by_speed[:number]
    racks = [able[neighbours.rack[able] == rack] for rack in np.unique(neighbours.rack[able])]
    whole, rest, free = [], [], number
    for rack in sorted(racks, key=len, reverse=True):
        size = min(len(rack), free) // unit * unit
        whole.append(rack[:size])
        rest.append(rack[size:])
        free -= size
    first = usual if slow_last else place
    whole = sorted((part for part in whole if len(part)), key=lambda part: float(first[part].mean()))
    left = np.concatenate(sorted(rest, key=len, reverse=True))[:free]
    order = np.concatenate([part[np.argsort(place[part])] for part in (*whole, left)])
    spare = np.setdiff1d(np.arange(len(usual)), order)
    return _Chosen(order=order, units=[len(part) // unit for part in whole], spare=spare)


def _filled(
    order: IntArray, usual: FloatArray, shape: tuple[int, int], bands: list[int], *, columns: bool, every: int
) -> IntArray:
    """Return a grid whose bands of columns or rows have consecutive hosts; slow hosts come last in each, apart."""
    P, D = shape
    grid = np.empty(shape, dtype=np.int64)
    is_slow = usual > SLOW * np.median(usual)
    begin = at = 0
    for size in bands:
        rows, cols = np.indices((P, size) if columns else (size, D)).reshape(2, -1)
        rows, cols = (rows, cols + begin) if columns else (rows + begin, cols)
        hosts = order[at : at + len(rows)]
        slow, others = hosts[is_slow[hosts]], hosts[~is_slow[hosts]]
        lines, number = (cols, D) if columns else (rows, P)
        crosses = np.zeros(len(rows), dtype=bool)
        if size < number:  # rings go round, columns do not
            crosses |= (lines == begin) & (columns | (begin > 0))
            crosses |= (lines == begin + size - 1) & (columns | (begin + size < number))
        if not columns or size == D:
            crosses |= (cols == D - 1) & (D % every > 0)  # the ring continues in the first column
        last = np.lexsort((cols, -rows, crosses, (rows + cols) % every > 0))[: len(slow)]
        grid[rows[last], cols[last]] = slow[np.argsort(-usual[slow], kind="stable")]
        along = np.lexsort((rows, cols) if columns else (cols, rows))
        along = along[~np.isin(along, last)]
        grid[rows[along], cols[along]] = others
        begin, at = begin + size, at + len(rows)
    return grid

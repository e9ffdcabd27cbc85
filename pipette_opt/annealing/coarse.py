"""
First placements of many hosts: neighbours in the network fill whole columns, or whole rows, and slow hosts the last.

Each rack fills as many rows, or columns, as it can. The last rows are the best place for slow hosts, as a late row's
reduction has the most time; there others are between them, so that no link has two of them, and they stay away from
where another rack begins, so that none of their links crosses.
"""

from typing import NamedTuple

import numpy as np

from pipette_opt.base.types import FloatArray, IntArray, P2PMode
from pipette_opt.problem.data import CandidateData, ProblemData
from pipette_opt.problem.neighbours import Neighbours, find_neighbours

ALIKE, SLOW = 1.04, 1.1
"""Usual cost over another's up to which hosts are as good as each other; over the median's, from which one is slow."""

EVERY: dict[P2PMode, int] = {"blocking": 2, "async": 3}
"""
How far apart slow hosts of a column are. The period of blocking sends knows a host and its two links, so that every
other host may be slow; asynchronous ones take the mean over a run of hosts, whose links would then all be slow: with
two others between, a third of them are not. Farther apart was no better, as slow hosts are then in earlier rows.
"""


def coarse_starts(data: ProblemData, candidate: CandidateData) -> list[IntArray]:
    """
    All hosts, those of the grid first, row by row; several that differ, of a candidate with single hosts as cells.

    Memory is not looked at: what does not fit is the caller's concern.
    """
    P, D, _ = candidate.grid
    neighbours = find_neighbours(candidate.ring_ticks[0] if D > 1 else candidate.p2p_ticks)
    if neighbours is None:
        return []
    starts: dict[bytes, IntArray] = {}
    for columns in (True, False):
        chosen = _chosen(neighbours, P * D, P if columns else D, slow_last=not columns)
        for bands in _bands(D if columns else P, chosen.units):
            grid = _filled(chosen.order, neighbours.usual, (P, D), bands, columns=columns, every=EVERY[data.p2p])
            nodes = np.concatenate([grid.ravel(), chosen.spare])
            starts.setdefault(nodes.tobytes(), nodes)
    return list(starts.values())


def _bands(number: int, units: list[int]) -> list[list[int]]:
    """How many columns or rows are in each band: equal ones, or those of racks that have so many, and the rest."""
    equal = [[number // parts] * parts for parts in (1, 2, 4, 8) if number % parts == 0]
    rest = number - sum(units)
    return [*equal, [*units, rest] if rest else units]


class _Chosen(NamedTuple):
    """
    The hosts of the grid, racks in whole units (rows or columns) first, and the others.

    Attributes
    ----------
    units
        How many units each rack has, in that order.
    """

    order: IntArray
    units: list[int]
    spare: IntArray


def _chosen(neighbours: Neighbours, number: int, unit: int, *, slow_last: bool) -> _Chosen:
    """
    So many hosts, racks in whole units as far as they go; the fastest unless all are alike.

    Racks are beside their neighbours, or, if asked for, in order of speed.
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
    """Bands of columns, or of rows, take consecutive hosts; in each the slow ones come last, apart from each other."""
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
            crosses |= (cols == D - 1) & (D % every > 0)  # next in its ring is the first
        last = np.lexsort((cols, -rows, crosses, (rows + cols) % every > 0))[: len(slow)]
        grid[rows[last], cols[last]] = slow[np.argsort(-usual[slow], kind="stable")]
        along = np.lexsort((rows, cols) if columns else (cols, rows))
        along = along[~np.isin(along, last)]
        grid[rows[along], cols[along]] = others
        begin, at = begin + size, at + len(rows)
    return grid

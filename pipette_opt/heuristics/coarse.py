"""
First placements of many hosts: neighbours in the network fill whole columns, or whole rows, and slow hosts the last.

Which hosts are neighbours (in a rack, in a building) is read from the links: each is divided by what is usual for its
two hosts, and the hosts are split in halves along the direction in which the rest differs most, again and again. The
last rows are the best place for slow hosts, as a late row's reduction has the most time; there they alternate with
others, so that no link has two of them.
"""

import numpy as np

from pipette_opt.problem import UNUSABLE_TICKS, CandidateData, ProblemData
from pipette_opt.types import FloatArray, IntArray

POWER_STEPS = 30
"""Steps of the power iteration that finds a direction."""


def coarse_starts(data: ProblemData, candidate: CandidateData) -> list[IntArray]:
    """
    All hosts, those of the grid first, row by row; several that differ, of a candidate with single hosts as cells.

    Memory is not looked at: what does not fit is the caller's concern.
    """
    P, D, _ = candidate.grid
    links = candidate.ring_ticks[0] if D > 1 else candidate.p2p_ticks
    cost = np.where(links < UNUSABLE_TICKS, links, np.nan)
    usable = ~np.isnan(cost).all(axis=1)
    if not usable.all() or not cost.size:
        return []
    usual = np.nanmedian(cost, axis=1)
    cost = np.where(np.isnan(cost), np.nanmax(cost), cost)
    by_speed = np.argsort(usual, kind="stable")
    used, spare = np.sort(by_speed[: P * D]), by_speed[P * D :]
    relative = cost / np.sqrt(usual[:, None] * usual[None, :])
    np.fill_diagonal(relative, relative.min())
    order = _neighbours(relative[np.ix_(used, used)], used, min(P, D))
    starts: dict[bytes, IntArray] = {}
    for columns in (True, False):
        for parts in _part_counts(D if columns else P):
            nodes = np.concatenate([_filled(order, usual, P, D, parts, columns=columns), spare])
            starts.setdefault(nodes.tobytes(), nodes)
    return list(starts.values())


def _part_counts(number: int) -> list[int]:
    """Into how many bands of columns or rows the grid is cut."""
    return [parts for parts in (1, 2, 4, 8, number) if number % parts == 0 and parts <= number]


def _neighbours(relative: FloatArray, hosts: IntArray, smallest: int) -> IntArray:
    """The hosts in an order in which neighbours are near each other."""
    number = len(hosts)
    if number <= smallest or number < 4:
        return hosts
    rest = relative - relative.mean(axis=0)[None, :] - relative.mean(axis=1)[:, None] + relative.mean()
    near = -0.5 * (rest + rest.T)
    shift = float(np.abs(near).sum(axis=1).max())  # makes the largest eigenvalue the one that is found
    direction = np.cos(np.arange(number, dtype=np.float64) * 1.7)
    for _ in range(POWER_STEPS):
        direction = near @ direction + 0.02 * shift * direction
        direction -= direction.mean()
        size = float(np.linalg.norm(direction))
        if size == 0.0:
            return hosts
        direction /= size
    ranked = np.argsort(direction, kind="stable")
    half = number // 2
    parts = (ranked[:half], ranked[half:])
    return np.concatenate([_neighbours(relative[np.ix_(part, part)], hosts[part], smallest) for part in parts])


def _filled(order: IntArray, usual: FloatArray, P: int, D: int, parts: int, *, columns: bool) -> IntArray:
    """Bands of columns, or of rows, take consecutive hosts; in each the slowest come last, apart from each other."""
    grid = np.empty((P, D), dtype=np.int64)
    size = (D if columns else P) // parts
    for part in range(parts):
        band = grid[:, part * size : (part + 1) * size] if columns else grid[part * size : (part + 1) * size]
        hosts = order[part * band.size : (part + 1) * band.size]
        rows, cols = np.divmod(np.arange(band.size), band.shape[1])
        alternate = (rows + cols) % 2 == 0
        cells = np.lexsort((cols, -rows, ~alternate))  # every other cell from the last row up, then those between
        slowest_first = np.argsort(-usual[hosts], kind="stable")
        band[rows[cells], cols[cells]] = hosts[slowest_first]
    return grid.ravel()

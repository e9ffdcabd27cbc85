"""
Groups of neighbouring hosts (racks), derived from link times.

Each link time is divided by the usual link time of the slower of its two hosts. Hierarchical clustering joins the
hosts, nearest first. It is cut where the groups are farthest apart relative to their inside.
"""

from typing import NamedTuple

import numpy as np

from pipette_opt.base.types import FloatArray, IntArray
from pipette_opt.problem.data import UNUSABLE_TICKS

APART = 1.03
"""Groups are racks if the distance between them is at least this multiple of the distance inside them. Chosen."""

MIN_NEAREST = 3
"""
Fewest links of a host, fastest first, whose median measures its speed; an eighth of all links if that is more. Chosen.

In a small rack, the median of all links would be a link that leaves the rack.
"""


class Neighbours(NamedTuple):
    """
    Proximity of hosts.

    Attributes
    ----------
    usual
        Median link time of each host, integer ticks, shape ``(num_nodes,)``.
    rack
        Group of each host, numbered from 0, shape ``(num_nodes,)``.
    place
        Position of each host in an order that keeps neighbours together, shape ``(num_nodes,)``.
    """

    usual: FloatArray
    rack: IntArray
    place: IntArray


def find_neighbours(links: IntArray) -> Neighbours | None:
    """
    Find neighbouring hosts by hierarchical clustering with average linkage.

    Parameters
    ----------
    links
        Ticks from host to host, ``UNUSABLE_TICKS`` without a link, shape ``(num_nodes, num_nodes)``.

    Returns
    -------
    ``None`` for a single host, or if a host has no link at all.
    """
    from scipy.cluster.hierarchy import average, leaves_list
    from scipy.spatial.distance import squareform

    cost = np.where(links < UNUSABLE_TICKS, np.maximum(links, 1), np.nan)
    if len(cost) < 2 or np.isnan(cost).all(axis=1).any():
        return None
    usual = np.nanmedian(cost, axis=1)
    best = np.nanmedian(np.sort(cost, axis=1)[:, : max(MIN_NEAREST, len(cost) // 8)], axis=1)
    relative = np.where(np.isnan(cost), np.nanmax(cost), cost) / np.maximum(best[:, None], best[None, :])
    relative = 0.5 * (relative + relative.T)
    np.fill_diagonal(relative, 0.0)
    joins = average(squareform(relative, checks=False))
    return Neighbours(usual=usual, rack=_racks(joins), place=np.argsort(leaves_list(joins)))


def _racks(joins: FloatArray) -> IntArray:
    """Return the rack of each host, cut where the distance of merged groups rises most; 0 if it rises little."""
    from scipy.cluster.hierarchy import fcluster

    number = len(joins) + 1
    counts = np.arange(2, number // 4 + 1)
    if not len(counts):
        return np.zeros(number, dtype=np.int64)
    farther = joins[number - counts, 2] / joins[number - counts - 1, 2]
    best = int(np.argmax(farther))
    if farther[best] < APART:
        return np.zeros(number, dtype=np.int64)
    return np.asarray(fcluster(joins, int(counts[best]), "maxclust"), dtype=np.int64) - 1

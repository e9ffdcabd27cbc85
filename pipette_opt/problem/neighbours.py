"""
Neighbouring hosts in the network, derived from the links.

Each link is divided by the usual cost of the slower of its two hosts, and the hosts are joined to groups, nearest
first. Where groups are farthest apart, they count as racks.
"""

from typing import NamedTuple

import numpy as np

from pipette_opt.base.types import FloatArray, IntArray
from pipette_opt.problem.data import UNUSABLE_TICKS

APART = 1.03
"""Least ratio of the distance between groups to that inside them, for groups to be racks."""

MIN_NEAREST = 3
"""
Number of fastest links whose median measures a host's speed; or an eighth of all, if that is more.

In a small rack, the median of all its links would be a link that leads out of it.
"""


class Neighbours(NamedTuple):
    """
    Proximity of hosts.

    Attributes
    ----------
    usual
        Usual cost of links of each host, shape ``(num_nodes,)``.
    rack
        Group of each host, from 0.
    place
        Position of each host in an order in which neighbours are near each other.
    """

    usual: FloatArray
    rack: IntArray
    place: IntArray


def find_neighbours(links: IntArray) -> Neighbours | None:
    """
    Find neighbours by average linkage.

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
    """Group of each host, cut where the next join is farthest compared to the last; all 0 if no join is far enough."""
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

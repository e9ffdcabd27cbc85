"""Upper bounds on the bandwidths of several concurrent rings over hosts, and groups of near hosts."""

from functools import lru_cache
from typing import Any

import numpy as np

from pipette_opt.base.types import FloatArray, IntArray, read_only
from pipette_opt.specs import ClusterSpec


@lru_cache(maxsize=1024)
def best_ring_rates(cluster: ClusterSpec, num_flows: int, num_hosts: int, num_rings: int) -> FloatArray:
    """
    Return upper bounds on the slowest hop of several rings over disjoint hosts, bytes/s, fastest ring first.

    In every layout of the rings, the k-th fastest is no faster than the k-th bound. A ring whose hops all reach a rate
    lies inside one component of the graph of links that reach it, counting each link's faster direction. So the sizes
    of the components limit the number of rings that fast. As the rate falls, components merge along the edges of a
    maximum spanning tree.

    Parameters
    ----------
    num_flows
        Number of concurrent flows over a hop.
    num_hosts
        Number of hosts in each ring, at least 2.

    Returns
    -------
    FloatArray
        Shape ``(num_rings,)``; 0 for rings that the measured links have no room for.
    """
    tree, fastest = _spanning_tree(cluster, num_flows)
    parent, size = list(range(cluster.num_nodes)), [1] * cluster.num_nodes

    def root(host: int) -> int:
        while parent[host] != host:
            parent[host] = host = parent[parent[host]]
        return host

    rates, room = np.zeros(num_rings), 0
    for edge in np.argsort(tree.data, kind="stable"):
        first, other = root(int(tree.row[edge])), root(int(tree.col[edge]))
        together = size[first] + size[other]
        more = together // num_hosts - size[first] // num_hosts - size[other] // num_hosts
        parent[other], size[first] = first, together
        if more > 0:
            rates[room : room + more] = fastest / tree.data[edge]
            room += more
            if room >= num_rings:
                break
    return read_only(rates, np.float64)


@lru_cache(maxsize=1024)
def near_groups(cluster: ClusterSpec, num_flows: int, num_hosts: int) -> IntArray:
    """
    Return the group of each host, ``(num_nodes,)``; near hosts share a group of fewer than ``num_hosts`` hosts.

    Groups merge along the fastest links (single linkage), as long as no group reaches ``num_hosts`` hosts. So any set
    of ``num_hosts`` connected hosts uses a link between two groups, which is no faster than :func:`far_bytes_per_s`.
    """
    tree, _ = _spanning_tree(cluster, num_flows)
    group: IntArray = np.arange(cluster.num_nodes)
    for edge in np.argsort(tree.data, kind="stable"):
        first, other = group[int(tree.row[edge])], group[int(tree.col[edge])]
        together = (group == first) | (group == other)
        if together.sum() >= num_hosts:
            break
        group[together] = first
    return read_only(np.unique(group, return_inverse=True)[1], np.int64)


def far_bytes_per_s(cluster: ClusterSpec, groups: IntArray, num_flows: int) -> float:
    """
    Return the largest aggregate bandwidth of ``num_flows`` flows between hosts of different groups, bytes/s.

    The faster direction of each link counts; 0 without a link.
    """
    far = groups[:, None] != groups
    return float(_links(cluster, num_flows)[far].max(initial=0.0))


def _links(cluster: ClusterSpec, num_flows: int) -> FloatArray:
    """Return the bandwidth of each pair of hosts, bytes/s, in its faster direction; 0 without a link."""
    known = np.nan_to_num(cluster.pair_bytes_per_s(num_flows), nan=0.0)
    links: FloatArray = np.maximum(known, known.T)
    np.fill_diagonal(links, 0.0)
    return links


@lru_cache(maxsize=256)
def _spanning_tree(cluster: ClusterSpec, num_flows: int) -> tuple[Any, float]:
    """
    Return a maximum spanning tree of the links of ``num_flows`` flows, and the rate of the fastest link.

    The tree's edges have the slowness of a link, relative to the fastest: scipy takes entries near zero for missing
    edges.
    """
    from scipy.sparse.csgraph import minimum_spanning_tree

    links = _links(cluster, num_flows)
    fastest = float(links.max(initial=0.0))
    with np.errstate(divide="ignore", invalid="ignore"):
        slowness = np.where(links > 0, fastest / links, 0.0)
    return minimum_spanning_tree(slowness).tocoo(), fastest

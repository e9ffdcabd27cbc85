"""How fast rings over several hosts can be, several of them at once."""

from functools import lru_cache

import numpy as np

from pipette_opt.base.types import FloatArray, read_only
from pipette_opt.specs import ClusterSpec


@lru_cache(maxsize=1024)
def best_ring_rates(cluster: ClusterSpec, num_flows: int, num_hosts: int, num_rings: int) -> FloatArray:
    """
    What the slowest hop of each of some rings over disjoint hosts carries at most, bytes/s, the fastest ring first.

    However the rings are laid, the k-th fastest is no faster than the k-th of these. A ring whose hops all carry a rate
    lies inside one component of the graph of the links that do, each way counted as the faster; so of rings that fast
    there are no more than these components have room for. As the rate falls, components grow together along the edges
    of a maximum spanning tree.

    Parameters
    ----------
    num_flows
        All flows that cross a hop at once.
    num_hosts
        Hosts of each ring, at least 2.

    Returns
    -------
    FloatArray
        Shape ``(num_rings,)``; 0 where the measured links have no room for so many rings.
    """
    from scipy.sparse.csgraph import minimum_spanning_tree

    known = np.nan_to_num(cluster.pair_bytes_per_s(num_flows), nan=0.0)
    links = np.maximum(known, known.T)
    np.fill_diagonal(links, 0.0)
    # A tree of the least slowness is one of the largest rates; pairs without a link are no edges. The fastest has 1, as
    # scipy takes what is near to zero for no edge.
    fastest = links.max(initial=0.0)
    with np.errstate(divide="ignore", invalid="ignore"):
        slowness = np.where(links > 0, fastest / links, 0.0)
    tree = minimum_spanning_tree(slowness).tocoo()
    parent, size = list(range(len(links))), [1] * len(links)

    def root(host: int) -> int:
        while parent[host] != host:
            parent[host] = host = parent[parent[host]]
        return host

    rates, room = np.zeros(num_rings), 0
    for edge in np.argsort(tree.data, kind="stable"):
        one, other = root(int(tree.row[edge])), root(int(tree.col[edge]))
        together = size[one] + size[other]
        more = together // num_hosts - size[one] // num_hosts - size[other] // num_hosts
        parent[other], size[one] = one, together
        if more > 0:
            rates[room : room + more] = fastest / tree.data[edge]
            room += more
            if room >= num_rings:
                break
    return read_only(rates, np.float64)

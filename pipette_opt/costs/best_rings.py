"""Upper bounds on the bandwidths of several concurrent rings over hosts, and groups of near hosts."""

from bisect import bisect_left
from functools import cache, lru_cache
from typing import Any, Self

import numpy as np

from pipette_opt.base.types import FloatArray, IntArray, read_only
from pipette_opt.base.units import ceil_div
from pipette_opt.specs import ClusterSpec


@lru_cache(maxsize=1024)
def best_ring_rates(cluster: ClusterSpec, num_flows: int, num_hosts: int, num_rings: int) -> FloatArray:
    """
    Return upper bounds on the slowest hop of several rings over disjoint hosts, bytes/s, in one or more scenarios.

    In every layout of the rings there is a scenario in which, for every k, the k-th fastest ring is no faster than the
    k-th bound. Components of the graph of links limit the rates in all scenarios (:func:`_connected_rates`). A scenario
    also has a number of rings that hold all slow hosts in use, and a ring with many of them is slower still
    (:class:`_SlowHosts`).

    Parameters
    ----------
    num_flows
        Number of concurrent flows over a hop.
    num_hosts
        Number of hosts in each ring, at least 2.

    Returns
    -------
    FloatArray
        Shape ``(num_scenarios, num_rings)``, fastest ring first; 0 for rings that the measured links have no room for.
        A single ring has one scenario.
    """
    connected = _connected_rates(cluster, num_flows, num_hosts, num_rings)
    unused = cluster.num_nodes - num_hosts * num_rings
    slow = _SlowHosts.of_links(_links(cluster, num_flows), num_hosts, unused) if unused >= 0 else None
    if slow is None:
        return read_only(connected[None], np.float64)
    in_use, found = int(slow.is_slow.sum()) - unused, list[FloatArray]()
    for holding in range(ceil_div(in_use, num_hosts), num_rings + 1):
        # The slowest rings may hold slow hosts alone; of the others, one has at least their mean number.
        shares = [ceil_div(in_use - slower * num_hosts, holding - slower) for slower in range(holding)]
        free = connected[: num_rings - holding]
        rates = np.append(free, np.minimum(connected[len(free) :], [slow.rate(share) for share in reversed(shares)]))
        if not any((rates <= known).all() for known in found):
            found = [known for known in found if (known > rates).any()] + [rates]
    return read_only(np.stack(found), np.float64)


class _SlowHosts:
    """
    Hosts without a link above a limit, and the rates of rings with a number of them.

    A ring above the limit has no slow host. In a ring whose hops exceed all links between slow hosts, both neighbours
    of a slow host are fast. Links that reach the ring's rate join slow hosts and their fast neighbours into groups. If
    all hosts of the ring are in one group, at most every second is slow. Otherwise the ring has, in each group with
    slow hosts, at least one fast host more than slow hosts.

    Parameters
    ----------
    links
        Bandwidth of each pair of hosts, bytes/s, shape ``(num_nodes, num_nodes)``.
    limit
        Largest rate of a link of a slow host, bytes/s.
    num_hosts
        Number of hosts in each ring.
    """

    def __init__(self, links: FloatArray, limit: float, num_hosts: int) -> None:
        self.is_slow = links.max(axis=1) <= limit
        self._links, self._limit, self._num_hosts = links[self.is_slow], limit, num_hosts
        self._among = float(self._links[:, self.is_slow].max())
        self._levels: list[float] = np.unique(self._links[self._links > 0])[::-1].tolist()
        self._most = cache(self._most_in_ring)

    @classmethod
    def of_links(cls, links: FloatArray, num_hosts: int, unused: int) -> Self | None:
        """
        Return the hosts below the largest relative step between hosts' fastest links; ``None`` without a step.

        More hosts than the rings leave unused are slow, and at most half of all. Other limits give valid bounds, too.
        """
        fastest, half = np.sort(links.max(axis=1)), len(links) // 2
        below, above = fastest[unused:half], fastest[unused + 1 : half + 1]
        steps = np.divide(above, below, out=np.ones(len(below)), where=below > 0)
        if steps.max(initial=1.0) == 1.0:
            return None
        return cls(links, float(below[steps.argmax()]), num_hosts)

    def rate(self, num_slow: int) -> float:
        """Return an upper bound on the rate of a ring with at least this number of slow hosts, bytes/s."""
        place = bisect_left(self._levels, num_slow, key=self._most)
        return self._levels[place] if place < len(self._levels) else self._limit

    def _most_in_ring(self, level: float) -> int:
        """Return an upper bound on the slow hosts of a ring whose hops all reach a rate."""
        from scipy.sparse import coo_matrix
        from scipy.sparse.csgraph import connected_components

        if level <= self._among:
            return self._num_hosts
        slow, other = np.nonzero(self._links >= level)
        size, hosts = len(self.is_slow), np.flatnonzero(self.is_slow)
        near = coo_matrix((np.ones(len(slow)), (hosts[slow], other)), (size, size))
        _, group = connected_components(near, directed=False)
        of_group = np.bincount(group, weights=self.is_slow).astype(np.int64)
        has_room = np.bincount(group) >= self._num_hosts
        inside = min(int(of_group[has_room].max(initial=0)), self._num_hosts // 2)
        largest = np.sort(of_group)[::-1].cumsum()
        several = np.minimum(largest, (self._num_hosts - np.arange(1, len(largest) + 1)) // 2)
        return max(inside, int(several.max()))


def _connected_rates(cluster: ClusterSpec, num_flows: int, num_hosts: int, num_rings: int) -> FloatArray:
    """
    Return upper bounds on the slowest hop of several rings over disjoint hosts, bytes/s, shape ``(num_rings,)``.

    In every layout of the rings, the k-th fastest is no faster than the k-th bound. A ring whose hops all reach a rate
    lies inside one component of the graph of links that reach it, counting each link's faster direction. So the sizes
    of the components limit the number of rings that fast. As the rate falls, components merge along the edges of a
    maximum spanning tree. 0 for rings that the measured links have no room for.
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
    return rates


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

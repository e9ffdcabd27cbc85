"""Collectives over the fastest links that any placement can have: lower bounds on clusters with NVLink domains."""

from dataclasses import replace
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from pipette_opt.base.types import Collective, FloatArray, IntArray
from pipette_opt.costs.collectives import RingArrays, hosts_of_a_domain
from pipette_opt.costs.links import LeastRings, RingHops, Rings
from pipette_opt.costs.placed_links import LeastExchange, PlacedExchange, PlacedLinks, host_of
from pipette_opt.specs import ClusterSpec, Instance


class Hop(NamedTuple):
    """
    Hop of a ring between two hosts.

    Parameters
    ----------
    bytes_per_s
        Bandwidth of a flow.
    latency_s
        Latency of a message.
    num_hosts
        Number of the ring's hosts in the NVLink domain where it has fewest; 1 for a hop inside a domain.
    """

    bytes_per_s: float
    latency_s: float
    num_hosts: int


class LeastLinks(PlacedLinks):
    """
    Links of an ideal cluster that knows the NVLink domains of the given cluster.

    The slowest hop of a ring is a hop of the given cluster, so no ring is faster than the fastest over a single hop.
    All-to-alls have the best number of hosts in an NVLink domain. Without NVLink domains, these are the links of the
    ideal cluster.

    Parameters
    ----------
    given
        Cluster whose links are known.
    ideal
        Job on the cluster in which every link is as fast as the fastest (``ClusterSpec.with_best_links``).
    """

    def __init__(self, given: ClusterSpec, ideal: Instance) -> None:
        super().__init__(ideal)
        self.given = given

    def rings(
        self, groups: IntArray, who: str, algorithm: Collective = "ring", *, messages: bool = False
    ) -> Rings | LeastRings:
        """Return rings over the fastest hop; where flows or members of a ring differ, only the part inside hosts."""
        found = super().rings(groups, who, algorithm, messages=messages)
        if self.given.most_in_domain == 1 or not isinstance(found, Rings):
            return found
        from pipette_opt.costs._flows import ring_hops

        hosts = np.ascontiguousarray(host_of(self.given, groups))
        *_, shared, num_hosts, members = ring_hops(hosts, self.given.num_nodes, messages)
        flows = shared.max(axis=2)
        even = ((shared == flows[..., None]) | (shared == 0)).all(axis=2) & (members * num_hosts == groups.shape[2])
        even &= num_hosts > 1
        opened = np.ones_like(members) if messages else members
        shapes = np.unique(np.stack([flows[even], num_hosts[even]], axis=1), axis=0).tolist()
        hops = {(count, size): fastest_hops(self.given, count, size) for count, size in shapes}
        ways = []
        for kind in range(len(HOPS)):
            for number in range(max((len(each[kind]) for each in hops.values()), default=0)):
                pace, latency_s, together = np.full(flows.shape, np.inf), np.zeros(flows.shape), np.ones_like(flows)
                for (count, size), each in hops.items():
                    if number < len(each[kind]):
                        hop, these = each[kind][number], even & (flows == count) & (num_hosts == size)
                        pace[these], latency_s[these] = hop.bytes_per_s, hop.latency_s
                        together[these] = 1 if messages else hop.num_hosts
                over = RingHops(pace, opened * together, latency_s, in_domain=kind == 0)
                ways.append(found._replace(cluster=self.given, hops=(over,)))
        return LeastRings(tuple(ways), found._replace(hops=()))

    def exchange(
        self, groups: IntArray, who: str, shares: FloatArray, *, hands_on: bool = False
    ) -> PlacedExchange | LeastExchange:
        """Return all-to-alls with the best number of hosts in a domain; uneven ones take only the part inside hosts."""
        found = super().exchange(groups, who, shares, hands_on=hands_on)
        if self.given.most_in_domain == 1 or not isinstance(found, PlacedExchange):
            return found
        none = np.zeros(found.spans.shape)
        floor = found._replace(spans=none > 0, load_s_per_byte=none, latency_s=0.0)
        hosts = host_of(self.given, groups)
        alike, place = np.unique(hosts.reshape(len(hosts), -1), axis=0, return_inverse=True)
        shape = np.stack([even_shapes(each.reshape(hosts.shape[1:])) for each in alike])[place.reshape(-1)]
        most = min(self.given.most_in_domain, int(shape[..., 0].max(initial=1)))
        ways = tuple(self._together(floor, shape, number, shares, hands_on) for number in range(1, most + 1))
        return LeastExchange(ways, floor)

    def _together(
        self, floor: PlacedExchange, shape: IntArray, together: int, shares: FloatArray, hands_on: bool
    ) -> PlacedExchange:
        """
        Return all-to-alls with ``together`` hosts in the domain that has most of them; infinite where there are fewer.

        ``shape``: result of :func:`even_shapes` of each placement, shape ``(n, groups, 3)``.
        """
        cluster, port = self.given, shares[1] / float(self.given.inside_bytes_per_s(1))
        near = shares[1] / _fastest_in_domain(cluster)
        ports, loads = np.array(floor.port_s_per_byte), np.zeros(shape.shape[:2])
        spans = shape[..., 0] > together
        for hosts, members, ranks in np.unique(shape.reshape(-1, 3), axis=0).tolist():
            if hosts == 1:
                continue
            these = (shape == (hosts, members, ranks)).all(axis=2)
            through = hosts / together if hands_on else 1.0
            ports[these] = ((members - 1) * port + members * (together - 1) * near) * through
            loads[these] = np.inf
            if together <= hosts:
                sent = ranks * members * shares[min(members * together, len(shares) - 1)]
                loads[these] = sent * _busiest_s_per_byte(cluster, ranks, hosts, hosts - together)
        latency_s = _least_between_domains_s(cluster)
        return floor._replace(port_s_per_byte=ports, spans=spans, load_s_per_byte=loads, latency_s=latency_s)

    def embedding_s(
        self, traffic: RingArrays, ends: tuple[IntArray, IntArray], slots: FloatArray, num_flows: int
    ) -> FloatArray:
        """Return the time of the fastest pair of hosts for each placement."""
        if self.given.most_in_domain == 1:
            return super().embedding_s(traffic, ends, slots, num_flows)
        first, last = np.nonzero(~np.eye(self.given.num_nodes, dtype=np.bool_))
        given = PlacedLinks(replace(self.instance, cluster=self.given))
        times = given.embedding_s(traffic, (first[None], last[None]), np.full((1, len(first)), np.inf), num_flows)
        return np.broadcast_to(times.min(axis=1, keepdims=True), ends[0].shape)


HOPS = ("in a domain", "between single hosts", "between several hosts")
"""Kinds of hops: inside an NVLink domain; between domains, the smaller of which has one or several hosts of a ring."""


@lru_cache(maxsize=1024)
def fastest_hops(cluster: ClusterSpec, num_flows: int, num_hosts: int) -> tuple[tuple[Hop, ...], ...]:
    """
    Return the fastest hops of a ring of ``num_hosts`` hosts, for each of ``HOPS``.

    No other hop has at least the bandwidth, at most the latency and as many hosts in a domain. A ring that leaves no
    domain has all its hosts there; a ring over several domains has some hop between domains.
    """
    rates, domain = cluster.pair_bytes_per_s(num_flows) / num_flows, cluster.domain_of_node
    near, size = domain[:, None] == domain, np.bincount(domain)[domain]
    several = hosts_of_a_domain(cluster, num_hosts)
    known = ~np.isnan(rates) & ~np.eye(len(rates), dtype=np.bool_)
    found = []
    for these, together in (
        (known & near & (size >= num_hosts), np.ones_like(several)),
        (known & ~near, np.ones_like(several)),
        (known & ~near & (several > 1), several),
    ):
        pairs = np.stack([-rates[these], cluster.pair_latency_s[these], -together[these]], axis=1)
        best: list[Hop] = []
        for slow, latency_s, few in np.unique(pairs, axis=0).tolist():
            if not any(hop.latency_s <= latency_s and hop.num_hosts >= -few for hop in best):
                best.append(Hop(-slow, latency_s, int(-few)))
        found.append(tuple(best))
    return tuple(found)


def even_shapes(groups: IntArray) -> IntArray:
    """
    Return hosts of each all-to-all, members on each of them, and ranks that send from a host, shape ``(groups, 3)``.

    One host and no member if a group has unequally many members on its hosts, or a host sends to several sets of hosts.

    Parameters
    ----------
    groups
        Hosts of the members, shape ``(groups, members)``.
    """
    sets = [np.unique(hosts, return_counts=True) for hosts in groups]
    ranks, of_host = np.bincount(groups.ravel()), dict[int, tuple[int, ...]]()
    for hosts, members in sets:
        together = tuple(hosts.tolist())
        if len(set(members.tolist())) > 1 or any(of_host.setdefault(host, together) != together for host in together):
            return np.tile([1, 0, 0], (len(groups), 1))
    return np.array([(len(hosts), members[0], ranks[hosts[0]]) for hosts, members in sets])


def _busiest_s_per_byte(cluster: ClusterSpec, num_flows: int, num_hosts: int, others: int) -> float:
    """
    Return the least seconds in which the busiest of ``num_hosts`` hosts sends a byte to ``others`` in other domains.

    It receives one from each at the same time. Infinite without links.
    """
    domain, rates = cluster.domain_of_node, cluster.pair_bytes_per_s(num_flows)
    apart = np.where((domain[:, None] == domain) | np.isnan(rates), np.inf, 1.0 / rates)
    sent, received = (np.sort(way, axis=1)[:, :others].sum(axis=1) for way in (apart, apart.T))
    return float(np.sort(np.maximum(sent, received))[num_hosts - 1])


def _fastest_in_domain(cluster: ClusterSpec) -> float:
    """Return the largest bandwidth of a flow between two hosts of an NVLink domain, bytes per second."""
    domain, rates = cluster.domain_of_node, cluster.pair_bytes_per_s(1)
    return float(np.nanmax(rates[domain[:, None] == domain], initial=0.0)) or np.inf


def _least_between_domains_s(cluster: ClusterSpec) -> float:
    """Return the least latency between hosts of different NVLink domains, seconds; 0 with a single domain."""
    domain = cluster.domain_of_node
    apart = cluster.pair_latency_s[domain[:, None] != domain]
    return float(apart.min()) if apart.size else 0.0

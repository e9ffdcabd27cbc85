"""Rings, trees and all-to-alls of placed groups over the links that they share."""

from typing import NamedTuple

import numpy as np

from pipette_opt.base.types import BoolArray, Collective, FloatArray, IntArray
from pipette_opt.costs.collectives import RingArrays, across_s, domain_s, tree_edges
from pipette_opt.costs.exchange import exchange_s, part_bytes
from pipette_opt.costs.links import LeastRings, RingHops, Rings
from pipette_opt.costs.times import MissingLink
from pipette_opt.specs import ClusterSpec, Instance
from pipette_opt.specs.gpu_links import GpuLinks


class PlacedLinks:
    """
    Collectives of placements over the links of the cluster.

    Attributes
    ----------
    missing
        First unmeasured link of each placement that uses one, by index of the placement.
    """

    def __init__(self, instance: Instance) -> None:
        self.instance = instance
        self.missing: dict[int, MissingLink] = {}

    def rings(
        self, groups: IntArray, who: str, algorithm: Collective = "ring", *, messages: bool = False
    ) -> "Rings | LeastRings":
        """
        Return the rings (or trees) over the hosts of groups; those of one placement run concurrently.

        ``groups``: GPUs from :func:`gpu_numbers`, shape ``(n, groups, members)``. ``messages``: each rank sends to the
        next, so that a single flow leaves each host; a collective opens a flow for each member there.
        """
        from pipette_opt.costs._flows import ring_hops

        cluster, groups = self.instance.cluster, np.ascontiguousarray(groups)
        source, target, shared, num_hosts, members = ring_hops(host_of(cluster, groups), cluster.num_nodes, messages)
        opened = np.ones_like(members) if messages else members
        inside, across = cluster.inside_bytes_per_s(members), None
        if cluster.gpu_links is not None:
            across, slowest = _ring_rates(cluster.gpu_links, groups, source, target, num_hosts, opened)
            inside = np.minimum(inside, slowest)
        if algorithm == "tree":
            pace = self._host_loads(source, num_hosts, members, who)
            pace = pace if across is None else np.maximum(pace, 1.0 / across)
            farthest = farthest_latency_s(cluster, host_of(cluster, groups))
            tree = (RingHops(pace, members, farthest),)
            return Rings(cluster, self.instance.stack, algorithm, inside, num_hosts, members, tree)
        rate = self.hop_rates(source, target, shared, num_hosts)
        self.note_missing(who, rate, source, target)
        if cluster.levels or cluster.known_latency_s is not None:
            if across is not None:
                rate = np.where(np.isinf(rate), rate, np.minimum(rate, across[..., None]))
            hops = _hops_by_latency(cluster, groups, source, target, rate, shared, num_hosts, opened, messages)
            return Rings(cluster, self.instance.stack, algorithm, inside, num_hosts, members, hops)
        pace = rate.min(axis=2) if across is None else np.minimum(rate.min(axis=2), across)
        return Rings(cluster, self.instance.stack, algorithm, inside, num_hosts, members, (RingHops(pace, opened),))

    def hop_rates(self, source: IntArray, target: IntArray, flows: IntArray, num_hosts: IntArray) -> FloatArray:
        """
        Return the bytes per second of one of ``flows`` flows over each hop of rings, infinite without a hop.

        ``num_hosts``: hosts of each ring, shape ``(n, groups)``; hops are the last axis of the others.
        """
        return flow_rates(self.instance.cluster, source, target, flows)

    def exchange(
        self, groups: IntArray, who: str, shares: FloatArray, *, hands_on: bool = False
    ) -> "PlacedExchange | LeastExchange":
        """
        Return the all-to-alls of groups; those of one placement run concurrently.

        ``groups``: GPUs, shape ``(n, groups, members)``. ``shares``, ``hands_on``: arguments of
        ``_flows.exchange_loads``.
        """
        from pipette_opt.costs._flows import exchange_loads, exchanging_ranks

        cluster = self.instance.cluster
        gpus = np.ascontiguousarray(groups)
        groups = host_of(cluster, gpus)
        domain = cluster.domain_of_node
        ranks = exchanging_ranks(groups, domain)
        counts = np.unique(ranks[ranks > 0])
        row_of_count = np.zeros(int(counts.max(initial=0)) + 1, dtype=np.int64)
        row_of_count[counts] = np.arange(len(counts))
        none = np.zeros((0, cluster.num_nodes, cluster.num_nodes))
        rates = np.stack([cluster.pair_bytes_per_s(int(count)) for count in counts]) if len(counts) else none
        rates, fabric = rates * slowest_share(cluster), fabric_of(cluster, gpus)
        near = np.full((cluster.num_nodes,) * 2, float(cluster.inside_bytes_per_s(1)))
        if cluster.most_in_domain > 1:
            same = np.eye(cluster.num_nodes, dtype=np.bool_)
            near = np.where(same, near, cluster.pair_bytes_per_s(1))
        loads, ports, inside, spans, missing = exchange_loads(
            groups, ranks, row_of_count, rates, domain, near, shares, hands_on
        )
        for place in np.flatnonzero(missing[:, 0] >= 0).tolist():
            self.missing.setdefault(place, MissingLink(who, int(missing[place, 0]), int(missing[place, 1])))
        busiest = inside * (ports if fabric is None else np.maximum(ports, fabric))
        return PlacedExchange(self.instance, busiest, spans, loads, farthest_latency_s(cluster, groups))

    def embedding_s(
        self, traffic: RingArrays, ends: tuple[IntArray, IntArray], slots: FloatArray, num_flows: int
    ) -> FloatArray:
        """
        Return the time of the all-reduce of tied embeddings between two hosts, seconds, shape ``(n, pairs)``.

        An unmeasured link counts as the slowest measured one: these few bytes are no reason to refuse a plan.

        Parameters
        ----------
        ends
            Host of the first and of the last stage, shape ``(n, pairs)`` each.
        slots
            Bandwidth that slots allow, bytes per second, shape ``(n, pairs)``.
        num_flows
            Number of concurrent flows between the two hosts.
        """
        cluster, stack = self.instance.cluster, self.instance.stack
        one_flow, two_hosts = np.array(1), np.array(2)
        fabric = np.minimum(cluster.inside_bytes_per_s(2), slots)
        rate, latency_s = cluster.pair_bytes_per_s(num_flows) / num_flows, cluster.pair_latency_s
        unknown = np.isnan(rate) | np.isnan(rate.T)
        rate = np.where(unknown, np.nanmin(rate, initial=np.inf), rate)
        latency_s = np.where(unknown, latency_s.max(), latency_s)
        over = np.zeros(ends[0].shape)
        for way in (ends, ends[::-1]):
            pace = np.minimum(rate[way], slots)
            one_way = across_s(cluster, traffic, pace, fabric, one_flow, two_hosts, stack, latency_s[way])
            over = np.maximum(over, one_way)
        if cluster.most_in_domain > 1:
            near = cluster.domain_of_node[ends[0]] == cluster.domain_of_node[ends[1]]
            pace = np.minimum(np.minimum(rate, rate.T)[ends], slots)
            over = np.where(near, domain_s(cluster, traffic, pace, fabric, one_flow, stack), over)
        return over

    def _host_loads(self, hosts: IntArray, num_hosts: IntArray, members: IntArray, who: str) -> FloatArray:
        """
        Return the longest time of a host for its part of a byte, in double trees over the hosts of groups, seconds.

        ``hosts``, shape ``(n, groups, members)``, holds ``num_hosts`` of each group; the trees of one placement run
        concurrently. Shape ``(n, groups)``, zero for a single host; NaN if an edge was not measured.
        """
        cluster, loads = self.instance.cluster, np.zeros(num_hosts.shape)
        for row in range(len(hosts)):
            flows, ends = np.zeros((cluster.num_nodes,) * 2, dtype=np.int64), []
            for group, count in enumerate(num_hosts[row].tolist()):
                edges = hosts[row, group, tree_edges(count)] if count > 1 else np.zeros((0, 2), dtype=np.int64)
                both = np.concatenate([edges, edges[:, ::-1]])  # up when reducing, down when broadcasting
                once = np.unique(both, axis=0)  # both trees may use a pair; what they send over it follows in turn
                flows[once[:, 0], once[:, 1]] += members[row, group]
                ends.append(both)
            for group, both in enumerate(ends):
                rate = flow_rates(cluster, both[:, 0], both[:, 1], flows[both[:, 0], both[:, 1]])
                self.note_missing(who, rate[None], both[None, :, 0], both[None, :, 1], row)
                out, into = np.zeros(cluster.num_nodes), np.zeros(cluster.num_nodes)
                np.add.at(out, both[:, 0], 0.5 / rate)
                np.add.at(into, both[:, 1], 0.5 / rate)
                loads[row, group] = max(out.max(), into.max())
        return loads

    def note_missing(self, who: str, rate: FloatArray, source: IntArray, target: IntArray, first: int = 0) -> None:
        """Record the first unmeasured link of each placement; ``first`` is the index of the first placement."""
        for place in np.argwhere(np.isnan(rate)):
            at = tuple(place)
            self.missing.setdefault(first + int(at[0]), MissingLink(who, int(source[at]), int(target[at])))


class PlacedExchange(NamedTuple):
    """All-to-alls of placements, shape ``(n, groups)``; see :func:`~pipette_opt.costs.exchange.exchange_s`."""

    instance: Instance
    port_s_per_byte: FloatArray
    spans: BoolArray
    load_s_per_byte: FloatArray
    latency_s: FloatArray | float

    def time_s(
        self, part_bytes: FloatArray, most_bytes_per_s: tuple[float, float] = (float("inf"), float("inf"))
    ) -> FloatArray:
        """
        Return the time of an all-to-all, seconds, shape ``(n, groups)``.

        ``part_bytes``: bytes from a rank to each other rank; broadcasts to the groups.
        """
        cluster, stack = self.instance.cluster, self.instance.stack
        loads = self.port_s_per_byte, self.spans, self.load_s_per_byte
        return exchange_s(cluster, stack, part_bytes, *loads, self.latency_s, most_bytes_per_s)


class LeastExchange(NamedTuple):
    """
    Lower bound on all-to-alls that may go any of several ways: the fastest counts.

    ``ways``: all-to-alls with infinite load where a group cannot go that way. ``inside``: the part inside hosts, which
    counts for groups without a way.
    """

    ways: tuple[PlacedExchange, ...]
    inside: PlacedExchange

    def time_s(
        self, part_bytes: FloatArray, most_bytes_per_s: tuple[float, float] = (float("inf"), float("inf"))
    ) -> FloatArray:
        """Return the least time of an all-to-all, seconds; arguments and shape as in :class:`PlacedExchange`."""
        inside = self.inside.time_s(part_bytes, most_bytes_per_s)
        least = np.full(inside.shape, np.inf)
        for way in self.ways:
            least = np.minimum(
                least, np.where(np.isinf(way.load_s_per_byte), np.inf, way.time_s(part_bytes, most_bytes_per_s))
            )
        return np.where(np.isinf(least), inside, least)


class ExchangedContext(NamedTuple):
    """
    Cost of context parallelism that exchanges by all-to-all.

    ``size``: number of members of a context-parallel group.
    """

    exchange: PlacedExchange | LeastExchange
    size: int

    def time_s(self, traffic: RingArrays) -> FloatArray:
        """
        Return the time of all calls, seconds, shape ``(n, groups)``.

        ``traffic`` broadcasts to that shape: bytes that a rank sends, and number of calls.
        """
        time: FloatArray = traffic.num_calls * self.exchange.time_s(part_bytes(traffic, self.size))
        return time


def farthest_latency_s(cluster: ClusterSpec, hosts: IntArray) -> FloatArray | float:
    """Return seconds of latency between the farthest two hosts of a group; members are the last axis."""
    if not cluster.levels and cluster.known_latency_s is None:
        return cluster.inter_node_latency_s
    between = cluster.pair_latency_s[hosts[..., :, None], hosts[..., None, :]]
    farthest: FloatArray = np.where(hosts[..., :, None] == hosts[..., None, :], 0.0, between).max(axis=(-2, -1))
    return farthest


def _hops_by_latency(
    cluster: ClusterSpec,
    groups: IntArray,
    source: IntArray,
    target: IntArray,
    rate: FloatArray,
    shared: IntArray,
    num_hosts: IntArray,
    members: IntArray,
    messages: bool,
) -> tuple[RingHops, ...]:
    """
    Return the hops of rings grouped by latency, with hops inside NVLink domains separate.

    Parameters
    ----------
    groups
        GPUs of each group, shape ``(n, groups, members)``.
    source, target, rate, shared
        Hosts of each hop, bandwidth of a flow (infinite without a hop), and total flows, shape ``(n, groups,
        members)``.
    num_hosts, members
        Number of hosts of each group, and members on the host with the fewest, shape ``(n, groups)``; see
        ``ring_hops``. With ``messages``, one member.
    """
    from pipette_opt.costs._flows import ring_hops

    domain = cluster.domain_of_node
    of_domain = members
    if cluster.most_in_domain > 1 and not messages:
        *_, of_domain = ring_hops(np.ascontiguousarray(domain[groups]), cluster.num_nodes)
    near, latency_s = domain[source] == domain[target], cluster.pair_latency_s[source, target]
    hop = ~np.isinf(rate)
    found = []
    if (near & hop).any():
        found.append(RingHops(np.where(near, rate, np.inf).min(axis=2), members, in_domain=True))
    leaves = hop & ~near
    different = np.unique(latency_s[leaves]).tolist()
    if len(different) <= rate.shape[2]:
        for latency in different:
            alike = leaves & (latency_s == latency)
            found.append(RingHops(np.where(alike, rate, np.inf).min(axis=2), of_domain, latency))
    else:  # then one hop after the other is less work
        for place in range(rate.shape[2]):
            pace = np.where(leaves[..., place], rate[..., place], np.inf)
            found.append(RingHops(pace, of_domain, latency_s[..., place]))
    return tuple(found)


def gpu_numbers(cluster: ClusterSpec, nodes: IntArray, local_ranks: IntArray) -> IntArray:
    """Return a number for each rank's GPU; the number of its host if links of single GPUs are not known."""
    return nodes if cluster.gpu_links is None else nodes * cluster.gpus_per_node + local_ranks


def host_of(cluster: ClusterSpec, gpus: IntArray) -> IntArray:
    """Return the hosts of GPUs numbered by :func:`gpu_numbers`."""
    return gpus if cluster.gpu_links is None else gpus // cluster.gpus_per_node


def in_groups(ranks: IntArray, groups: int, *, outer: bool) -> IntArray:
    """
    Return each ring cut into equal consecutive rings; with ``outer``, rings over members at equal places of these
    parts.

    Parameters
    ----------
    ranks
        Members of ``rings`` rings with ``size`` members each, shape ``(n, rings, size)``.
    groups
        Number of parts of each ring, a divisor of its members.

    Returns
    -------
    Shape ``(n, rings * groups, size / groups)``; with ``outer``, ``(n, rings * size / groups, groups)``.
    """
    n, rings, size = ranks.shape
    parts = ranks.reshape(n, rings, groups, size // groups)
    if outer:
        return parts.swapaxes(2, 3).reshape(n, -1, groups)
    return parts.reshape(n, -1, size // groups)


def slot_rates(cluster: ClusterSpec, here: IntArray, target: IntArray) -> FloatArray:
    """
    Return the bandwidth that slots allow concurrent messages between GPUs, bytes/s, shape ``(sets, messages)``.

    Infinite if links of single GPUs are not known.
    """
    if cluster.gpu_links is None:
        return np.full(here.shape, np.inf)
    from pipette_opt.costs._slots import message_rates

    links = cluster.gpu_links
    ends = np.ascontiguousarray(here), np.ascontiguousarray(target)
    rates: FloatArray = message_rates(*ends, links.kinds, link_arrays(links))
    return rates


def link_arrays(links: GpuLinks) -> tuple[FloatArray, IntArray, FloatArray, IntArray]:
    """
    Return link arrays for compiled functions.

    Ring bandwidths by host type, type of each host, links between hosts (may be empty), and NIC of each slot.
    """
    between = np.zeros((0, 0, 0, 0)) if links.between is None else links.between
    return links.ring_bytes_per_s, links.kind_of_node, between, links.nic_of_slot


def fabric_of(cluster: ClusterSpec, gpus: IntArray) -> FloatArray | None:
    """
    Return the longest time of a member to send a byte to each other member on its host, seconds, ``(n, groups)``.

    ``None`` if links of single GPUs are not known.
    """
    if cluster.gpu_links is None:
        return None
    from pipette_opt.costs._slots import fabric_s_per_byte

    links = cluster.gpu_links
    seconds: FloatArray = fabric_s_per_byte(gpus, links.kinds, link_arrays(links))
    return seconds


def slowest_share(cluster: ClusterSpec) -> FloatArray | float:
    """Return the rate of the slowest pair of GPUs of two hosts over the fastest: an all-to-all uses every pair."""
    if cluster.gpu_links is None or cluster.gpu_links.between is None:
        return 1.0
    between = cluster.gpu_links.between
    share: FloatArray = between.min(axis=(1, 3)) / between.max(axis=(1, 3))
    return share


def _ring_rates(
    links: GpuLinks, gpus: IntArray, source: IntArray, target: IntArray, num_hosts: IntArray, members: IntArray
) -> tuple[FloatArray, FloatArray]:
    """Return the bandwidth that slots allow rings between and inside hosts, bytes/s, shape ``(n, groups)`` each."""
    from pipette_opt.costs._slots import ring_rates

    across, inside = ring_rates(gpus, source, target, num_hosts, members, link_arrays(links))
    return across, inside


def spread(traffic: RingArrays, num_axes: int) -> RingArrays:
    """Return the traffic with ``num_axes`` further axes of length 1 at the end."""
    return RingArrays(*(values.reshape(values.shape + (1,) * num_axes) for values in traffic))


def flow_rates(cluster: ClusterSpec, source: IntArray, target: IntArray, flows: IntArray) -> FloatArray:
    """Return bytes/s of one of ``flows`` flows from host to host, infinite for 0 flows; arrays of one shape."""
    rates = np.full(flows.shape, np.inf)
    used_places = np.flatnonzero(flows)
    if not len(used_places):
        return rates
    counts = flows.ravel()[used_places]
    used = np.flatnonzero(np.bincount(counts))
    table = np.stack([cluster.pair_bytes_per_s(int(count)) / count for count in used])
    rates.ravel()[used_places] = table[
        np.searchsorted(used, counts), source.ravel()[used_places], target.ravel()[used_places]
    ]
    return rates

"""
Price of rings, hierarchies and trees of ranks over links: those of placed ranks, the best there are, or none.

:meth:`Rings.time_s` is the only place where hops become seconds. Links say which hops a collective has:

- :class:`~pipette_opt.costs.placed_links.PlacedLinks`: the hops of placed ranks.
- :class:`EachLink`: each pair of hosts in turn as the slowest hop.
- :class:`BestLinks`: the fastest hops that any placement has, a lower bound.
- :class:`NoLinks`: no hop between hosts, so that what happens inside hosts remains.

The last three need no placement, only a :class:`RingShape`.
"""

from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np

from pipette_opt.base.types import Collective, FloatArray, IntArray
from pipette_opt.costs.best_rings import best_ring_rates
from pipette_opt.costs.collectives import (
    RingArrays,
    RingTraffic,
    across_s,
    domain_s,
    hierarchical_s,
    hosts_of_a_domain,
    inside_s,
    stacked,
    tree_s,
)
from pipette_opt.specs import DEFAULT_STACK, ClusterSpec, StackSpec


class RingHops(NamedTuple):
    """
    Hops between hosts with equal latency; arrays have one shape, such as ``(n, groups)`` for placed groups.

    Parameters
    ----------
    pace
        Bandwidth of a flow over the slowest of these hops, bytes per second, infinite without one; for trees, seconds
        of a host per byte.
    flows
        Number of flows that the group opens over each hop.
    latency_s
        Latency of a message, one number or one for each group, seconds; ``None``: the latency between hosts.
    in_domain
        Whether the hops stay in an NVLink domain.
    """

    pace: FloatArray
    flows: IntArray | int
    latency_s: FloatArray | float | None = None
    in_domain: bool = False


class Rings(NamedTuple):
    """
    Collectives over known hops, with arrays of the shape of the hops.

    ``num_hosts``: hosts of each group. ``members``: fewest members on one of its hosts. ``inside_bytes_per_s``:
    bandwidth of the slowest hop inside a host.
    """

    cluster: ClusterSpec
    stack: StackSpec
    algorithm: Collective
    inside_bytes_per_s: FloatArray | float
    num_hosts: IntArray
    members: IntArray
    hops: tuple[RingHops, ...]

    def time_s(self, traffic: RingArrays) -> FloatArray:
        """Return the time of the collectives, seconds; ``traffic`` broadcasts to the shape of the hops."""
        cluster, stack, fabric = self.cluster, self.stack, self.inside_bytes_per_s
        inside = np.where(self.members > 1, inside_s(cluster, traffic, fabric, stack), 0.0)
        several = self.num_hosts > 1
        times = {"ring": across_s, "hierarchical": hierarchical_s, "tree": tree_s}[self.algorithm]
        hosts = np.where(several, self.num_hosts, 2)  # unused entries must be defined, too
        shown: FloatArray = inside if self.algorithm == "ring" else np.where(several, 0.0, inside)
        for hops in self.hops:
            flows = np.asarray(hops.flows)
            if hops.in_domain:
                across = domain_s(cluster, traffic, hops.pace * flows, fabric, flows, stack)
            else:
                across = times(cluster, traffic, hops.pace, fabric, flows, hosts, stack, hops.latency_s)
            shown = np.maximum(shown, np.where(several & ~np.isinf(hops.pace), across, 0.0))
        return shown


class LeastRings(NamedTuple):
    """
    Lower bound on collectives that may go any of several ways: the fastest counts.

    ``ways``: collectives with one set of hops each, with infinite pace where a group cannot go that way. ``inside``:
    the part inside hosts, which counts for groups without a way.
    """

    ways: tuple[Rings, ...]
    inside: Rings

    @property
    def num_hosts(self) -> IntArray:
        """Number of hosts of each group."""
        return self.inside.num_hosts

    def time_s(self, traffic: RingArrays) -> FloatArray:
        """Return the least time of the collectives, seconds; ``traffic`` broadcasts to the shape of the hops."""
        inside = self.inside.time_s(traffic)
        least = np.full(inside.shape, np.inf)
        for way in self.ways:
            (hops,) = way.hops
            least = np.minimum(least, np.where(np.isinf(hops.pace), np.inf, way.time_s(traffic)))
        return np.where(np.isinf(least), inside, least)


class RingShape(NamedTuple):
    """
    Hosts and ranks of a ring, wherever its hosts are.

    Parameters
    ----------
    members
        Number of ranks of the ring on each host.
    num_flows
        Number of all concurrent flows over a hop between hosts, those of other rings included.
    num_rings
        Number of rings of this shape that run concurrently over disjoint hosts.
    messages
        Whether each rank sends to the next, so that a single flow leaves each host; a collective opens a flow for each
        member there.
    """

    members: int
    num_hosts: int = 1
    num_flows: int = 1
    num_rings: int = 1
    messages: bool = False

    @property
    def flows(self) -> int:
        """Number of flows that the ring opens over a hop between hosts."""
        return 1 if self.messages else self.members


class Links(Protocol):
    """Links that price a collective without a placement."""

    def ring_s(self, shape: RingShape, traffic: RingTraffic, algorithm: Collective = "ring") -> FloatArray:
        """Return the time of a ring, or of a hierarchy, seconds; the implementation says for which hops."""
        ...


@dataclass(frozen=True, slots=True)
class NoLinks:
    """Links between hosts that take no time: the part of a ring inside a host remains."""

    cluster: ClusterSpec
    stack: StackSpec = DEFAULT_STACK

    def ring_s(self, shape: RingShape, traffic: RingTraffic, algorithm: Collective = "ring") -> FloatArray:
        """
        Return the time inside a host, seconds, shape ``(1,)``.

        It is 0 for a hierarchy over several hosts, whose phases inside send less than a ring.
        """
        if shape.members == 1 or (shape.num_hosts > 1 and algorithm != "ring"):
            return np.zeros(1)
        return inside_s(self.cluster, stacked([traffic]), self.cluster.inside_bytes_per_s(shape.members), self.stack)


@dataclass(frozen=True, slots=True)
class EachLink:
    """Each pair of hosts as the slowest hop of a ring."""

    cluster: ClusterSpec
    stack: StackSpec = DEFAULT_STACK

    def ring_s(self, shape: RingShape, traffic: RingTraffic, algorithm: Collective = "ring") -> FloatArray:
        """
        Return the time of a ring whose slowest hop is from host i to j, seconds, ``(num_nodes, num_nodes)``; NaN if
        unmeasured.

        For a ring over several NVLink domains, the time is a lower bound: as many hosts in each domain as possible.
        """
        cluster = self.cluster
        flow, latency_s = cluster.pair_bytes_per_s(shape.num_flows) / shape.num_flows, cluster.pair_latency_s
        if cluster.most_in_domain == 1:
            hops: tuple[RingHops, ...] = (RingHops(flow, shape.flows, latency_s),)
            return _time_s(cluster, self.stack, shape, hops, traffic, algorithm)
        near = cluster.domain_of_node[:, None] == cluster.domain_of_node
        flows = shape.flows * (1 if shape.messages else hosts_of_a_domain(cluster, shape.num_hosts))
        inside = RingHops(np.where(near, flow, np.inf), shape.flows, in_domain=True)
        times = np.full(near.shape, np.inf)
        for opened in (shape.flows, flows):  # more flows are faster, but cap the ring at the rate inside hosts
            hops = (inside, RingHops(np.where(near, np.inf, flow), opened, latency_s))
            times = np.minimum(times, _time_s(cluster, self.stack, shape, hops, traffic, algorithm))
        if shape.num_hosts > cluster.most_in_domain:  # then some hop goes to another domain
            times = np.where(near, np.maximum(times, np.nanmin(times[~near], initial=np.inf)), times)
        return times


@dataclass(frozen=True, slots=True)
class BestLinks:
    """
    Fastest links that rings of a shape can have in any placement.

    Parameters
    ----------
    most_bytes_per_s
        Upper limit on the total rate of all flows over the slowest hop of every ring.
    """

    cluster: ClusterSpec
    stack: StackSpec = DEFAULT_STACK
    most_bytes_per_s: float = np.inf

    def ring_s(self, shape: RingShape, traffic: RingTraffic, algorithm: Collective = "ring") -> FloatArray:
        """
        Return lower bounds on the time of concurrent rings, seconds, shape ``(num_scenarios * num_rings,)``.

        Every placement has the times of one scenario or longer ones (:func:`best_ring_rates`); scenarios follow each
        other, with their fastest ring first. A single bound stands for all rings if they are equal. A ring that the
        measured links have no room for takes only the part inside hosts.
        """
        cluster = self.cluster
        if shape.num_hosts == 1:
            return NoLinks(cluster, self.stack).ring_s(shape, traffic, algorithm)
        if cluster.most_in_domain > 1:
            times = EachLink(cluster, self.stack).ring_s(shape, traffic, algorithm)
            if np.isfinite(times).any():
                return np.array([times[np.isfinite(times)].min()])
            return NoLinks(cluster, self.stack).ring_s(shape, traffic, algorithm)
        rates = best_ring_rates(cluster, shape.num_flows, shape.num_hosts, shape.num_rings).reshape(-1)
        rates = np.where(rates > 0, np.minimum(rates, self.most_bytes_per_s), np.inf)
        if rates.min() == rates.max():
            rates = rates[:1]
        hops = (RingHops(rates / shape.num_flows, shape.flows, cluster.least_latency_s),)
        return _time_s(cluster, self.stack, shape, hops, traffic, algorithm)


def _time_s(
    cluster: ClusterSpec,
    stack: StackSpec,
    shape: RingShape,
    hops: tuple[RingHops, ...],
    traffic: RingTraffic,
    algorithm: Collective,
) -> FloatArray:
    """Return the time of rings of a shape over these hops, seconds."""
    inside, sizes = cluster.inside_bytes_per_s(shape.members), (np.array(shape.num_hosts), np.array(shape.members))
    return Rings(cluster, stack, algorithm, inside, *sizes, hops).time_s(stacked([traffic]))

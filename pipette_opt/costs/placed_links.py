"""Rings and trees of placed groups over the links that they share."""

from typing import NamedTuple

import numpy as np

from pipette_opt.base.types import Collective, FloatArray, IntArray
from pipette_opt.costs.collectives import (
    RingArrays,
    across_s,
    hierarchical_s,
    inside_s,
    tree_edges,
    tree_s,
)
from pipette_opt.costs.times import MissingLink
from pipette_opt.specs import ClusterSpec, Instance


class PlacedLinks:
    """
    The links that placements use.

    Parameters
    ----------
    missing
        Of each placement that uses a link which was not measured the first one.
    """

    def __init__(self, instance: Instance) -> None:
        self.instance = instance
        self.missing: dict[int, MissingLink] = {}

    def rings(self, groups: IntArray, who: str, algorithm: Collective = "ring") -> "PlacedRings":
        """Rings over the hosts of groups, shape ``(n, groups, members)``; those of one placement run at once."""
        from pipette_opt.costs._flows import ring_hops

        source, target, shared, num_hosts, members = ring_hops(
            np.ascontiguousarray(groups), self.instance.cluster.num_nodes
        )
        if algorithm == "tree":
            return PlacedRings(
                self.instance, algorithm, self._host_loads(source, num_hosts, members, who), num_hosts, members
            )
        rate = flow_rates(self.instance.cluster, source, target, shared)
        self.note_missing(who, rate, source, target)
        return PlacedRings(self.instance, algorithm, rate.min(axis=2), num_hosts, members)

    def _host_loads(self, hosts: IntArray, num_hosts: IntArray, members: IntArray, who: str) -> FloatArray:
        """
        Of double trees over the hosts of groups, in order: the longest a host takes for its part of a byte.

        ``hosts``, shape ``(n, groups, members)``, holds ``num_hosts`` of each group; the trees of one placement run at
        once. Shape ``(n, groups)``, zero for a single host; NaN if an edge was not measured.
        """
        cluster, loads = self.instance.cluster, np.zeros(num_hosts.shape)
        for one in range(len(hosts)):
            flows, ends = np.zeros((cluster.num_nodes,) * 2, dtype=np.int64), []
            for group, count in enumerate(num_hosts[one].tolist()):
                edges = hosts[one, group, tree_edges(count)] if count > 1 else np.zeros((0, 2), dtype=np.int64)
                both = np.concatenate([edges, edges[:, ::-1]])  # up when reducing, down when broadcasting
                once = np.unique(both, axis=0)  # both trees may use a pair; what they send over it follows in turn
                flows[once[:, 0], once[:, 1]] += members[one, group]
                ends.append(both)
            for group, both in enumerate(ends):
                rate = flow_rates(cluster, both[:, 0], both[:, 1], flows[both[:, 0], both[:, 1]])
                self.note_missing(who, rate[None], both[None, :, 0], both[None, :, 1], one)
                out, into = np.zeros(cluster.num_nodes), np.zeros(cluster.num_nodes)
                np.add.at(out, both[:, 0], 0.5 / rate)
                np.add.at(into, both[:, 1], 0.5 / rate)
                loads[one, group] = max(out.max(), into.max())
        return loads

    def note_missing(self, who: str, rate: FloatArray, source: IntArray, target: IntArray, first: int = 0) -> None:
        """Remember the first link of each placement, from ``first`` on, that was not measured."""
        for place in np.argwhere(np.isnan(rate)):
            at = tuple(place)
            self.missing.setdefault(first + int(at[0]), MissingLink(who, int(source[at]), int(target[at])))


class PlacedRings(NamedTuple):
    """
    Collectives of placements: hosts and own flows of each group, shape ``(n, groups)``.

    ``pace``: what a flow gets over the slowest hop, bytes per second; of trees what a host takes for a byte.
    """

    instance: Instance
    algorithm: Collective
    pace: FloatArray
    num_hosts: IntArray
    members: IntArray

    def time_s(self, traffic: RingArrays) -> FloatArray:
        """Seconds, shape ``(n, groups)``; ``traffic`` broadcasts to it."""
        cluster, stack = self.instance.cluster, self.instance.stack
        inside = np.where(self.members > 1, inside_s(cluster, traffic, stack), 0.0)
        several = self.num_hosts > 1
        times = {"ring": across_s, "hierarchical": hierarchical_s, "tree": tree_s}[self.algorithm]
        hosts = np.where(several, self.num_hosts, 2)  # what is not used must be defined, too
        across = times(cluster, traffic, self.pace, self.members, hosts, stack)
        shown: FloatArray = np.where(several, across, inside)
        return np.maximum(inside, shown) if self.algorithm == "ring" else shown


def spread(traffic: RingArrays, num_axes: int) -> RingArrays:
    """The same with further axes behind."""
    return RingArrays(*(values.reshape(values.shape + (1,) * num_axes) for values in traffic))


def flow_rates(cluster: ClusterSpec, source: IntArray, target: IntArray, flows: IntArray) -> FloatArray:
    """Bytes per second of one of ``flows`` flows from host to host, infinite if there are none; arrays of one shape."""
    rates = np.full(flows.shape, np.inf)
    some = np.flatnonzero(flows)
    if not len(some):
        return rates
    counts = flows.ravel()[some]
    used = np.flatnonzero(np.bincount(counts))
    table = np.stack([cluster.pair_bytes_per_s(int(one)) / one for one in used])
    rates.ravel()[some] = table[np.searchsorted(used, counts), source.ravel()[some], target.ravel()[some]]
    return rates

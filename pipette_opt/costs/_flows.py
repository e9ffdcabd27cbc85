"""Compiled counts of flows that share a host pair; imported only when something is placed, as numba loads slowly."""

from typing import Any

import numpy as np

from pipette_opt.jit import njit


@njit(cache=True)
def message_flows(here: Any, there: Any, num_nodes: int) -> Any:
    """
    Messages that go from the same host to the same host at once, itself included.

    ``here`` and ``there``: hosts of senders and receivers, shape ``(sets, messages)``; those of one set go at once.
    """
    counts = np.zeros((num_nodes, num_nodes), dtype=np.int64)
    flows = np.empty(here.shape, dtype=np.int64)
    for one in range(here.shape[0]):
        for message in range(here.shape[1]):
            counts[here[one, message], there[one, message]] += 1
        for message in range(here.shape[1]):
            flows[one, message] = counts[here[one, message], there[one, message]]
        for message in range(here.shape[1]):
            counts[here[one, message], there[one, message]] = 0
    return flows


@njit(cache=True)
def ring_hops(groups: Any, num_nodes: int) -> Any:
    """
    Rings over the hosts of groups, in order of first appearance.

    ``groups``: hosts of the members in rank order, shape ``(sets, groups, members)``; the rings of one set run at once.

    Returns
    -------
    tuple
        Source, target and flows in sum of each hop between hosts (0 flows: no hop), shape ``(sets, groups, members)``;
        hosts of each ring, and members on the host that has the fewest: the flows that it opens, ``(sets, groups)``.
    """
    sets, num_groups, size = groups.shape
    source, target = np.zeros(groups.shape, dtype=np.int64), np.zeros(groups.shape, dtype=np.int64)
    shared = np.zeros(groups.shape, dtype=np.int64)
    num_hosts, members = np.zeros((sets, num_groups), dtype=np.int64), np.zeros((sets, num_groups), dtype=np.int64)
    on_host = np.zeros(num_nodes, dtype=np.int64)
    flows = np.zeros((num_nodes, num_nodes), dtype=np.int64)
    for one in range(sets):
        for group in range(num_groups):
            hosts = 0
            for member in range(size):
                host = groups[one, group, member]
                if on_host[host] == 0:
                    source[one, group, hosts] = host
                    hosts += 1
                on_host[host] += 1
            fewest = size
            for hop in range(hosts):
                fewest = min(fewest, on_host[source[one, group, hop]])
                on_host[source[one, group, hop]] = 0
            num_hosts[one, group], members[one, group] = hosts, fewest
            for hop in range(hosts if hosts > 1 else 0):
                to = source[one, group, (hop + 1) % hosts]
                target[one, group, hop] = to
                flows[source[one, group, hop], to] += fewest
        for group in range(num_groups):
            for hop in range(num_hosts[one, group] if num_hosts[one, group] > 1 else 0):
                shared[one, group, hop] = flows[source[one, group, hop], target[one, group, hop]]
        for group in range(num_groups):
            for hop in range(num_hosts[one, group]):
                flows[source[one, group, hop], target[one, group, hop]] = 0
    return source, target, shared, num_hosts, members

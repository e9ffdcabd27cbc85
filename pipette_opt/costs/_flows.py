"""Compiled counts of flows that share a host pair; imported only when something is placed, as numba loads slowly."""

from typing import Any

import numpy as np

from pipette_opt.base.jit import njit


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
def ring_hops(groups: Any, num_nodes: int, messages: bool = False) -> Any:
    """
    Rings over the hosts of groups, in order of first appearance.

    ``groups``: hosts of the members in rank order, shape ``(sets, groups, members)``; the rings of one set run at once.
    ``messages``: each member sends to the next one, so that one flow leaves each host, not one of each member there.

    Returns
    -------
    tuple
        Source, target and flows in sum of each hop between hosts (0 flows: no hop), shape ``(sets, groups, members)``;
        hosts of each ring, and members on the host that has the fewest: the flows that a collective opens, ``(sets,
        groups)``.
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
                flows[source[one, group, hop], to] += 1 if messages else fewest
        for group in range(num_groups):
            for hop in range(num_hosts[one, group] if num_hosts[one, group] > 1 else 0):
                shared[one, group, hop] = flows[source[one, group, hop], target[one, group, hop]]
        for group in range(num_groups):
            for hop in range(num_hosts[one, group]):
                flows[source[one, group, hop], target[one, group, hop]] = 0
    return source, target, shared, num_hosts, members


@njit(cache=True)
def exchanging_ranks(groups: Any, domain: Any) -> Any:
    """
    Ranks on each host that send tokens to hosts of other NVLink domains, shape ``(sets, num_nodes)``.

    ``groups``: hosts of the members of all-to-alls, shape ``(sets, groups, members)``; those of one set run at once.
    ``domain``: of each host.
    """
    ranks = np.zeros((groups.shape[0], len(domain)), dtype=np.int64)
    for one in range(groups.shape[0]):
        for group in range(groups.shape[1]):
            spans = False
            for member in range(1, groups.shape[2]):
                spans |= domain[groups[one, group, member]] != domain[groups[one, group, 0]]
            for member in range(groups.shape[2] if spans else 0):
                ranks[one, groups[one, group, member]] += 1
    return ranks


@njit(cache=True)
def exchange_loads(
    groups: Any, ranks: Any, row_of_count: Any, rates: Any, domain: Any, near: Any, shares: Any, hands_on: bool
) -> Any:
    """
    What all-to-alls take if every rank sends one byte to every other of its group.

    Pairs of hosts take turns with a host's NICs: what a host sends to each other one takes its bytes over what all its
    sending ranks attain there. Inside an NVLink domain each rank sends through a port of its own, to one after the
    other.

    ``ranks``: of :func:`exchanging_ranks`. ``rates``: of a pair of hosts for some numbers of flows, shape ``(rows,
    num_nodes, num_nodes)``, NaN where nothing was measured; ``row_of_count``: the row of a number of flows. ``near``:
    of one flow, inside a host on the diagonal; read only inside NVLink ``domain`` s. ``shares``: part of the bytes for
    so many members of one place that is sent there, a domain or a rank; ``hands_on``: whether what comes from other
    domains goes to its rank through another one's port.

    Returns
    -------
    tuple
        Seconds until each group's busiest host has sent and received what all groups have for it through NICs,
        ``(sets, groups)``; the same of its busiest rank through its port, for all copies that its own domain gets; the
        bytes through a port, over those; whether the group spans NVLink domains; and of each set the first pair of
        hosts that was not measured, or -1, shape ``(sets, 2)``.
    """
    sets, num_groups, size = groups.shape
    nodes = ranks.shape[1]
    loads, ports, inside = np.zeros((sets, num_groups)), np.zeros((sets, num_groups)), np.zeros((sets, num_groups))
    spans = np.zeros((sets, num_groups), dtype=np.bool_)
    missing = np.full((sets, 2), -1, dtype=np.int64)
    counts, together = np.zeros(nodes, dtype=np.int64), np.zeros(nodes, dtype=np.int64)
    hosts = np.zeros(size, dtype=np.int64)
    out, into = np.zeros(nodes), np.zeros(nodes)
    for one in range(sets):
        for again in range(2):  # first all that is sent, then the busiest host of each group
            for group in range(num_groups):
                found = 0
                for member in range(size):
                    host = groups[one, group, member]
                    if counts[host] == 0:
                        hosts[found] = host
                        found += 1
                    counts[host] += 1
                    together[domain[host]] += 1
                for place in range(found):
                    here = hosts[place]
                    if again == 1:
                        if spans[one, group]:
                            loads[one, group] = max(loads[one, group], out[here], into[here])
                        continue
                    port = (counts[here] - 1) / near[here, here]
                    for other in range(found):
                        there = hosts[other]
                        if there == here:
                            continue
                        if domain[there] == domain[here]:
                            port += counts[there] / min(near[here, there], near[there, here])
                            continue
                        spans[one, group] = True
                        row = row_of_count[min(ranks[one, here], ranks[one, there])]
                        rate = rates[row, here, there]
                        if np.isnan(rate) and missing[one, 0] < 0:
                            missing[one, 0], missing[one, 1] = here, there
                        sent = counts[here] * counts[there] * shares[together[domain[there]]]
                        out[here] += sent / rate
                        into[there] += sent / rate
                    through = size / together[domain[here]] if hands_on else 1.0
                    ports[one, group] = max(ports[one, group], port)
                    inside[one, group] = max(inside[one, group], shares[1] * through)
                for place in range(found):
                    counts[hosts[place]] = together[domain[hosts[place]]] = 0
        if missing[one, 0] >= 0:
            loads[one, :] = np.nan
        for host in range(nodes):
            out[host] = into[host] = 0.0
    return loads, ports, inside, spans, missing

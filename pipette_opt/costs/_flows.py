"""Compiled counts of flows that share a pair of hosts; imported only for placements, as numba loads slowly."""

from typing import Any

import numpy as np

from pipette_opt.base.jit import njit


@njit(cache=True)
def message_flows(senders: Any, receivers: Any, num_nodes: int) -> Any:
    """
    Return for each message the number of concurrent messages between its two hosts, itself included.

    ``senders`` and ``receivers``: hosts, shape ``(sets, messages)``; the messages of one set run concurrently.
    """
    counts = np.zeros((num_nodes, num_nodes), dtype=np.int64)
    flows = np.empty(senders.shape, dtype=np.int64)
    for index in range(senders.shape[0]):
        for message in range(senders.shape[1]):
            counts[senders[index, message], receivers[index, message]] += 1
        for message in range(senders.shape[1]):
            flows[index, message] = counts[senders[index, message], receivers[index, message]]
        for message in range(senders.shape[1]):
            counts[senders[index, message], receivers[index, message]] = 0
    return flows


@njit(cache=True)
def ring_hops(groups: Any, num_nodes: int, messages: bool = False) -> Any:
    """
    Return the rings over the hosts of groups of ranks, with hosts in order of first appearance.

    ``groups``: hosts of the members in rank order, shape ``(sets, groups, members)``; the rings of one set run
    concurrently. ``messages``: each member sends to the next, so that a single flow leaves each host, not one for each
    member there.

    Returns
    -------
    tuple
        Source, target and total flows of each hop between hosts (0 flows: no hop), shape ``(sets, groups, members)``.
        Number of hosts of each ring, and fewest members on one of its hosts, which is the number of flows that a
        collective opens, shape ``(sets, groups)``.
    """
    sets, num_groups, size = groups.shape
    source, target = np.zeros(groups.shape, dtype=np.int64), np.zeros(groups.shape, dtype=np.int64)
    shared = np.zeros(groups.shape, dtype=np.int64)
    num_hosts, members = np.zeros((sets, num_groups), dtype=np.int64), np.zeros((sets, num_groups), dtype=np.int64)
    on_host = np.zeros(num_nodes, dtype=np.int64)
    flows = np.zeros((num_nodes, num_nodes), dtype=np.int64)
    for index in range(sets):
        for group in range(num_groups):
            hosts = 0
            for member in range(size):
                host = groups[index, group, member]
                if on_host[host] == 0:
                    source[index, group, hosts] = host
                    hosts += 1
                on_host[host] += 1
            fewest = size
            for hop in range(hosts):
                fewest = min(fewest, on_host[source[index, group, hop]])
                on_host[source[index, group, hop]] = 0
            num_hosts[index, group], members[index, group] = hosts, fewest
            for hop in range(hosts if hosts > 1 else 0):
                to = source[index, group, (hop + 1) % hosts]
                target[index, group, hop] = to
                flows[source[index, group, hop], to] += 1 if messages else fewest
        for group in range(num_groups):
            for hop in range(num_hosts[index, group] if num_hosts[index, group] > 1 else 0):
                shared[index, group, hop] = flows[source[index, group, hop], target[index, group, hop]]
        for group in range(num_groups):
            for hop in range(num_hosts[index, group]):
                flows[source[index, group, hop], target[index, group, hop]] = 0
    return source, target, shared, num_hosts, members


@njit(cache=True)
def exchanging_ranks(groups: Any, domain: Any) -> Any:
    """
    Return the number of ranks on each host that send tokens to other NVLink domains, shape ``(sets, num_nodes)``.

    ``groups``: hosts of the members of all-to-alls, shape ``(sets, groups, members)``; those of one set run
    concurrently. ``domain``: NVLink domain of each host.
    """
    ranks = np.zeros((groups.shape[0], len(domain)), dtype=np.int64)
    for index in range(groups.shape[0]):
        for group in range(groups.shape[1]):
            spans = False
            for member in range(1, groups.shape[2]):
                spans |= domain[groups[index, group, member]] != domain[groups[index, group, 0]]
            for member in range(groups.shape[2] if spans else 0):
                ranks[index, groups[index, group, member]] += 1
    return ranks


@njit(cache=True)
def exchange_loads(
    groups: Any, ranks: Any, row_of_count: Any, rates: Any, domain: Any, near: Any, shares: Any, hands_on: bool
) -> Any:
    """
    Return the loads of all-to-alls in which every rank sends one byte to every other rank of its group.

    Pairs of hosts take turns with a host's NICs: a host sends its bytes to each other host at the rate of all its
    sending ranks together. Inside an NVLink domain, each rank sends through a port of its own, to one peer after the
    other.

    ``ranks``: from :func:`exchanging_ranks`. ``rates``: bytes/s of a pair of hosts for several numbers of flows, shape
    ``(rows, num_nodes, num_nodes)``, NaN if unmeasured. ``row_of_count``: row of ``rates`` for each number of flows.
    ``near``: bytes/s of one flow, inside a host on the diagonal; read only inside an NVLink ``domain``. ``shares``:
    fraction of the bytes that is sent, by the number of members in one place (a domain or a rank). ``hands_on``:
    whether tokens from other domains reach their rank through another rank's port.

    Returns
    -------
    tuple
        Seconds until each group's busiest host has sent and received the bytes of all groups through NICs, ``(sets,
        groups)``. Seconds of its busiest rank's port, for all copies inside its own domain. Bytes through a port over
        those copies. Whether the group spans NVLink domains. For each set, the first unmeasured pair of hosts, or -1,
        shape ``(sets, 2)``.
    """
    sets, num_groups, size = groups.shape
    nodes = ranks.shape[1]
    loads, ports, inside = np.zeros((sets, num_groups)), np.zeros((sets, num_groups)), np.zeros((sets, num_groups))
    spans = np.zeros((sets, num_groups), dtype=np.bool_)
    missing = np.full((sets, 2), -1, dtype=np.int64)
    counts, together = np.zeros(nodes, dtype=np.int64), np.zeros(nodes, dtype=np.int64)
    hosts = np.zeros(size, dtype=np.int64)
    out, into = np.zeros(nodes), np.zeros(nodes)
    for index in range(sets):
        for again in range(2):  # first the sent bytes, then the busiest host of each group
            for group in range(num_groups):
                found = 0
                for member in range(size):
                    host = groups[index, group, member]
                    if counts[host] == 0:
                        hosts[found] = host
                        found += 1
                    counts[host] += 1
                    together[domain[host]] += 1
                for place in range(found):
                    here = hosts[place]
                    if again == 1:
                        if spans[index, group]:
                            loads[index, group] = max(loads[index, group], out[here], into[here])
                        continue
                    port = (counts[here] - 1) / near[here, here]
                    for other in range(found):
                        peer = hosts[other]
                        if peer == here:
                            continue
                        if domain[peer] == domain[here]:
                            port += counts[peer] / min(near[here, peer], near[peer, here])
                            continue
                        spans[index, group] = True
                        row = row_of_count[min(ranks[index, here], ranks[index, peer])]
                        rate = rates[row, here, peer]
                        if np.isnan(rate) and missing[index, 0] < 0:
                            missing[index, 0], missing[index, 1] = here, peer
                        sent = counts[here] * counts[peer] * shares[together[domain[peer]]]
                        out[here] += sent / rate
                        into[peer] += sent / rate
                    through = size / together[domain[here]] if hands_on else 1.0
                    ports[index, group] = max(ports[index, group], port)
                    inside[index, group] = max(inside[index, group], shares[1] * through)
                for place in range(found):
                    counts[hosts[place]] = together[domain[hosts[place]]] = 0
        if missing[index, 0] >= 0:
            loads[index, :] = np.nan
        for host in range(nodes):
            out[host] = into[host] = 0.0
    return loads, ports, inside, spans, missing

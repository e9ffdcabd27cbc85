"""
Compiled rates of flows between single GPUs; imported only if links of single GPUs are known.

A GPU is ``host * slots + slot``. A ring with ``q`` members on each host opens ``q`` flows to the next host, which leave
and enter at ``q`` slots: equal slots of both hosts first (NCCL keeps a channel on its rail), then the others in
ascending order. Flows of one pair of hosts that share a NIC at one end share its rate equally.
"""

from typing import Any

import numpy as np

from pipette_opt.base.jit import njit


@njit(cache=True)
def ring_rates(gpus: Any, sources: Any, targets: Any, num_hosts: Any, members: Any, links: Any) -> Any:
    """
    Return the bandwidth that the slots of its GPUs allow each ring; the rings of one set run concurrently.

    ``gpus``: GPUs of the members, shape ``(sets, groups, members)``. ``sources``, ``targets``, ``num_hosts``,
    ``members``: hops from :func:`~pipette_opt.costs._flows.ring_hops`. ``links``: from :func:`link_arrays`.

    Returns
    -------
    tuple
        Bytes per second of one flow over the slowest hop between hosts, infinite without such a hop. Bytes per second
        of the slowest hop inside a host, for the best ring through its members. Shape ``(sets, groups)`` each.
    """
    rings, kind_of_node, between, nic_of_slot = links
    slots, nodes, has_between = len(nic_of_slot), len(kind_of_node), len(between) > 0
    sets, groups, size = gpus.shape
    across, inside = np.full((sets, groups), np.inf), np.full((sets, groups), np.inf)
    nics = nic_of_slot.max() + 1
    wide = nodes if has_between else 0
    leaving = np.zeros((wide, wide, nics), dtype=np.int64)  # flows of a pair of hosts through a NIC of the first
    entering = np.zeros((wide, wide, nics), dtype=np.int64)  # and of the second
    set_of = np.zeros(nodes, dtype=np.int64)
    first, second = np.zeros(slots, dtype=np.int64), np.zeros(slots, dtype=np.int64)
    for index in range(sets):
        for phase in range(3):  # count the flows, look at their rates, forget the counts
            for group in range(groups):
                if phase == 2 and not has_between:
                    break
                for member in range(size):
                    gpu = gpus[index, group, member]
                    set_of[gpu // slots] |= 1 << (gpu % slots)
                if phase == 1:
                    for member in range(size):
                        host = gpus[index, group, member] // slots
                        rate = rings[kind_of_node[host], set_of[host]]
                        inside[index, group] = min(inside[index, group], rate)
                hops = num_hosts[index, group] if num_hosts[index, group] > 1 and has_between else 0
                for hop in range(hops):
                    here, peer = sources[index, group, hop], targets[index, group, hop]
                    count = _pairs(set_of[here], set_of[peer], members[index, group], slots, first, second)
                    for flow in range(count):
                        a, b = first[flow], second[flow]
                        if phase == 0:
                            leaving[here, peer, nic_of_slot[a]] += 1
                            entering[here, peer, nic_of_slot[b]] += 1
                        elif phase == 1:
                            sharing = max(leaving[here, peer, nic_of_slot[a]], entering[here, peer, nic_of_slot[b]])
                            across[index, group] = min(across[index, group], between[here, a, peer, b] / sharing)
                        else:
                            leaving[here, peer, nic_of_slot[a]] = 0
                            entering[here, peer, nic_of_slot[b]] = 0
                for member in range(size):
                    set_of[gpus[index, group, member] // slots] = 0
    return across, inside


@njit(cache=True)
def _pairs(here: Any, target: Any, most: Any, slots: Any, first: Any, second: Any) -> Any:
    """Write the slots at both ends of at most ``most`` flows between two sets of slots. Return the number of flows."""
    count = 0
    for slot in range(slots):
        if count < most and (here >> slot) & 1 and (target >> slot) & 1:
            first[count] = second[count] = slot
            count += 1
    both = here & target
    here, target = here ^ both, target ^ both
    a = b = 0
    while count < most:
        while a < slots and not (here >> a) & 1:
            a += 1
        while b < slots and not (target >> b) & 1:
            b += 1
        if a >= slots or b >= slots:
            break
        first[count], second[count] = a, b
        count += 1
        a += 1
        b += 1
    return count


@njit(cache=True)
def message_rates(senders: Any, receivers: Any, inside: Any, links: Any) -> Any:
    """
    Return the bandwidth that the slots at both ends allow each message, bytes per second.

    Infinite between hosts without known links of single GPUs. ``senders``, ``receivers``: GPUs, shape ``(sets,
    messages)``; the messages of one set run concurrently. ``inside``: bandwidth from slot to slot, by host type.
    """
    _, kind_of_node, between, nic_of_slot = links
    slots, has_between = len(nic_of_slot), len(between) > 0
    nics, wide = nic_of_slot.max() + 1, len(kind_of_node) if has_between else 0
    leaving = np.zeros((wide, wide, nics), dtype=np.int64)
    entering = np.zeros((wide, wide, nics), dtype=np.int64)
    rates = np.full(senders.shape, np.inf)
    for index in range(senders.shape[0]):
        for phase in range(3):
            for message in range(senders.shape[1]):
                i, a = divmod(senders[index, message], slots)
                j, b = divmod(receivers[index, message], slots)
                if i == j:
                    if a != b:
                        rates[index, message] = inside[kind_of_node[i], a, b]
                elif has_between:
                    if phase == 0:
                        leaving[i, j, nic_of_slot[a]] += 1
                        entering[i, j, nic_of_slot[b]] += 1
                    elif phase == 1:
                        sharing = max(leaving[i, j, nic_of_slot[a]], entering[i, j, nic_of_slot[b]])
                        rates[index, message] = between[i, a, j, b] / sharing
                    else:
                        leaving[i, j, nic_of_slot[a]] = 0
                        entering[i, j, nic_of_slot[b]] = 0
    return rates


@njit(cache=True)
def fabric_s_per_byte(gpus: Any, inside: Any, links: Any) -> Any:
    """
    Return the longest time of a member to send a byte to each other member on its host, seconds, ``(sets, groups)``.

    For all-to-alls. ``gpus``: GPUs of the members, shape ``(sets, groups, members)``.
    """
    kind_of_node, slots = links[1], len(links[3])
    seconds = np.zeros(gpus.shape[:2])
    for index in range(gpus.shape[0]):
        for group in range(gpus.shape[1]):
            for member in range(gpus.shape[2]):
                i, a = divmod(gpus[index, group, member], slots)
                total = 0.0
                for other in range(gpus.shape[2]):
                    j, b = divmod(gpus[index, group, other], slots)
                    if i == j and a != b:
                        total += 1.0 / inside[kind_of_node[i], a, b]
                seconds[index, group] = max(seconds[index, group], total)
    return seconds

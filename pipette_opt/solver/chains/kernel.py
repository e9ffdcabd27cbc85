"""
The best chain of hosts for one row, and the best through each link: dynamic programming over sets of hosts.

Held and Karp (Journal of the SIAM 10, 1962): what a chain costs up to some host depends on the set of hosts before,
not on their order. Here costs depend on the position, too, which is the size of the set.
"""

import numpy as np

from pipette_opt.base.jit import njit

NOTHING = np.int64(1 << 60)
"""Of what cannot be."""


@njit(cache=True, nogil=True)
def best_through(  # type: ignore[no-untyped-def]
    node, link, follows, firsts, exactly, rest, budget, sizes, before, after, through, chain
):
    """
    Cost of the best chain, ``NOTHING`` if none is within the budget.

    Parameters
    ----------
    node, link
        Of one row, shapes ``(P, M)`` and ``(P, M, M)``.
    follows
        Hosts that may follow each host at each position, as bits, shape ``(P, M)``.
    firsts
        Hosts that may be first, as bits.
    exactly
        Whether the link back from the last host is that to the first one, which takes a pass for each first host.
        Otherwise it is the best of the last host to any other.
    rest
        What the positions after each one cost at least, shape ``(P,)``.
    sizes
        Of each set of hosts, shape ``(2 ** M,)``.
    before, after
        Memory to work in, shape ``(2 ** M, M)``.
    through
        Taken down to the best chain over each link, shape ``(P, M, M)``.
    chain
        Takes the hosts of the best chain, shape ``(P,)``.
    """
    M = node.shape[1]
    if not exactly:
        return _one_way(
            node, link, follows, firsts, np.int64(-1), rest, budget, sizes, before, after, through, chain, NOTHING
        )
    best = NOTHING
    for first in range(M):
        one = firsts & (np.int64(1) << first)
        if one:
            found = _one_way(node, link, follows, one, first, rest, budget, sizes, before, after, through, chain, best)
            best = min(best, found)
    return best


@njit(cache=True, nogil=True)
def _one_way(  # type: ignore[no-untyped-def]
    node, link, follows, firsts, back_to, rest, budget, sizes, before, after, through, chain, known
):
    """The same from some first hosts, back to ``back_to``, or to any if negative; the chain if it beats ``known``."""
    P, M = node.shape
    before[:] = NOTHING
    for first in range(M):
        if (firsts >> first) & 1:
            before[np.int64(1) << first, first] = node[0, first]
    needed = firsts if back_to >= 0 else np.int64(0)
    complete = False
    for hosts in range(1, 1 << M):
        size = sizes[hosts]
        if size > P or hosts & needed != needed:
            continue
        for last in range(M):
            cost = before[hosts, last]
            if cost == NOTHING:
                continue
            if cost + rest[size - 1] > budget:
                before[hosts, last] = NOTHING
                continue
            if size == P:
                complete = True
                continue
            able = follows[size - 1, last] & ~hosts
            for host in range(M):
                if (able >> host) & 1:
                    longer = cost + link[size - 1, last, host] + node[size, host]
                    both = hosts | (1 << host)
                    if longer < before[both, host]:
                        before[both, host] = longer
    if not complete:
        return NOTHING
    best, start = NOTHING, -1
    for hosts in range((1 << M) - 1, 0, -1):
        size = sizes[hosts]
        if size > P or hosts & needed != needed:
            continue
        for last in range(M):
            cost = before[hosts, last]
            if cost == NOTHING:
                continue
            least = NOTHING
            if size == P:
                back = follows[P - 1, last] & (hosts if back_to < 0 else needed)
                for host in range(M):
                    if (back >> host) & 1:
                        least = min(least, link[P - 1, last, host])
                        longer = cost + link[P - 1, last, host]
                        through[P - 1, last, host] = min(through[P - 1, last, host], longer)
            else:
                able = follows[size - 1, last] & ~hosts
                for host in range(M):
                    if (able >> host) & 1:
                        both = hosts | (1 << host)
                        if before[both, host] == NOTHING or after[both, host] == NOTHING:
                            continue
                        longer = link[size - 1, last, host] + node[size, host] + after[both, host]
                        least = min(least, longer)
                        through[size - 1, last, host] = min(through[size - 1, last, host], cost + longer)
            after[hosts, last] = least
            if size == 1 and least < NOTHING and cost + least < best:
                best, start = cost + least, last
    if best < known:
        _follow(node, link, follows, start, before, after, chain)
    return best


@njit(cache=True, nogil=True)
def _follow(node, link, follows, start, before, after, chain):  # type: ignore[no-untyped-def]
    """The best chain from its first host on."""
    P, M = node.shape
    hosts, last = np.int64(1) << start, start
    chain[0] = start
    for position in range(1, P):
        able = follows[position - 1, last] & ~hosts
        for host in range(M):
            if (able >> host) & 1:
                both = hosts | (1 << host)
                if before[both, host] == NOTHING or after[both, host] == NOTHING:
                    continue
                if link[position - 1, last, host] + node[position, host] + after[both, host] == after[hosts, last]:
                    chain[position] = host
                    hosts, last = both, host
                    break

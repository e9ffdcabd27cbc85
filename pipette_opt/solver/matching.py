"""Bipartite matching: largest set of arcs with distinct senders and distinct receivers, and its slowest arc."""

import numpy as np

from pipette_opt.base.jit import njit
from pipette_opt.base.types import IntArray
from pipette_opt.problem.data import UNUSABLE_TICKS


def bottleneck_level(ticks: IntArray, number: int) -> int:
    """
    Return the smallest t for which ``number`` arcs of cost <= t have distinct senders and distinct receivers.

    ``UNUSABLE_TICKS`` if fewer usable arcs exist; 0 if ``number`` is 0.
    """
    if number <= 0:
        return 0
    levels = np.unique(ticks[ticks < UNUSABLE_TICKS])
    if not len(levels) or matching_size(ticks <= levels[-1]) < number:
        return UNUSABLE_TICKS
    low, high = 0, len(levels) - 1
    while low < high:
        middle = (low + high) // 2
        if matching_size(ticks <= levels[middle]) >= number:
            high = middle
        else:
            low = middle + 1
    return int(levels[low])


@njit(cache=True, nogil=True)
def matching_size(usable):  # type: ignore[no-untyped-def]
    """Return the most usable arcs with distinct senders and receivers, by augmenting paths (depth first)."""
    n, m = usable.shape
    sender = np.full(m, -1, np.int64)
    stack = np.empty(n + 1, np.int64)
    tried = np.empty(n + 1, np.int64)
    size = 0
    for start in range(n):
        seen = np.zeros(m, np.bool_)
        stack[0] = start
        tried[0] = 0
        depth = 0
        while depth >= 0:
            u = stack[depth]
            v = tried[depth]
            if v == m:
                depth -= 1
                continue
            tried[depth] += 1
            if not usable[u, v] or seen[v]:
                continue
            seen[v] = True
            if sender[v] >= 0:
                depth += 1
                stack[depth] = sender[v]
                tried[depth] = 0
                continue
            for level in range(depth, -1, -1):
                receiver = tried[level] - 1
                sender[receiver] = stack[level]
            size += 1
            break
    return size

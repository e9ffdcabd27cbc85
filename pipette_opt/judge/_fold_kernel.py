"""The compiled loops behind :mod:`pipette_opt.judge.folded` and :mod:`pipette_opt.judge.cycles`."""

from typing import Any

import numpy as np

from pipette_opt.base.jit import njit
from pipette_opt.judge._kernel import COMPUTE, POST, WAIT

_WIDTH = 8
"""What a stage can have waited for since its last operation, that operation included, at the most."""


@njit(cache=True)
def event_edges(rows: Any, pp: int, num_ops: int, num_messages: int) -> Any:
    """
    What follows what in a program: the ends of operations and of messages, without the instructions between them.

    Node ``stage * num_ops + operation`` is an operation, ``pp * num_ops + message`` a message. A node ends when the
    last of its sources has ended and its own time has passed. Returns sources and targets, shape ``(edges,)``, and all
    nodes in an order in which they can be done.
    """
    edges = np.empty((2, _WIDTH * (pp * num_ops + 2 * num_messages)), dtype=np.int64)
    order = np.empty(pp * num_ops + num_messages, dtype=np.int64)
    front, width = np.empty((pp, _WIDTH), dtype=np.int64), np.zeros(pp, dtype=np.int64)
    posted, posted_width = np.empty((num_messages, _WIDTH), dtype=np.int64), np.zeros(num_messages, dtype=np.int64)
    count, done = 0, 0
    for index in range(rows.shape[0]):
        what, stage, value = rows[index, 0], rows[index, 1], rows[index, 2]
        if what == WAIT:
            front[stage, width[stage]] = pp * num_ops + value
            width[stage] += 1
        elif what == POST:
            for place in range(width[stage]):
                posted[value, place] = front[stage, place]
            posted_width[value] = width[stage]
        else:
            node = stage * num_ops + value if what == COMPUTE else pp * num_ops + value
            for place in range(width[stage]):
                edges[0, count], edges[1, count] = front[stage, place], node
                count += 1
            if what == COMPUTE:
                front[stage, 0] = node
                width[stage] = 1
            else:
                for place in range(posted_width[value]):
                    edges[0, count], edges[1, count] = posted[value, place], node
                    count += 1
            order[done] = node
            done += 1
    return edges[:, :count], order[:done]


@njit(cache=True)
def walk_longest(begin: Any, source: Any, wraps: Any, seconds: Any, base: Any, rate: float) -> Any:
    """
    Longest walk to each node, an edge that wraps counting ``rate`` less; or a cycle that is longer than zero.

    Parameters
    ----------
    begin, source, wraps
        The edges into node ``n`` are ``begin[n]`` to ``begin[n + 1]``; those that do not wrap come from smaller nodes.
    seconds
        Of each node, shape ``(num_nodes,)``.
    base
        What a walk that begins at a node is worth there, its own seconds included.
    rate
        Should differ from the ratio of every cycle by more than rounding, or cycles of length zero may go round.

    Returns
    -------
    tuple
        Lengths; last edges or -1, shape ``(num_nodes,)``; a node of a cycle of last edges, or -1 if lengths are final.
    """
    num_nodes = len(base)
    value, last = base.copy(), np.full(num_nodes, -1, dtype=np.int64)
    check = 1
    for sweep in range(num_nodes + 2):
        changed = -1
        for node in range(num_nodes):
            for edge in range(begin[node], begin[node + 1]):
                reach = value[source[edge]] + seconds[node] - rate * wraps[edge]
                if reach > value[node]:
                    value[node] = reach
                    last[node] = edge
                    changed = node
        if changed < 0:
            return value, last, -1
        if sweep + 1 == check or sweep > num_nodes:
            check *= 2
            node, steps = changed, 0
            while last[node] >= 0 and steps < num_nodes:
                node = source[last[node]]
                steps += 1
            if last[node] >= 0:
                return value, last, node
    return value, last, -1


@njit(cache=True)
def walks_by_wraps(begin: Any, source: Any, wraps: Any, seconds: Any, base: Any, on_cycle: Any, most: int) -> Any:
    """
    Longest walk to each node that wraps exactly so often; and of those that meet a cycle.

    Parameters
    ----------
    begin, source, wraps, seconds, base
        As in ``walk_longest``.
    on_cycle
        Whether a node is on the cycle, shape ``(num_nodes,)``.

    Returns
    -------
    array
        Lengths, shape ``(2, most + 1, num_nodes)``, minus infinity where there is none.
    """
    num_nodes = len(base)
    value = np.full((2, most + 1, num_nodes), -np.inf)
    for turns in range(most + 1):
        for node in range(num_nodes):
            best, met = base[node] if turns == 0 else -np.inf, -np.inf
            for edge in range(begin[node], begin[node + 1]):
                before = turns - wraps[edge]
                if before >= 0:
                    best = max(best, value[0, before, source[edge]] + seconds[node])
                    met = max(met, value[1, before, source[edge]] + seconds[node])
            value[0, turns, node] = best
            value[1, turns, node] = best if on_cycle[node] else met
    return value

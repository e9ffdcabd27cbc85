"""
Closed forms of interleaved 1F1B, upper and lower, whatever the sends and chunks: the way in, periods, the way out.

Let ``K = m / pp - 3`` be the groups of ``pp`` micro-batches that the folded graph (``folded.py``) does not have: an
event of ``m`` micro-batches ends after the longest of the walks to it that wrap exactly ``K`` times.

**Period.** The largest ratio of seconds over wraps of all cycles of the folded graph, ``rate`` per group (Baccelli et
al., Synchronization and Linearity, 1992, section 3.2). It is found by improving a guess, the busiest stage's work, with
a cycle of positive length at that rate, as Newton's method does, until there is none.

**Upper form.** Let walks wrap as often as they like, at a price of ``rate`` each time. No cycle is longer than zero
then, so there is a longest walk. Its length ``L``, price included, does not depend on ``m``::

    T <= L + K rate

A lower price has no longest walk, and with a higher one the slope would be wrong. Up to three groups have no steady
state; the form is the critical path then.

**Lower form.** The critical cycle wraps ``l`` times. A walk that meets it and wraps ``k <= K`` times, where ``l``
divides ``K - k``, may go round it until it wraps ``K`` times, thus is a path. With ``L_k`` the length of the longest
such walk, without price::

    T >= max over k <= min(K, l) of L_k + (K - k) rate

So the forms are equal, hence exact, if the walk of the upper form is one of these; mostly the critical cycle is the
busiest stage's order of operations, with ``l = 1``. For ``K <= l`` the lower form is the critical path.

Both hold for operations too that wait for parameters or run beside collectives, as these are outside of the folded
group: the first forwards and the last backwards of each chunk.
"""

from typing import NamedTuple

import numpy as np

from pipette_opt.base.types import BoolArray, FloatArray, IntArray, P2PMode
from pipette_opt.costs.times import PlacedTimes
from pipette_opt.judge.critical_path import Walked, walk
from pipette_opt.judge.folded import GROUPS_OUTSIDE, FoldedGraph, durations, fold
from pipette_opt.judge.time_tables import distinct_columns

_MARGIN = 1e-12
"""What the price is above the rate, of all seconds of the graph: rounding makes no cycle longer than zero."""


class Walks(NamedTuple):
    """
    Longest walks of one replica.

    Parameters
    ----------
    rate, price
        Period of a group of ``pp`` micro-batches, in seconds; what a wrap costs: the same, and a margin for rounding.
    length
        Of the longest walk to each node, shape ``(num_nodes,)``.
    seconds, base
        What each node takes, and what a walk that begins there is worth, minus infinity if none does; same shape.
    on_cycle
        Whether a node is on the critical cycle; on any of them if those are orders of stages. Same shape.
    cycle_wraps
        How often that cycle wraps.
    """

    rate: float
    price: float
    length: FloatArray
    seconds: FloatArray
    base: FloatArray
    on_cycle: BoolArray
    cycle_wraps: int


def exact_period_s(times: PlacedTimes, p2p: P2PMode, replica: int = 0) -> float:
    """Seconds per micro-batch in the steady state of one replica of interleaved 1F1B, exactly."""
    chunks, pp, _ = times.forward_s.shape
    graph = fold(pp, chunks, p2p, times.overlap_p2p)
    walks = longest_walks(graph, durations(times)[:, replica], np.zeros((chunks, pp)))
    return walks.rate / int(pp)


def interleaved_bounds(times: PlacedTimes, num_microbatches: int, p2p: P2PMode) -> tuple[Walked, Walked]:
    """
    Lower and upper form of :func:`~pipette_opt.judge.critical_path.walk`; interleaved 1F1B.

    The lower form of an event is minus infinity where no walk of the right number of wraps meets the critical cycle.
    ``ValueError`` if the micro-batches are not whole groups.
    """
    chunks, pp, dp = times.forward_s.shape
    if num_microbatches % pp:
        raise ValueError(f"{num_microbatches} micro-batches are not whole groups of {pp}.")
    more = num_microbatches // pp - GROUPS_OUTSIDE
    if more <= 0:
        walked = walk(times, num_microbatches, p2p)
        return walked, walked
    graph = fold(pp, chunks, p2p, times.overlap_p2p)
    ready = np.zeros((chunks, pp, dp)) if times.ready_s is None else times.ready_s
    seconds = durations(times)
    replicas, column = distinct_columns(seconds, ready.reshape(-1, dp))
    nodes = np.concatenate([graph.launch.reshape(-1), graph.finish])
    lower, upper = np.empty((len(nodes), len(replicas))), np.empty((len(nodes), len(replicas)))
    for place, replica in enumerate(replicas):
        walks = longest_walks(graph, seconds[:, replica], ready[:, :, replica])
        upper[:, place] = walks.length[nodes] + more * walks.price
        lower[:, place] = _lower(graph, walks, nodes, more)
    return _walked(lower[:, column], chunks), _walked(upper[:, column], chunks)


def longest_walks(graph: FoldedGraph, durations_s: FloatArray, ready_s: FloatArray) -> Walks:
    """
    Longest walks of one replica, at the lowest price at which there are any.

    Parameters
    ----------
    durations_s
        A column of :func:`~pipette_opt.judge.folded.durations`.
    ready_s
        No forward of a chunk can end before, shape ``(num_chunks, pp)``.
    """
    from pipette_opt.judge._fold_kernel import walk_longest

    seconds = durations_s[graph.row]
    base = np.where(graph.before, seconds, -np.inf)
    base[graph.first] = np.maximum(base[graph.first], ready_s)
    folded = graph.stage >= 0
    work = np.bincount(graph.stage[folded], seconds[folded])
    rate, wraps, margin = float(work.max()), 1, _MARGIN * float(seconds.sum() + ready_s.max())
    on_cycle = folded & (work >= rate - margin)[graph.stage]
    while True:
        length, last, node = walk_longest(graph.begin, graph.source, graph.wraps, seconds, base, rate + margin)
        if node < 0:
            return Walks(rate, rate + margin, length, seconds, base, on_cycle, wraps)
        cycle = _cycle(graph, last, node)
        wraps, before = int(graph.wraps[last[cycle]].sum()), rate
        rate = float(seconds[cycle].sum()) / wraps
        assert rate > before, f"a cycle of {rate} s per group was found at {before} s."
        on_cycle = np.zeros_like(folded)
        on_cycle[cycle] = True


def _cycle(graph: FoldedGraph, last: IntArray, node: int) -> list[int]:
    """Nodes of a cycle of last edges."""
    cycle, at = [node], int(graph.source[last[node]])
    while at != node:
        cycle.append(at)
        at = int(graph.source[last[at]])
    return cycle


def _lower(graph: FoldedGraph, walks: Walks, nodes: IntArray, more: int) -> FloatArray:
    """Lower form of events of a schedule that wraps ``more`` times, shape ``(len(nodes),)``."""
    from pipette_opt.judge._fold_kernel import walks_by_wraps

    most = min(more, walks.cycle_wraps)
    edges = graph.begin, graph.source, graph.wraps
    found, meeting = walks_by_wraps(*edges, walks.seconds, walks.base, walks.on_cycle, most)[:, :, nodes]
    left = more - np.arange(most + 1)
    fits = left % walks.cycle_wraps == 0
    lower: FloatArray = (meeting[fits] + left[fits, None] * walks.rate).max(axis=0)
    return np.maximum(lower, found[more]) if more <= most else lower


def _walked(table: FloatArray, chunks: int) -> Walked:
    """From the rows of :func:`interleaved_bounds`."""
    pp = len(table) // (chunks + 1)
    return Walked(table[:-pp].reshape(chunks, pp, -1), table[-pp:])

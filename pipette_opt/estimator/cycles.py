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

**Lower form.** Let that walk wrap ``k <= K`` times. What lacks may be any cycles that it meets: the critical cycle, of
``l`` wraps, as often as it fits, and the order of operations of a stage that it passes, one wrap a time. The walk so
made wraps ``K`` times, thus is a path; it is ``(K - k)`` (or what is left of it modulo ``l``) times the difference of
the rates below the upper form. The forms are equal, hence exact, if the walk passes a stage whose work is the period.

Both hold for operations too that wait for parameters or run beside collectives, as these are outside of the folded
group: the first forwards and the last backwards of each chunk.
"""

from typing import NamedTuple

import numpy as np

from pipette_opt.costs.times import PlacedTimes
from pipette_opt.estimator.critical_path import Walked, walk
from pipette_opt.estimator.folded import GROUPS_OUTSIDE, FoldedGraph, durations, fold
from pipette_opt.estimator.time_tables import distinct_columns
from pipette_opt.types import BoolArray, FloatArray, IntArray, P2PMode

_MARGIN = 1e-12
"""What the price is above the rate, of all seconds of the graph: rounding makes no cycle longer than zero."""


class Walks(NamedTuple):
    """
    Longest walks of one replica.

    Parameters
    ----------
    rate, price
        Period of a group of ``pp`` micro-batches, in seconds; what a wrap costs: the same, and a margin for rounding.
    length, last
        Length of the longest walk to each node, and its last edge or -1, shape ``(num_nodes,)``.
    stage_rate
        Seconds per group of the stage's order, at its operations in the folded group; minus infinity elsewhere.
    on_cycle
        Whether a node is on the cycle that decides the rate, shape ``(num_nodes,)``.
    cycle_wraps
        How often that cycle wraps.
    """

    rate: float
    price: float
    length: FloatArray
    last: IntArray
    stage_rate: FloatArray
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
    Lower and upper form of :func:`~pipette_opt.estimator.critical_path.walk`; interleaved 1F1B.

    The lower form of an event is minus infinity where its longest walk wraps more often than the schedule does.
    """
    chunks, pp, dp = times.forward_s.shape
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
        lower[:, place] = upper[:, place] - [_slack(graph, walks, int(node), more) for node in nodes]
    return _walked(lower[:, column], chunks), _walked(upper[:, column], chunks)


def longest_walks(graph: FoldedGraph, durations_s: FloatArray, ready_s: FloatArray) -> Walks:
    """
    Longest walks of one replica, at the lowest price at which there are any.

    Parameters
    ----------
    durations_s
        A column of :func:`~pipette_opt.estimator.folded.durations`.
    ready_s
        No forward of a chunk can end before, shape ``(num_chunks, pp)``.
    """
    from pipette_opt.estimator._fold_kernel import walk_longest

    seconds = durations_s[graph.row]
    base = np.where(graph.before, seconds, -np.inf)
    base[graph.first] = np.maximum(base[graph.first], ready_s)
    folded = graph.stage >= 0
    work = np.bincount(graph.stage[folded], seconds[folded])
    stage_rate = np.where(folded, work[graph.stage], -np.inf)
    rate, margin = float(work.max()), _MARGIN * float(seconds.sum() + ready_s.max())
    on_cycle, wraps = stage_rate == rate, 1
    while True:
        length, last, node = walk_longest(graph.begin, graph.source, graph.wraps, seconds, base, rate + margin)
        if node < 0:
            return Walks(rate, rate + margin, length, last, stage_rate, on_cycle, wraps)
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


def _slack(graph: FoldedGraph, walks: Walks, node: int, more: int) -> float:
    """How far the lower form of an event is below its upper form, if the schedule wraps ``more`` times."""
    from pipette_opt.estimator._fold_kernel import trace_walk

    wraps, best, meets = trace_walk(walks.last, graph.source, graph.wraps, walks.stage_rate, walks.on_cycle, node)
    if wraps > more:
        return np.inf
    rest = (more - wraps) % walks.cycle_wraps if meets else more - wraps
    of_stage = rest * (walks.price - best) if rest else 0.0
    slack: float = of_stage + (more - wraps - rest) * (walks.price - walks.rate)
    return slack


def _walked(table: FloatArray, chunks: int) -> Walked:
    """From the rows of :func:`interleaved_bounds`."""
    pp = len(table) // (chunks + 1)
    return Walked(table[:-pp].reshape(chunks, pp, -1), table[-pp:])

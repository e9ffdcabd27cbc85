"""
Analytical model of 1F1B's iteration time, in seconds; ``objective_ticks`` of the problem computes it in integers.

Notation: stage ``s`` of ``pp``, ``m`` micro-batches, ``f_s``, ``b_s``, ``c_s = f_s + b_s`` the compute of one
micro-batch; ``u_s``, ``d_s`` the transfer from ``s`` to ``s + 1`` and back (zero beyond the ends). Blocking exchanges
wait for the slower direction ``p_s = max(u_s, d_s)``; a stage waits ``P_s = p_{s-1} + p_s`` in one period.

The schedule is a max-plus system: the time of every event is the largest weight of a path through the event graph.

**Period**, the largest cycle mean of that graph. Blocking: the exchange of round ``i`` between ``s`` and ``s + 1``
follows the exchange of round ``i - 1`` at the left border by ``f_s`` and the exchange of round ``i`` at the right
border by ``b_{s+1}``. So a cycle is a closed walk on the line of borders, made of neighbour pairs ``c_s + P_s``, one
round each: ``max_s (c_s + P_s)``. Asynchronous: a cycle leaves the backward of stage ``s``, goes forward to stage ``k``
and back, and advances ``k - s + 1`` micro-batches: ``max over s <= k of (sum_{s..k} c + sum_{s..k-1} (u + d)) / (k - s
+ 1)``.

**Formula**: ``round_trip + (m - 1) period``, linear in the times. A path from the first forward to the last backward
goes up to a highest stage and back. It makes ``m - 1`` further steps of one micro-batch, each worth at most one period.
If that stage is the last one, the formula is exact. Otherwise, steps of the warm-up count a forward only, and as many
of the flush a backward only. Then the formula is too small where one stage's forward and another's backward dominate,
or where one link outweighs the compute of whole stages. Blocking transfers count the slower direction everywhere. The
simulator decides.

**Overlap.** If the reduction overlaps with the last backward in ``K`` buckets, exactly ``max(R / K, R - (1 - 1 / K)
b)`` of ``R`` is left after it (``estimate.reduction_ends``), and replaces the reduction. The model adds the exposed
part by ``costs/overlap.py``, which is exact if stages are equal.
"""

import numpy as np

from pipette_opt.base.types import FloatArray, P2PMode
from pipette_opt.costs.times import PlacedTimes


def period_s(times: PlacedTimes, p2p: P2PMode) -> FloatArray:
    """Return each replica's steady-state period in plain 1F1B, seconds per micro-batch, shape ``(dp,)``."""
    _refuse_interleaving(times)
    cost = times.forward_s[0] + times.backward_s[0]
    if p2p == "blocking":
        period: FloatArray = (cost + _waiting(times)).max(axis=0)
        return period
    transfer = (times.send_forward_s + times.send_backward_s)[:-1]
    best = np.zeros(cost.shape[1])
    for first in range(len(cost)):
        total = np.cumsum(cost[first:], axis=0)
        total[1:] += np.cumsum(transfer[first:], axis=0)
        best = np.maximum(best, (total / np.arange(1, len(total) + 1)[:, None]).max(axis=0))
    return best


def analytical_s(times: PlacedTimes, num_microbatches: int, p2p: P2PMode) -> float:
    """Return the iteration time by the analytical 1F1B model, seconds; without interleaving."""
    _refuse_interleaving(times)
    cost, backward = times.forward_s[0] + times.backward_s[0], times.backward_s[0]
    up, down = times.send_forward_s[:-1], times.send_backward_s[:-1]
    if p2p == "blocking":
        up = down = np.maximum(up, down)
    total = cost.sum(axis=0) + (up + down).sum(axis=0) + (num_microbatches - 1) * period_s(times, p2p)
    shown = times.reduction_s if times.shown_s is None else times.shown_s
    done = (total - _before(backward, down)).max(axis=1) + shown
    done[[0, -1]] += times.embedding_s
    return float(done.max()) + times.optimizer_s


def _refuse_interleaving(times: PlacedTimes) -> None:
    """Raise ``ValueError`` for interleaved schedules, which this model does not cover."""
    if len(times.forward_s) > 1:
        raise ValueError(f"{len(times.forward_s)} chunks per stage: these forms are of 1F1B without interleaving.")


def _waiting(times: PlacedTimes) -> FloatArray:
    """Return the seconds that each stage waits for its exchanges in one period of blocking 1F1B, shape ``(pp, dp)``."""
    wait = np.zeros((len(times.send_forward_s) + 1, times.send_forward_s.shape[1]))
    wait[1:-1] = np.maximum(times.send_forward_s, times.send_backward_s)[:-1]
    return wait[:-1] + wait[1:]


def _before(work: FloatArray, transfer: FloatArray) -> FloatArray:
    """Return the compute and transfers of all stages before each stage, summed, shape ``(pp, dp)``."""
    before = np.zeros_like(work)
    before[1:] = np.cumsum(work[:-1] + transfer, axis=0)
    return before

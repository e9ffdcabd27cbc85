"""
Closed forms of the iteration time, in seconds; ``objective_ticks`` of the problem is their twin in integers.

Notation: stage ``s`` of ``pp``, ``m`` micro-batches, ``f_s``, ``b_s``, ``c_s = f_s + b_s`` the work of one
micro-batch; ``u_s``, ``d_s`` the transfer from ``s`` to ``s + 1`` and back (zero beyond the ends); blocking exchanges
wait for the slower direction ``p_s = max(u_s, d_s)``, and ``P_s = p_{s-1} + p_s`` is what a stage waits in one period.
The schedule is a max-plus system: the time of every event is the largest weight of a path through the event graph.

**Period**, the largest cycle mean of that graph. Blocking: the exchange of round ``i`` between ``s`` and ``s + 1``
follows the one of round ``i - 1`` at the left border by ``f_s`` and the one of round ``i`` at the right border by
``b_{s+1}``, so a cycle is a closed walk on the line of borders, made of neighbour pairs ``c_s + P_s``, one round each:
``max_s (c_s + P_s)``. Asynchronous: a cycle leaves the backward of stage ``s``, goes forward to stage ``k`` and back,
and advances ``k - s + 1`` micro-batches:
``max over s <= k of (sum_{s..k} c + sum_{s..k-1} (u + d)) / (k - s + 1)``.

**Upper form.** A path from the first forward to the last backward goes up to some highest stage ``k`` and back, which
is the round trip of the stages up to ``k`` (blocking: ``sum_{j<=k} (c_j + P_j)``), and makes ``m - 1`` further steps of
one micro-batch, each worth at most one period. Unless ``k`` is the last stage, it turns round where ``w_k = min(pp - 1
- k, m - 1)`` forwards are ahead: so many steps of the warm-up count a forward only, and as many of the flush a backward
only. With ``g`` and ``h`` the most that such steps are worth (``max f`` and ``max b``, blocking ``max (f + P)`` and
``max (b + P)``, and ``g + h`` at least ``period + max P``)::

    T <= max over k of [ round_trip_k + w_k (g + h) + (m - 1 - w_k) period ]

Ordinarily ``k = pp - 1`` is the largest, and this is ``round_trip + (m - 1) period``: always if ``g + h - period`` is
at most what each stage adds to the round trip. The other terms are needed when one stage's forward and another's
backward dominate, or when one link outweighs the work of whole stages: with blocking sends, no work at all and one
transfer of 1 s behind stage 0 of 8, stage 0 makes ``m + pp - 1`` exchanges, not ``m + 1``.

**Solver's form.** The term of ``k = pp - 1`` alone, which is linear in the times: what ``objective_ticks`` is, and
``objective_s`` of a certificate. Blocking transfers count the slower direction everywhere.

**Beside compute.** Where the reduction runs beside the last backward in ``K`` buckets, ``max(R / K, R - (1 - 1 / K)
b)`` of ``R`` is left after it, exactly (``estimate.reduction_ends``), so it takes the reduction's place in all forms. A
first forward that waits for its parameters, or compute that collectives slow down, delays everything behind by no more:
the upper form adds all of it, the lower form what is on its path. The solver's form adds what ``costs/overlap.py`` says
is shown, which is exact if stages are equal.

**Lower form.** A stage starts after the first forward has passed the stages before, does all its work (and, blocking,
its waiting; asynchronous: goes round the cycle of an earlier stage and itself where that is longer), and its last
backward passes the stages before.

**Interleaved**: ``cycles.py`` for the upper and lower form of the iteration, ``interleaved.py`` for explicit terms.
"""

import numpy as np

from pipette_opt.base.types import FloatArray, P2PMode
from pipette_opt.costs.times import PlacedBatch, PlacedTimes
from pipette_opt.judge.critical_path import Walked
from pipette_opt.judge.cycles import interleaved_bounds
from pipette_opt.judge.estimate import batch_done
from pipette_opt.judge.interleaved import interleaved_lower_s


def period_s(times: PlacedTimes, p2p: P2PMode) -> FloatArray:
    """Seconds per micro-batch of each replica in the steady state, shape ``(dp,)``; 1F1B without interleaving."""
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


def closed_s(times: PlacedTimes, num_microbatches: int, p2p: P2PMode) -> float:
    """Iteration time by the solver's form; 1F1B without interleaving."""
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


def upper_s(times: PlacedTimes, num_microbatches: int, p2p: P2PMode) -> float:
    """Iteration time, at the most; 1F1B, interleaved or not."""
    if len(times.forward_s) > 1:
        return _done_s(times, interleaved_bounds(times, num_microbatches, p2p)[1])
    return _done_s(times, _at_once(times, finish_upper_s(times, num_microbatches, p2p)))


def lower_s(times: PlacedTimes, num_microbatches: int, p2p: P2PMode) -> float:
    """Iteration time, at the least; 1F1B, interleaved or not."""
    finish = finish_lower_s(times, num_microbatches, p2p)
    if len(times.forward_s) == 1:
        return _done_s(times, _at_once(times, finish))
    launch, found = interleaved_bounds(times, num_microbatches, p2p)[0]
    finish = np.maximum(found, finish)
    # The first chunk's backward is the last of its stage.
    return _done_s(times, Walked(np.concatenate([finish[None], launch[1:]]), finish))


def finish_upper_s(times: PlacedTimes, num_microbatches: int, p2p: P2PMode) -> FloatArray:
    """When each stage has finished its last backward, at the latest, shape ``(pp, dp)``."""
    _refuse_interleaving(times)
    forward, backward = times.forward_s[0], times.backward_s[0]
    up, down = times.send_forward_s[:-1], times.send_backward_s[:-1]
    period = period_s(times, p2p)
    if p2p == "blocking":
        waiting = _waiting(times)
        only = (forward + waiting).max(axis=0) + (backward + waiting).max(axis=0)
        only = np.maximum(only, period + waiting.max(axis=0))
        round_trip = np.cumsum(forward + backward + waiting, axis=0)  # of the stages up to each stage
    else:
        only = forward.max(axis=0) + backward.max(axis=0)
        round_trip = np.cumsum(forward + backward, axis=0)
        round_trip[1:] += np.cumsum(up + down, axis=0)
    ahead = np.minimum(np.arange(len(forward))[::-1], num_microbatches - 1)[:, None]
    total = (round_trip + ahead * only + (num_microbatches - 1 - ahead) * period).max(axis=0)
    # A longer operation delays everything behind it by no more; the last backwards of the stages before are behind.
    total = total + _first(times)[0].sum(axis=0) + _ready(times)
    finish: FloatArray = total - _before(backward, down) + np.cumsum(_last(times)[0][::-1], axis=0)[::-1]
    return finish


def finish_lower_s(times: PlacedTimes, num_microbatches: int, p2p: P2PMode) -> FloatArray:
    """When each stage can have finished its last backward, at the earliest, shape ``(pp, dp)``."""
    if len(times.forward_s) > 1:
        return interleaved_lower_s(times, num_microbatches, p2p)
    up, down = times.send_forward_s[:-1], times.send_backward_s[:-1]
    cost = (times.forward_s + times.backward_s)[0]
    work = num_microbatches * cost
    if p2p == "blocking":
        work = work + _exchanges(up, down, num_microbatches)
    else:
        work = work + _zigzags(cost, up + down, num_microbatches)
    first, last = _first(times)[0], _last(times)[0]
    finish: FloatArray = _before(times.forward_s[0] + first, up) + work + first + last
    for stage in range(len(finish) - 2, -1, -1):
        behind = finish[stage + 1] + down[stage] + (times.backward_s[0] + last)[stage]
        finish[stage] = np.maximum(finish[stage], behind)
    return finish


def _done_s(times: PlacedTimes, walked: Walked) -> float:
    """The stage that is finished last, its reduction and tied embeddings included, then the optimizer."""
    one = Walked(walked.launch_s[None], walked.finish_s[None])
    return float(batch_done(PlacedBatch.of([times]), one).max()) + times.optimizer_s


def _at_once(times: PlacedTimes, finish: FloatArray) -> Walked:
    """Reductions of all chunks from the end of the last backward."""
    return Walked(np.repeat(finish[None], len(times.forward_s), axis=0), finish)


def _first(times: PlacedTimes) -> FloatArray:
    """What first forwards take longer than the others, shape of ``forward_s``."""
    return np.zeros_like(times.forward_s) if times.first_extra_s is None else times.first_extra_s


def _last(times: PlacedTimes) -> FloatArray:
    """What last backwards take longer than the others, shape of ``forward_s``."""
    return np.zeros_like(times.forward_s) if times.last_extra_s is None else times.last_extra_s


def _ready(times: PlacedTimes) -> FloatArray:
    """The most that waiting for parameters can delay a replica beside longer operations, shape ``(dp,)``."""
    if times.ready_s is None:
        return np.zeros(times.forward_s.shape[2])
    latest: FloatArray = times.ready_s.max(axis=(0, 1))
    return latest


def _refuse_interleaving(times: PlacedTimes) -> None:
    """Interleaved schedules have forms of their own."""
    if len(times.forward_s) > 1:
        raise ValueError(f"{len(times.forward_s)} chunks per stage: these forms are of 1F1B without interleaving.")


def _waiting(times: PlacedTimes) -> FloatArray:
    """What each stage waits for its exchanges in one period of blocking 1F1B, shape ``(pp, dp)``."""
    wait = np.zeros((len(times.send_forward_s) + 1, times.send_forward_s.shape[1]))
    wait[1:-1] = np.maximum(times.send_forward_s, times.send_backward_s)[:-1]
    return wait[:-1] + wait[1:]


def _exchanges(up: FloatArray, down: FloatArray, m: int) -> FloatArray:
    """
    What a stage waits for its exchanges between its first forward and the end of its last backward, shape ``(pp, dp)``.

    With ``w`` warm-up forwards: to the right ``w`` sends, ``m - w`` exchanges, ``w`` receives; to the left the same but
    the first receive and the last send, which are outside.
    """
    pp, dp = len(up) + 1, up.shape[1]
    single, both = np.zeros((pp + 1, dp)), np.zeros((pp + 1, dp))
    single[1:-1], both[1:-1] = up + down, np.maximum(up, down)
    warm = np.minimum(np.arange(pp)[::-1], m)[:, None]
    right = warm * single[1:] + (m - warm) * both[1:]
    left = np.minimum(warm, m - 1) * single[:-1] + np.maximum(m - warm - 1, 0) * both[:-1]
    total: FloatArray = left + right
    return total


def _zigzags(cost: FloatArray, transfer: FloatArray, m: int) -> FloatArray:
    """
    What asynchronous micro-batches cost a stage beyond its own work, at least, shape ``(pp, dp)``.

    Between its warm-up of ``w`` forwards and its flush, a path may go back to an earlier stage and return: once for
    every ``stages passed`` of the ``m - 1 - w`` steps, if that is longer than so many steps of the stage itself.
    """
    pp = len(cost)
    delay = np.zeros_like(cost)
    for last in range(pp):
        steps = max(m - pp + last, 0)
        cycle = cost[last].copy()
        for first in range(last - 1, -1, -1):
            cycle = cycle + cost[first] + transfer[first]
            length = last - first + 1
            delay[last] = np.maximum(delay[last], steps // length * (cycle - length * cost[last]))
    return delay


def _before(work: FloatArray, transfer: FloatArray) -> FloatArray:
    """Sum of work and transfer over the stages before each stage, shape ``(pp, dp)``."""
    before = np.zeros_like(work)
    before[1:] = np.cumsum(work[:-1] + transfer, axis=0)
    return before

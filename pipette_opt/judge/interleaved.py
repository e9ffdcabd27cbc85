"""
Interleaved 1F1B, asynchronous and with Megatron-Core's blocking warm-up and flush: event graph, period, lower form.

Notation: stage ``s`` of ``pp``, ``v`` chunks, ``m`` micro-batches in groups of ``pp``, warm-up forwards ``w_s = 2 (pp -
1 - s) + (v - 1) pp``; ``f``, ``b`` the work of one chunk and ``c = f + b``; ``u_s``, ``d_s`` the transfer from ``s`` to
``s + 1`` (cyclic) and back. The ``n``-th forwards of all stages are of one micro-batch and chunk, and so are the
``n``-th backwards.

**Event graph.** ``F_s(n)`` follows ``F_{s-1}(n)``, and ``F_0(n)`` follows ``F_{pp-1}(n - pp)`` unless its chunk is the
first; ``B_s(n)`` follows ``B_{s+1}(n)``, and ``B_{pp-1}(n)`` follows ``B_0(n - pp)`` unless its chunk is the last; in
the steady state ``B_s(n)`` follows ``F_s(n + w_s)``, and that follows ``B_s(n - 1)``.

**Period**, asynchronous. As ``w_s - w_{s+1} = 2``, every link that a closed walk crosses, up, down or round the ring,
advances it by one chunk, and so does every pair of turns (up to down and down to up). On a ring of stages a simple
cycle with more than one pair of turns would meet itself, so what is left are the cyclic intervals, and the whole ring
one way. Seconds per chunk and micro-batch::

    max of ( sum_{s..s+h} c + sum_{s..s+h-1} (u + d) ) / (2 h + 1)      for all s and h < pp, cyclic sums,
           sum (f + u) / pp,   sum (b + d) / pp

with the largest chunk of each stage. It is an upper bound, as the forwards of the first chunk (and the backwards of the
last) do not wait for the ring. For ``h = 0`` it is the work of the busiest stage, which with equal chunks is also a
lower bound; so the period is exact whenever that is the largest term: always unless the two transfers of a link take
more than the work of one chunk. Without interleaving the divisor is ``h + 1``: this is what interleaving buys. With
blocking sends a receive of the steady state is posted when the forward (or backward) before it is done, which adds the
cycles ``f_s + u_{s-1}`` and ``b_s + d_s``. ``cycles.py`` has the exact period, of unequal chunks and blocking sends
too, and the forms that enclose the whole schedule within some hundredths of a percent.

**Lower form**, in explicit terms. Every path through the event graph is a lower bound. Taken are those that reach a
stage in one of two ways, stay there, and leave it in one of two ways:

- in: the first micro-batch goes forward through all layer groups up to a chunk of the stage; or to the last group and
  back to a chunk of the stage;
- stay: all operations from there on in the stage's order, and, blocking, what it waits: each warm-up forward waits for
  its send and the next receive, ``max(u_s, u_{s-1})``, each flush backward likewise, and two forwards of the steady
  state are ``max(b, u_{s-1})`` apart and two backwards ``max(f, d_s)``;
- out: the last micro-batch goes back from a chunk of the stage through all groups before; or from a forward of a chunk
  on to the last group and back.

With equal stages and links it is the critical path, for any ``m``. It is a maximum of sums of work and transfers with
whole coefficients, so linear rows express it.

**What the solver minimises** are such rows, but not these: with links that differ a path may change stages in its
steady state, and the form above is some tenths of a percent below the critical path. ``longest_paths.py`` reads the
rows off the critical paths themselves, at the placements that matter; there they are exact. Each is a walk through the
folded graph of ``folded.py``.
"""

import numpy as np

from pipette_opt.base.types import FloatArray, IntArray, P2PMode
from pipette_opt.costs.placed import PlacedTimes
from pipette_opt.judge.schedule import FORWARD, Schedule, build_schedule


def interleaved_lower_s(times: PlacedTimes, num_microbatches: int, p2p: P2PMode) -> FloatArray:
    """When each stage can have finished its last backward, at the earliest, shape ``(pp, dp)``; interleaved 1F1B."""
    chunks, pp, dp = times.forward_s.shape
    schedule = build_schedule(pp, num_microbatches, chunks)
    fill, drain = _fill(times), _drain(times)
    finish = np.zeros((pp, dp))
    first_chunk = _first_chunk_after(times)
    for stage in range(pp):
        spent, *extras = _stay(times, schedule, stage, p2p)
        enter, arrival = _ways(schedule, stage, 0, fill)
        leave, remaining = _ways(schedule, stage, num_microbatches - 1, drain)
        second = np.minimum(enter[:, None] + 1, leave)
        gained = np.maximum(*(extra[leave] - extra[second] for extra in extras))
        stay = spent[leave + 1, :, 0] - spent[enter, None, :, 1] + gained
        stay[enter[:, None] > leave] = -np.inf
        for way, path in zip(leave, (arrival[:, None] + stay + remaining).max(axis=0), strict=True):
            through = schedule.group[stage, way] >= pp or not schedule.backward[stage, way]
            reached = pp if through else stage + 1
            finish[:reached] = np.maximum(finish[:reached], path - first_chunk[:reached])
    return finish


def interleaved_period_s(times: PlacedTimes) -> FloatArray:
    """
    Seconds per micro-batch of each replica in the steady state, at the most, shape ``(dp,)``; asynchronous.

    Exact if the chunks of each stage are equal and its busiest stage is the largest term.
    """
    forward, backward = times.forward_s.max(axis=0), times.backward_s.max(axis=0)
    pp, work = len(forward), forward + backward
    transfer = times.send_forward_s + times.send_backward_s
    best: FloatArray = np.maximum(work.max(axis=0), (forward + times.send_forward_s).sum(axis=0) / pp)
    best = np.maximum(best, (backward + times.send_backward_s).sum(axis=0) / pp)
    total = work.copy()
    for links in range(1, pp):
        total = total + np.roll(transfer, 1 - links, axis=0) + np.roll(work, -links, axis=0)
        best = np.maximum(best, total.max(axis=0) / (2 * links + 1))
    return best * len(times.forward_s)


def _groups(times: PlacedTimes) -> tuple[FloatArray, FloatArray, FloatArray, FloatArray]:
    """Forward, backward, and transfers to the next group and back, by layer group, shape ``(groups, dp)``."""
    chunks, _, dp = times.forward_s.shape
    forward, backward = times.forward_s.reshape(-1, dp), times.backward_s.reshape(-1, dp)
    return forward, backward, np.tile(times.send_forward_s, (chunks, 1)), np.tile(times.send_backward_s, (chunks, 1))


def _fill(times: PlacedTimes) -> tuple[FloatArray, FloatArray]:
    """When the first micro-batch's forward, and its backward, can reach each group, shape ``(groups, dp)``."""
    forward, backward, up, down = _groups(times)
    reach = np.cumsum(forward + up, axis=0) - forward - up
    behind = _after(backward) + _after(down[:-1], len(down))
    return reach, reach[-1] + forward[-1] + behind


def _drain(times: PlacedTimes) -> tuple[FloatArray, FloatArray]:
    """What is left after the forward, and after the backward, of a micro-batch in each group until it has ended."""
    forward, backward, up, down = _groups(times)
    back = np.cumsum(backward + down, axis=0) - backward - down
    on = _after(forward) + _after(up[:-1], len(up))
    return on + backward[-1] + back[-1], back


def _after(values: FloatArray, length: int | None = None) -> FloatArray:
    """Sum of the rows after each row (of links: from each row on), shape ``(length, dp)``."""
    suffix: FloatArray = np.cumsum(values[::-1], axis=0)[::-1]
    if length is not None:
        return np.concatenate([suffix, np.zeros((length - len(suffix), values.shape[1]))])
    after: FloatArray = suffix - values
    return after


def _first_chunk_after(times: PlacedTimes) -> FloatArray:
    """What the last backward still has before it when it leaves each stage, shape ``(pp, dp)``."""
    step = times.backward_s[0] + times.send_backward_s
    before: FloatArray = np.zeros_like(step)
    before[1:] = np.cumsum(step, axis=0)[:-1]
    return before


def _ways(
    schedule: Schedule, stage: int, microbatch: int, reach: tuple[FloatArray, FloatArray]
) -> tuple[IntArray, FloatArray]:
    """Positions in a stage's order where a micro-batch is in each chunk, each way, and what ``reach`` has for each."""
    positions = np.flatnonzero(schedule.microbatch[stage] == microbatch)
    directions = (schedule.kind[stage, positions] != FORWARD).astype(np.int64)
    return positions, np.stack(reach)[directions, schedule.group[stage, positions]]


def _stay(
    times: PlacedTimes, schedule: Schedule, stage: int, p2p: P2PMode
) -> tuple[FloatArray, FloatArray, FloatArray]:
    """
    What a stage spends up to each operation.

    Returns
    -------
    tuple
        Work and waiting before each position, with and without what is waited after the operation before it, shape
        ``(num_ops + 1, dp, 2)``; what forwards, and what backwards, of the steady state wait beyond that up to each
        position, shape ``(num_ops, dp)``.
    """
    chunk, backward, group = schedule.chunk[stage], schedule.backward[stage], schedule.group[stage]
    work = np.where(backward[:, None], times.backward_s[chunk, stage], times.forward_s[chunk, stage])
    num_ops, dp = work.shape
    waiting, extra_f, extra_b = np.zeros_like(work), np.zeros_like(work), np.zeros_like(work)
    if p2p == "blocking":
        last_group, warm = schedule.num_stages * schedule.num_chunks - 1, int(schedule.num_warmup[stage])
        end = num_ops - warm
        from_before = np.where((group > 0)[:, None], times.send_forward_s[stage - 1], 0.0)
        to_before = np.where((group > 0)[:, None], times.send_backward_s[stage - 1], 0.0)
        from_behind = np.where((group < last_group)[:, None], times.send_backward_s[stage], 0.0)
        to_behind = np.where((group < last_group)[:, None], times.send_forward_s[stage], 0.0)
        into = np.where(backward[:, None], from_behind, from_before)
        out = np.where(backward[:, None], to_before, to_behind)
        following = np.concatenate([into[1:], np.zeros((1, dp))])
        following[[max(end - 1, 0), num_ops - 1]] = 0.0  # the last forward and the last backward have none
        waiting = np.maximum(out, following)
        waiting[warm:end] = 0.0
        over = np.zeros_like(work)
        over[1:] = np.maximum(into[1:] - work[:-1], 0.0)
        over[: warm + 1] = over[end:] = 0.0
        extra_f = np.cumsum(np.where(backward[:, None], 0.0, over), axis=0)
        extra_b = np.cumsum(np.where(backward[:, None], over, 0.0), axis=0)
    spent = np.zeros((num_ops + 1, dp, 2))
    spent[1:, :, 1] = np.cumsum(work + waiting, axis=0)
    spent[1:, :, 0] = spent[1:, :, 1] - waiting
    return spent, extra_f, extra_b

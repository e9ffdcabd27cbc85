"""
Longest path through the real schedule: every forward, backward, send and receive.

A message between two stages starts when its sender has posted it and its receiver is ready for it, and takes the
transfer time of its link and direction; the two directions of a link do not slow each other (full duplex), and what
the flows that run at once take from each other is already in the times. Who posts and waits when:

``async``
    Receives are posted in advance and sends are never waited for: a stage computes whenever its next input is there.

``blocking``, without interleaving
    Megatron-Core's 1F1B (release 0.16.1, ``forward_backward_pipelining_without_interleaving``), which refuses to
    overlap. Warm-up: receive, forward, send; steady state: forward, *send forward and receive backward* together,
    backward, *send backward and receive forward* together; flush: receive, backward, send. Each is waited for, by both
    sides. The send-forward-receive-backward of stage ``s`` always meets the send-backward-receive-forward of stage
    ``s + 1``: one exchange, which takes the slower direction.

``blocking``, interleaved
    What Megatron-LM does with interleaving unless ``--no-overlap-p2p-communication`` is given: it sets
    ``overlap_p2p_comm`` (and ``batch_p2p_comm`` to the opposite). Warm-up and flush still wait for each send together
    with the next receive (``overlap_p2p_comm_warmup_flush`` is off by default). In the steady state a stage posts a
    send with the receive of its next input of that direction, and goes on; it waits for the receive before it
    computes, and for a send one operation of that direction later.

Not modelled: NCCL's order of messages inside one communicator, and small messages that a sender may drop into a
buffer before the receiver is there.
"""

import numpy as np

from pipette_opt.costs.placed import PlacedTimes
from pipette_opt.estimator.schedule import Schedule, build_schedule
from pipette_opt.types import FloatArray, IntArray, P2PMode


def critical_path(times: PlacedTimes, num_microbatches: int, p2p: P2PMode) -> FloatArray:
    """
    When each stage of each replica has finished its last backward, in seconds, shape ``(pp, dp)``.

    Gradient reduction and optimizer are not included. Interleaved if ``times`` has several chunks.
    """
    num_chunks, pp, _ = times.forward_s.shape
    return run_schedule(times, build_schedule(pp, num_microbatches, num_chunks), p2p)


def run_schedule(times: PlacedTimes, schedule: Schedule, p2p: P2PMode) -> FloatArray:
    """The same for a given schedule; ``blocking`` needs one of Megatron-Core's own. ``ValueError`` on deadlock."""
    from pipette_opt.estimator import _kernel  # loads numba

    num_chunks, pp, _ = times.forward_s.shape
    distinct, column = _distinct_replicas(times)
    mode = _kernel.IDEAL
    if p2p == "blocking" and pp > 1:
        mode = _kernel.MEGATRON if num_chunks == 1 else _kernel.MEGATRON_INTERLEAVED
    incoming, outgoing = _messages(schedule)
    code, argument, length = _kernel.instructions(incoming, outgoing, schedule.num_warmup, mode)
    finish, stuck = _kernel.run(
        code,
        argument,
        length,
        schedule.backward,
        schedule.chunk,
        np.ascontiguousarray(times.forward_s[:, :, distinct]),
        np.ascontiguousarray(times.backward_s[:, :, distinct]),
        _hops(times, distinct),
        schedule.num_microbatches,
        mode == _kernel.IDEAL,
    )
    if stuck:
        raise ValueError(f"the schedule deadlocks: {stuck} of {pp} stages wait for each other.")
    result: FloatArray = finish[:, column]
    return result


def _distinct_replicas(times: PlacedTimes) -> tuple[IntArray, IntArray]:
    """Replicas that differ, and for each replica its place among them."""
    dp = times.forward_s.shape[2]
    keys = [
        array.reshape(-1, dp)
        for array in (times.forward_s, times.backward_s, times.send_forward_s, times.send_backward_s)
    ]
    _, first, inverse = np.unique(np.concatenate(keys), axis=1, return_index=True, return_inverse=True)
    return first.astype(np.int64), inverse.reshape(-1).astype(np.int64)


def _messages(schedule: Schedule) -> tuple[IntArray, IntArray]:
    """
    Message that each operation needs and makes, or -1, shapes ``(pp, num_ops)``.

    Message ``(direction * groups + group) * m + microbatch`` crosses the border between layer groups ``group`` and
    ``group + 1``, direction 1 being the backward one.
    """
    pp, m = schedule.num_stages, schedule.num_microbatches
    groups = pp * schedule.num_chunks
    group = schedule.chunk * pp + np.arange(pp)[:, None]
    direction = schedule.backward.astype(np.int64)
    above = (direction * groups + group) * m + schedule.microbatch  # border to the next group
    below = above - m
    above = np.where(group == groups - 1, -1, above)
    below = np.where(group == 0, -1, below)
    return np.where(schedule.backward, above, below), np.where(schedule.backward, below, above)


def _hops(times: PlacedTimes, distinct: IntArray) -> FloatArray:
    """Transfer time of the messages of each direction and border, shape ``(2 * groups, num_distinct)``."""
    chunks = times.forward_s.shape[0]
    forward, backward = times.send_forward_s[:, distinct], times.send_backward_s[:, distinct]
    return np.concatenate([np.tile(forward, (chunks, 1)), np.tile(backward, (chunks, 1))])

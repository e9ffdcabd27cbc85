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

Other schedules (``orders.py``) are asynchronous. Where two layer groups are on one stage, nothing is sent.

A backward may be split: ``weight_s`` of the times, or half of what is not tensor communication, is its weight half. A
parameter gather that runs beside the first forwards holds each chunk's forward back until its last piece is there.

Not modelled: NCCL's order of messages inside one communicator, and small messages that a sender may drop into a
buffer before the receiver is there.
"""

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from pipette_opt.costs.placed import PlacedTimes
from pipette_opt.estimator.schedule import WEIGHT, Schedule, build_schedule
from pipette_opt.types import FloatArray, IntArray, P2PMode


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Program:
    """
    A schedule brought into one order for all stages; see ``_kernel`` for what the rows mean.

    Parameters
    ----------
    rows
        Instructions, shape ``(num_instructions, 3)``.
    piece
        Row of the work table that each operation takes, shape ``(pp, num_ops)``.
    hop_link
        Which of all transfer times each border between layer groups has, forwards and then backwards, shape ``(2 *
        groups,)``; see :func:`hop_times`.
    """

    rows: Any
    piece: IntArray
    incoming: IntArray
    outgoing: IntArray
    hop_link: IntArray


def critical_path(
    times: PlacedTimes, num_microbatches: int, p2p: P2PMode, schedule: Schedule | None = None
) -> FloatArray:
    """
    When each stage of each replica has finished its last backward, in seconds, shape ``(pp, dp)``.

    Gradient reduction and optimizer are not included. Without a schedule 1F1B, interleaved if ``times`` has several
    chunks. ``ValueError`` if the schedule deadlocks, or is none of Megatron-Core's and stages wait for their sends.
    """
    finish: FloatArray = chunk_finish(times, num_microbatches, p2p, schedule).max(axis=0)
    return finish


def chunk_finish(
    times: PlacedTimes, num_microbatches: int, p2p: P2PMode, schedule: Schedule | None = None
) -> FloatArray:
    """The same for every chunk's last backward, shape ``(num_chunks, pp, dp)``."""
    from pipette_opt.estimator import _kernel  # loads numba

    program = _program_for(times, num_microbatches, p2p, schedule)
    work, hops = work_table(times), link_table(times)
    replicas, column = distinct_columns(work.reshape(-1, work.shape[2]), hops)
    finish, *_ = _kernel.run(
        program.rows,
        program.piece,
        np.ascontiguousarray(work[:, :, replicas]),
        np.repeat(ready_times(times)[:, :, None], len(replicas), axis=2),
        np.ascontiguousarray(hops[program.hop_link][:, replicas]),
        num_microbatches,
        False,
    )
    result: FloatArray = finish[:, :, column]
    return result


def _program_for(times: PlacedTimes, num_microbatches: int, p2p: P2PMode, schedule: Schedule | None) -> Program:
    num_chunks, pp, _ = times.forward_s.shape
    if schedule is None:
        return megatron_program(pp, num_microbatches, num_chunks, p2p)
    if (schedule.num_stages, schedule.num_chunks, schedule.num_microbatches) != (pp, num_chunks, num_microbatches):
        raise ValueError(
            f"the schedule is of {schedule.num_stages} stages, {schedule.num_chunks} chunks and "
            f"{schedule.num_microbatches} micro-batches, the times of {pp}, {num_chunks} and {num_microbatches}."
        )
    return schedule_program(schedule, p2p)


@lru_cache(maxsize=64)
def megatron_program(pp: int, num_microbatches: int, num_chunks: int, p2p: P2PMode) -> Program:
    """1F1B, kept for the next time."""
    return schedule_program(build_schedule(pp, num_microbatches, num_chunks), p2p)


def schedule_program(schedule: Schedule, p2p: P2PMode) -> Program:
    """Bring a schedule into one order. ``ValueError`` on deadlock, or if ``p2p`` does not go with the schedule."""
    from pipette_opt.estimator import _kernel

    pp, m = schedule.num_stages, schedule.num_microbatches
    mode = _kernel.IDEAL
    if p2p == "blocking" and pp > 1:
        schedule = _megatrons(schedule)
        mode = _kernel.MEGATRON if schedule.num_chunks == 1 else _kernel.MEGATRON_INTERLEAVED
    posted = mode == _kernel.IDEAL
    incoming, outgoing = messages(schedule)
    code, argument, length = _kernel.instructions(incoming, outgoing, schedule.num_warmup, mode)
    num_messages = 2 * pp * schedule.num_chunks * m
    stages, positions, count, stuck = _kernel.order(code, argument, length, num_messages, posted)
    if stuck:
        raise ValueError(f"the schedule deadlocks: {stuck} of {pp} stages wait for each other.")
    return Program(
        rows=_kernel.program(code, argument, stages, positions, count, num_messages, posted),
        piece=schedule.kind * schedule.num_chunks + schedule.chunk,
        incoming=incoming,
        outgoing=outgoing,
        hop_link=_hop_links(schedule),
    )


def _megatrons(schedule: Schedule) -> Schedule:
    """The same order as Megatron-Core's own; who posts and waits when is known for 1F1B only."""
    try:
        own = build_schedule(schedule.num_stages, schedule.num_microbatches, schedule.num_chunks)
    except ValueError:
        own = None
    arrays = ("kind", "microbatch", "chunk")
    if (
        own is None
        or schedule.layout != "loop"
        or not all(np.array_equal(getattr(schedule, name), getattr(own, name)) for name in arrays)
    ):
        raise ValueError("blocking sends are known for 1F1B, interleaved or not; give p2p 'async' for this schedule.")
    return own


def work_table(times: PlacedTimes) -> FloatArray:
    """Seconds of each kind of operation on each chunk, shape ``(4 * num_chunks, pp, dp)``."""
    weight = times.weight_s
    if weight is None:
        weight = (times.backward_s - times.tensor_backward_s) / 2
    table: FloatArray = np.concatenate([times.forward_s, times.backward_s, times.backward_s - weight, weight])
    return table


def link_table(times: PlacedTimes) -> FloatArray:
    """Transfers from each stage to the next, back, and none: shape ``(2 * pp + 1, dp)``."""
    nothing = np.zeros((1, times.send_forward_s.shape[1]))
    return np.concatenate([times.send_forward_s, times.send_backward_s, nothing])


def ready_times(times: PlacedTimes) -> FloatArray:
    """
    When the forwards of each chunk can end at the earliest for its parameters, shape ``(num_chunks, pp)``.

    A gather beside the first forwards brings chunk after chunk; the last piece's share of the forward (of the fastest
    replica) follows its arrival.
    """
    chunks, pp, _ = times.forward_s.shape
    if times.gather_s is None or times.gather_buckets < 1:
        return np.zeros((chunks, pp))
    arrival = np.arange(1, chunks + 1)[:, None] / chunks * times.gather_s
    ready: FloatArray = arrival + times.forward_s.min(axis=2) / times.gather_buckets
    return ready


def distinct_columns(*tables: FloatArray) -> tuple[IntArray, IntArray]:
    """Columns that differ in some table, and for each column its place among them."""
    stacked = np.ascontiguousarray(np.concatenate(tables).T)
    if len(stacked) == 1:
        return np.zeros(1, dtype=np.int64), np.zeros(1, dtype=np.int64)
    rows = stacked.view(np.dtype((np.void, stacked.dtype.itemsize * stacked.shape[1])))
    _, first, inverse = np.unique(rows, return_index=True, return_inverse=True)
    return first.astype(np.int64), inverse.reshape(-1).astype(np.int64)


def messages(schedule: Schedule) -> tuple[IntArray, IntArray]:
    """
    Message that each operation needs and makes, or -1, shapes ``(pp, num_ops)``.

    Message ``(direction * groups + group) * m + microbatch`` crosses the border between layer groups ``group`` and
    ``group + 1``, direction 1 being the backward one. Nothing crosses a border inside a stage; weight halves need and
    make none.
    """
    m = schedule.num_microbatches
    group, backward = schedule.group, schedule.backward
    owner = schedule.stage_of_group
    groups = len(owner)
    crossing = np.append(owner[:-1] != owner[1:], False)
    above = (backward * groups + group) * m + schedule.microbatch  # border to the next group
    above_exists = crossing[group]
    below, below_exists = above - m, (group > 0) & crossing[group - 1]
    some = schedule.kind != WEIGHT
    above = np.where(above_exists & some, above, -1)
    below = np.where(below_exists & some, below, -1)
    return np.where(backward, above, below), np.where(backward, below, above)


def _hop_links(schedule: Schedule) -> IntArray:
    """Row of the link table of each direction and border, shape ``(2 * groups,)``."""
    owner, pp = schedule.stage_of_group, schedule.num_stages
    here, there = owner[:-1], owner[1:]
    onward = (there == here + 1) | (schedule.layout == "loop")
    up = np.where(onward, here, pp + there)  # the second arm of a V goes from stage there + 1 to there
    down = np.where(onward, pp + here, there)
    nothing = np.full(1, 2 * pp)
    inside = here == there
    both = [np.append(np.where(inside, 2 * pp, rows), nothing) for rows in (up, down)]
    return np.concatenate(both)


def run_schedule(times: PlacedTimes, schedule: Schedule, p2p: P2PMode) -> FloatArray:
    """:func:`critical_path` of a given schedule."""
    return critical_path(times, schedule.num_microbatches, p2p, schedule)


def events(
    times: PlacedTimes, num_microbatches: int, p2p: P2PMode, replica: int, schedule: Schedule | None = None
) -> tuple[FloatArray, FloatArray, FloatArray, Program]:
    """
    Everything that happens in one replica.

    Returns
    -------
    tuple
        Durations and ends of all operations, shape ``(pp, num_ops)``; ends of all messages, and the program.
    """
    from pipette_opt.estimator import _kernel

    program = _program_for(times, num_microbatches, p2p, schedule)
    work = np.ascontiguousarray(work_table(times)[:, :, replica : replica + 1])
    hops = np.ascontiguousarray(link_table(times)[program.hop_link][:, replica : replica + 1])
    ready = ready_times(times)[:, :, None]
    _, ends, arrivals = _kernel.run(program.rows, program.piece, work, ready, hops, num_microbatches, True)
    durations = work[program.piece, np.arange(len(ends))[:, None], 0]
    return durations, ends[:, :, 0], arrivals[:, 0], program

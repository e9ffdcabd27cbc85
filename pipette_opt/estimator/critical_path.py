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

``blocking``, interleaved, without ``overlap_p2p_communication``
    Each send is waited for together with the receives posted with it; in the steady state a forward and a backward are
    done first, then both are sent and the inputs of the next two received.

Other schedules (``orders.py``) are asynchronous. Where two layer groups are on one stage, nothing is sent.

A backward may be split: ``weight_s`` of the times, or half of what is not tensor communication, is its weight half. A
parameter gather that runs beside the first forwards holds each chunk's forward back until its last piece is there, and
the first forward and the last backward of a chunk may take longer than the others (``costs/overlap.py``).

Not modelled: NCCL's order of messages inside one communicator, and small messages that a sender may drop into a
buffer before the receiver is there.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from pipette_opt.costs.times import PlacedBatch, PlacedTimes
from pipette_opt.estimator.schedule import BACKWARD, FORWARD, INPUT, WEIGHT, Schedule, build_schedule
from pipette_opt.types import BoolArray, FloatArray, IntArray, P2PMode

FIRST, LAST, LAST_WEIGHT = 4, 5, 6
"""
Kinds of operations beside those of schedules: the first forward of a chunk; its last backward, whole or its weights.
"""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Program:
    """
    A schedule brought into one order for all stages; see ``_kernel`` for what the rows mean.

    Parameters
    ----------
    rows
        Instructions, shape ``(num_instructions, 3)``.
    kind, chunk
        What each operation is and on which chunk, shape ``(pp, num_ops)``; the first and last of each chunk apart.
    launch
        Chunk whose gradients may be reduced when an operation is done, or -1, same shape.
    incoming, outgoing
        Messages that operations need and make, see :func:`messages`.
    hop_link
        Which of all transfer times each border between layer groups has, forwards and then backwards, shape ``(2 *
        groups,)``; see :func:`hop_times`.
    """

    rows: Any
    kind: IntArray
    chunk: IntArray
    launch: IntArray
    incoming: IntArray
    outgoing: IntArray
    hop_link: IntArray


class Walked(NamedTuple):
    """
    What the walk through a schedule finds.

    Parameters
    ----------
    launch_s
        When the reduction of each chunk may start, shape ``(num_chunks, pp, replicas)``.
    finish_s
        End of each stage's last backward, shape ``(pp, replicas)``.
    """

    launch_s: FloatArray
    finish_s: FloatArray


def critical_path(
    times: PlacedTimes, num_microbatches: int, p2p: P2PMode, schedule: Schedule | None = None
) -> FloatArray:
    """
    When each stage of each replica has finished its last backward, in seconds, shape ``(pp, dp)``.

    Gradient reduction and optimizer are not included. Without a schedule 1F1B, interleaved if ``times`` has several
    chunks. ``ValueError`` if the schedule deadlocks, or is none of Megatron-Core's and stages wait for their sends.
    """
    return walk(times, num_microbatches, p2p, schedule).finish_s


def walk(times: PlacedTimes, num_microbatches: int, p2p: P2PMode, schedule: Schedule | None = None) -> Walked:
    """The same, and when the reduction of each chunk may start."""
    program = _program_for(times, num_microbatches, p2p, schedule)
    (walked,) = walk_batches(program, [PlacedBatch.of([times])], num_microbatches)
    return Walked(walked.launch_s[0], walked.finish_s[0])


def walk_batches(program: "Program", batches: Sequence[PlacedBatch], num_microbatches: int) -> list[Walked]:
    """
    The same program on many placements, equal replicas once.

    Returns
    -------
    list
        For each batch, with the placements as one more axis in front of all.
    """
    from pipette_opt.estimator import _kernel  # loads numba

    kinds = table_kinds(program, batches)
    work = np.concatenate([_columns(work_table(one, kinds)) for one in batches], axis=2)
    links = np.concatenate([_columns(link_table(one)) for one in batches], axis=1)
    ready = np.concatenate([_columns(ready_table(one)) for one in batches], axis=2)
    tables = [work.reshape(-1, work.shape[2]), links]
    if ready.any():  # a gather beside the forwards holds back one placement only
        tables.append(ready.reshape(-1, ready.shape[2]))
    replicas, column = distinct_columns(*tables)
    chunks = len(ready)
    launch, finish, *_ = _kernel.run(
        program.rows,
        piece_rows(program, kinds, chunks),
        program.launch,
        np.ascontiguousarray(work[:, :, replicas]),
        np.ascontiguousarray(ready[:, :, replicas]),
        np.ascontiguousarray(links[program.hop_link][:, replicas]),
        num_microbatches,
        chunks * sum(kind in (FORWARD, FIRST) for kind in kinds),
        False,
    )
    found, end = [], 0
    for one in batches:
        mine = column[end : end + one.size * one.forward_s.shape[3]]
        end += len(mine)
        shape = (one.size, one.forward_s.shape[3])
        launches = np.moveaxis(launch[:, :, mine].reshape(*launch.shape[:2], *shape), 2, 0)
        found.append(Walked(launches, np.moveaxis(finish[:, mine].reshape(len(finish), *shape), 1, 0)))
    return found


def _columns(table: FloatArray) -> FloatArray:
    """Tables of placements, ``(n, ..., dp)``, as one table of all their replicas, ``(..., n * dp)``."""
    if len(table) == 1:
        only: FloatArray = table[0]
        return only
    moved = np.moveaxis(table, 0, -2)
    return moved.reshape(*moved.shape[:-2], -1)


def _program_for(times: PlacedTimes, num_microbatches: int, p2p: P2PMode, schedule: Schedule | None) -> Program:
    num_chunks, pp, _ = times.forward_s.shape
    if schedule is None:
        return megatron_program(pp, num_microbatches, num_chunks, p2p, times.overlap_p2p)
    if (schedule.num_stages, schedule.num_chunks, schedule.num_microbatches) != (pp, num_chunks, num_microbatches):
        raise ValueError(
            f"the schedule is of {schedule.num_stages} stages, {schedule.num_chunks} chunks and "
            f"{schedule.num_microbatches} micro-batches, the times of {pp}, {num_chunks} and {num_microbatches}."
        )
    return schedule_program(schedule, p2p, times.overlap_p2p)


@lru_cache(maxsize=64)
def megatron_program(
    pp: int, num_microbatches: int, num_chunks: int, p2p: P2PMode, overlap_p2p: bool = True
) -> Program:
    """1F1B, kept for the next time."""
    return schedule_program(build_schedule(pp, num_microbatches, num_chunks), p2p, overlap_p2p)


def schedule_program(schedule: Schedule, p2p: P2PMode, overlap_p2p: bool = True) -> Program:
    """Bring a schedule into one order. ``ValueError`` on deadlock, or if ``p2p`` does not go with the schedule."""
    from pipette_opt.estimator import _kernel

    pp, m = schedule.num_stages, schedule.num_microbatches
    mode = _kernel.IDEAL
    if p2p == "blocking" and pp > 1:
        schedule = _megatrons(schedule)
        interleaved = _kernel.MEGATRON_INTERLEAVED if overlap_p2p else _kernel.MEGATRON_INTERLEAVED_WAITING
        mode = _kernel.MEGATRON if schedule.num_chunks == 1 else interleaved
    posted = mode == _kernel.IDEAL
    incoming, outgoing = messages(schedule)
    code, argument, length = _kernel.instructions(incoming, outgoing, schedule.num_warmup, mode)
    num_messages = 2 * pp * schedule.num_chunks * m
    stages, positions, count, stuck = _kernel.order(code, argument, length, num_messages, posted)
    if stuck:
        raise ValueError(f"the schedule deadlocks: {stuck} of {pp} stages wait for each other.")
    return Program(
        rows=_kernel.program(code, argument, stages, positions, count, num_messages, posted),
        kind=_kinds_by_end(schedule),
        chunk=schedule.chunk,
        launch=launches(schedule),
        incoming=incoming,
        outgoing=outgoing,
        hop_link=_hop_links(schedule),
    )


def _megatrons(schedule: Schedule) -> Schedule:
    """The same order as Megatron-Core's own; who posts and waits when is known for 1F1B only."""
    if not _is_megatrons(schedule):
        raise ValueError("blocking sends are known for 1F1B, interleaved or not; give p2p 'async' for this schedule.")
    return build_schedule(schedule.num_stages, schedule.num_microbatches, schedule.num_chunks)


def _is_megatrons(schedule: Schedule) -> bool:
    """Whether the order is Megatron-Core's 1F1B, interleaved or not."""
    try:
        own = build_schedule(schedule.num_stages, schedule.num_microbatches, schedule.num_chunks)
    except ValueError:
        return False
    arrays = ("kind", "microbatch", "chunk")
    return schedule.layout == "loop" and all(
        np.array_equal(getattr(schedule, name), getattr(own, name)) for name in arrays
    )


def _kinds_by_end(schedule: Schedule) -> IntArray:
    """Kinds of operations, the first forward and the last backward of each chunk apart, shape ``(pp, num_ops)``."""
    kind, stage = schedule.kind.copy(), np.arange(schedule.num_stages)
    for chunk in range(schedule.num_chunks):
        forwards = (schedule.chunk == chunk) & (schedule.kind == FORWARD)
        kind[stage, forwards.argmax(axis=1)] = FIRST
        last = _last(_done(schedule) & (schedule.chunk == chunk))
        kind[stage, last] = np.where(schedule.kind[stage, last] == WEIGHT, LAST_WEIGHT, LAST)
    return kind


def launches(schedule: Schedule) -> IntArray:
    """
    Chunk whose gradients may be reduced when an operation is done, or -1, shape ``(pp, num_ops)``.

    After its last backward. Interleaved, Megatron-Core waits for as many backwards more as the stage's rank, so that
    all stages start together (``backward_step_helper_postprocess``; ``--no-align-grad-reduce`` is not known here).
    """
    found, stage = np.full(schedule.kind.shape, -1, dtype=np.int64), np.arange(schedule.num_stages)
    done = _done(schedule)
    number, places = np.cumsum(done, axis=1) - 1, np.argsort(~done, axis=1, kind="stable")
    delay = stage if schedule.num_chunks > 1 and _is_megatrons(schedule) else np.zeros_like(stage)
    for chunk in range(schedule.num_chunks):
        last = number[stage, _last(done & (schedule.chunk == chunk))]
        found[stage, places[stage, np.minimum(last + delay, number[:, -1])]] = chunk
    return found


def _done(schedule: Schedule) -> BoolArray:
    """Whether an operation is the last of its micro-batch and chunk."""
    done: BoolArray = (schedule.kind == BACKWARD) | (schedule.kind == WEIGHT)
    return done


def _last(mask: BoolArray) -> IntArray:
    """Place of the last true entry of each row."""
    place: IntArray = mask.shape[1] - 1 - mask[:, ::-1].argmax(axis=1)
    return place


def table_kinds(program: Program, batches: Sequence[PlacedBatch]) -> tuple[int, ...]:
    """Kinds of operations that the work table must tell apart, forwards first."""
    ends = any(one.first_extra_s is not None or one.last_extra_s is not None for one in batches)
    split = bool((program.kind == INPUT).any())
    kinds = (FORWARD, FIRST, BACKWARD, LAST) if ends else (FORWARD, BACKWARD)
    halves = (INPUT, WEIGHT, LAST_WEIGHT) if ends else (INPUT, WEIGHT)
    return (*kinds, *halves) if split else kinds


def piece_rows(program: Program, kinds: tuple[int, ...], num_chunks: int) -> IntArray:
    """Row of the work table that each operation takes, shape ``(pp, num_ops)``."""
    place = np.zeros(LAST_WEIGHT + 1, dtype=np.int64)
    place[list(kinds)] = np.arange(len(kinds))
    for kind, plain in ((FIRST, FORWARD), (LAST, BACKWARD), (LAST_WEIGHT, WEIGHT)):
        if kind not in kinds:
            place[kind] = place[plain]
    rows: IntArray = place[program.kind] * num_chunks + program.chunk
    return rows


def work_table(times: PlacedBatch, kinds: tuple[int, ...]) -> FloatArray:
    """Seconds of each kind of operation on each chunk, shape ``(n, kinds * num_chunks, pp, dp)``."""

    def seconds(kind: int) -> FloatArray:
        if kind in (FORWARD, FIRST):
            extra = times.first_extra_s if kind == FIRST else None
            return times.forward_s if extra is None else times.forward_s + extra
        extra = times.last_extra_s if kind in (LAST, LAST_WEIGHT) else None
        work = times.backward_s
        if kind in (INPUT, WEIGHT, LAST_WEIGHT):
            weight = weight_part(times)
            work = times.backward_s - weight if kind == INPUT else weight
        return work if extra is None else work + extra

    table: FloatArray = np.concatenate([seconds(kind) for kind in kinds], axis=1)
    return table


def weight_part(times: PlacedBatch) -> FloatArray:
    """The part of a backward that makes gradients of weights."""
    if times.weight_s is not None:
        return times.weight_s
    half: FloatArray = (times.backward_s - times.tensor_backward_s) / 2
    return half


def link_table(times: PlacedBatch) -> FloatArray:
    """Transfers from each stage to the next, back, and none: shape ``(n, 2 * pp + 1, dp)``."""
    nothing = np.zeros((times.size, 1, times.send_forward_s.shape[2]))
    return np.concatenate([times.send_forward_s, times.send_backward_s, nothing], axis=1)


def ready_table(times: PlacedBatch) -> FloatArray:
    """When the forwards of each chunk can end at the earliest for its parameters, ``(n, num_chunks, pp, dp)``."""
    return np.zeros_like(times.forward_s) if times.ready_s is None else times.ready_s


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
    batch, one = PlacedBatch.of([times]), slice(replica, replica + 1)
    kinds, chunks = table_kinds(program, [batch]), len(times.forward_s)
    work = np.ascontiguousarray(work_table(batch, kinds)[0][:, :, one])
    piece = piece_rows(program, kinds, chunks)
    _, _, ends, arrivals = _kernel.run(
        program.rows,
        piece,
        program.launch,
        work,
        np.ascontiguousarray(ready_table(batch)[0][:, :, one]),
        np.ascontiguousarray(link_table(batch)[0][program.hop_link][:, one]),
        num_microbatches,
        chunks * sum(kind in (FORWARD, FIRST) for kind in kinds),
        True,
    )
    durations = work[piece, np.arange(len(ends))[:, None], 0]
    return durations, ends[:, :, 0], arrivals[:, 0], program

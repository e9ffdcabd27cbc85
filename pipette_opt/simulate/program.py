"""
Schedules as programs: instructions of all stages in one order, which the kernel executes.

:mod:`pipette_opt.simulate.critical_path` documents when stages post messages and wait for them.
"""

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from pipette_opt.base.types import BoolArray, IntArray, P2PMode
from pipette_opt.parallel.schedule import BACKWARD, FORWARD, WEIGHT, Schedule, build_schedule

FIRST, LAST, LAST_WEIGHT = 4, 5, 6
"""Further operation types: the first forward of a chunk; its last backward, as a whole or only the weights' half."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Program:
    """
    Schedule as one list of instructions for all stages; ``_kernel`` defines the rows.

    Parameters
    ----------
    rows
        Instructions, shape ``(num_instructions, 3)``.
    kind, chunk
        Type and chunk of each operation, shape ``(pp, num_ops)``; the first forward and last backward of each chunk
        have types of their own.
    launch
        Chunk whose gradients may be reduced after an operation, or -1, shape ``(pp, num_ops)``.
    incoming, outgoing
        Messages that operations need and make, see :func:`messages`.
    hop_link
        Row of :func:`~pipette_opt.simulate.time_tables.link_table` for each border between layer groups, forwards and
        then backwards, shape ``(2 * groups,)``.
    """

    rows: Any
    kind: IntArray
    chunk: IntArray
    launch: IntArray
    incoming: IntArray
    outgoing: IntArray
    hop_link: IntArray


@lru_cache(maxsize=64)
def megatron_program(
    pp: int, num_microbatches: int, num_chunks: int, p2p: P2PMode, overlap_p2p: bool = True
) -> Program:
    """Return the program of Megatron-Core's 1F1B; cached."""
    return schedule_program(build_schedule(pp, num_microbatches, num_chunks), p2p, overlap_p2p)


def schedule_program(schedule: Schedule, p2p: P2PMode, overlap_p2p: bool = True) -> Program:
    """Return the program of a schedule. ``ValueError`` on deadlock, or if ``p2p`` is not known for the schedule."""
    from pipette_opt.simulate import _kernel

    pp, m = schedule.num_stages, schedule.num_microbatches
    mode = _kernel.IDEAL
    if p2p == "blocking" and pp > 1:
        schedule = _megatrons(schedule)
        interleaved = _kernel.MEGATRON_INTERLEAVED if overlap_p2p else _kernel.MEGATRON_INTERLEAVED_WAITING
        mode = _kernel.MEGATRON if schedule.num_chunks == 1 else interleaved
    posted = mode == _kernel.IDEAL
    incoming, outgoing = messages(schedule)
    arriving = _arriving(schedule, incoming, outgoing)
    code, argument, length = _kernel.instructions(incoming, arriving, outgoing, schedule.num_warmup, mode)
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
    """Return the schedule as Megatron-Core builds it; ``ValueError`` unless it is 1F1B, as blocking sends need."""
    if not _is_megatrons(schedule):
        raise ValueError("blocking sends are known for 1F1B, interleaved or not; give p2p 'async' for this schedule.")
    return build_schedule(
        schedule.num_stages, schedule.num_microbatches, schedule.num_chunks, group_size=schedule.group_size
    )


def _is_megatrons(schedule: Schedule) -> bool:
    """Return whether the order of operations is Megatron-Core's 1F1B, interleaved or not."""
    try:
        own = build_schedule(
            schedule.num_stages, schedule.num_microbatches, schedule.num_chunks, group_size=schedule.group_size
        )
    except ValueError:
        return False
    arrays = ("kind", "microbatch", "chunk")
    return schedule.layout == "loop" and all(
        np.array_equal(getattr(schedule, name), getattr(own, name)) for name in arrays
    )


def _kinds_by_end(schedule: Schedule) -> IntArray:
    """Return the operation types, with own ones for a chunk's first forward and last backward, ``(pp, num_ops)``."""
    kind, stage = schedule.kind.copy(), np.arange(schedule.num_stages)
    for chunk in range(schedule.num_chunks):
        forwards = (schedule.chunk == chunk) & (schedule.kind == FORWARD)
        kind[stage, forwards.argmax(axis=1)] = FIRST
        last = _last(_done(schedule) & (schedule.chunk == chunk))
        kind[stage, last] = np.where(schedule.kind[stage, last] == WEIGHT, LAST_WEIGHT, LAST)
    return kind


def launches(schedule: Schedule) -> IntArray:
    """
    Return the chunk whose gradients may be reduced after each operation, or -1, shape ``(pp, num_ops)``.

    A reduction may start after the chunk's last backward. With interleaving, Megatron-Core waits for as many further
    backwards as the stage's rank, so that all stages start together (``backward_step_helper_postprocess``). The option
    ``--no-align-grad-reduce`` is not modelled.
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
    """Return a mask of the operations that are the last of their micro-batch and chunk, shape ``(pp, num_ops)``."""
    done: BoolArray = (schedule.kind == BACKWARD) | (schedule.kind == WEIGHT)
    return done


def _last(mask: BoolArray) -> IntArray:
    """Return the position of the last true entry of each row."""
    place: IntArray = mask.shape[1] - 1 - mask[:, ::-1].argmax(axis=1)
    return place


def messages(schedule: Schedule) -> tuple[IntArray, IntArray]:
    """
    Return the message that each operation needs and the message that it makes, or -1, shapes ``(pp, num_ops)``.

    Message ``(direction * groups + group) * m + microbatch`` crosses the border between layer groups ``group`` and
    ``group + 1``; direction 1 is backward. No message crosses a border inside a stage; weight halves need and make
    none.
    """
    m = schedule.num_microbatches
    group, backward = schedule.group, schedule.backward
    owner = schedule.stage_of_group
    groups = len(owner)
    crossing = np.append(owner[:-1] != owner[1:], False)
    above = (backward * groups + group) * m + schedule.microbatch  # border to the next group
    above_exists = crossing[group]
    below, below_exists = above - m, (group > 0) & crossing[group - 1]
    sends = schedule.kind != WEIGHT
    above = np.where(above_exists & sends, above, -1)
    below = np.where(below_exists & sends, below, -1)
    return np.where(backward, above, below), np.where(backward, below, above)


def _arriving(schedule: Schedule, incoming: IntArray, outgoing: IntArray) -> IntArray:
    """
    Return the message that each operation receives in Megatron-Core's order, or -1, shape ``(pp, num_ops)``.

    It is the message that the operation needs, except in interleaved groups larger than the number of stages. Then the
    first stage receives the last stage's latest message, ``pp - 1`` operations behind, and keeps it until needed; the
    last stage does so in the backward direction.
    """
    pp = schedule.num_stages
    if schedule.group_size in (None, pp) or schedule.num_chunks == 1:
        return incoming
    found = incoming.copy()
    for receiver, sender, backward in ((0, pp - 1, False), (pp - 1, 0, True)):
        own, sent = (np.flatnonzero(schedule.backward[stage] == backward) for stage in (receiver, sender))
        found[receiver, own[:pp]] = -1
        found[receiver, own[pp:]] = outgoing[sender, sent[:-pp]]
    return found


def _hop_links(schedule: Schedule) -> IntArray:
    """Return the row of the link table for each direction and border between layer groups, shape ``(2 * groups,)``."""
    owner, pp = schedule.stage_of_group, schedule.num_stages
    here, following = owner[:-1], owner[1:]
    onward = (following == here + 1) | (schedule.layout == "loop")
    up = np.where(
        onward, here, pp + following
    )  # the second arm of a V goes from stage ``following + 1`` to ``following``
    down = np.where(onward, pp + here, following)
    nothing = np.full(1, 2 * pp)
    inside = here == following
    both = [np.append(np.where(inside, 2 * pp, rows), nothing) for rows in (up, down)]
    return np.concatenate(both)

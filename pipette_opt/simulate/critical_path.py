"""
Simulation of a schedule: the longest path through every forward, backward, send and receive.

A message between two stages starts when its sender has posted it and its receiver is ready for it. It takes the
transfer time of its link and direction. The two directions of a link do not slow each other (full duplex); the times
already include the contention of concurrent flows. Posts and waits depend on the send mode:

``async``
    Receives are posted in advance and sends are never waited for: a stage computes as soon as its next input arrives.
``blocking``, without interleaving
    Megatron-Core's 1F1B (release 0.16.1, ``forward_backward_pipelining_without_interleaving``), which refuses to
    overlap. Warm-up: receive, forward, send; steady state: forward, *send forward and receive backward* together,
    backward, *send backward and receive forward* together; flush: receive, backward, send. Both sides wait for each
    transfer. The send-forward-receive-backward of stage ``s`` always meets the send-backward-receive-forward of stage
    ``s + 1``: one exchange, which takes the slower direction.
``blocking``, interleaved
    Megatron-LM's interleaving unless ``--no-overlap-p2p-communication`` is given: it sets
    ``overlap_p2p_comm`` (and ``batch_p2p_comm`` to the opposite). Warm-up and flush still wait for each send together
    with the next receive (``overlap_p2p_comm_warmup_flush`` is off by default). In the steady state, a stage posts a
    send with the receive of its next input of that direction, and continues. It waits for the receive before it
    computes, and for a send one operation of that direction later.
``blocking``, interleaved, without ``overlap_p2p_communication``
    Each send is waited for together with the receives posted with it. In the steady state, a forward and a backward are
    done first, then both are sent and the inputs of the next two received.

Other schedules (``orders.py``) are asynchronous. Two layer groups on one stage send each other nothing.

A backward may be split: its weight half is ``weight_s`` of the times, or half of its time without tensor communication.
A parameter gather that overlaps with the first forwards delays each chunk's forward until its last part has arrived.
The first forward and the last backward of a chunk may take longer than the others (``costs/overlap.py``).

Not modelled: NCCL's order of messages inside one communicator, and small messages that a sender may drop into a buffer
before the receiver is ready.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from pipette_opt.base.types import FloatArray, P2PMode, read_only
from pipette_opt.costs.times import PlacedBatch, PlacedTimes
from pipette_opt.parallel.schedule import FORWARD, Schedule
from pipette_opt.simulate.program import FIRST, Program, megatron_program, schedule_program
from pipette_opt.simulate.time_tables import (
    distinct_columns,
    link_table,
    piece_rows,
    ready_table,
    replica_columns,
    table_kinds,
    work_table,
)


class Walked(NamedTuple):
    """
    Result of executing a schedule.

    Parameters
    ----------
    launch_s
        Earliest start of each chunk's reduction, seconds, shape ``(num_chunks, pp, replicas)``.
    finish_s
        End of each stage's last backward, seconds, shape ``(pp, replicas)``.
    """

    launch_s: FloatArray
    finish_s: FloatArray


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Simulated:
    """
    Result of a simulation.

    Parameters
    ----------
    iteration_time_s
        Seconds of the iteration, optimizer included.
    finish_s
        End of the last backward of each stage of each replica, seconds, shape ``(pp, dp)``.
    reduced_s
        End of each stage's gradient reduction without tied embeddings, seconds, shape ``(pp,)``.
    critical_stage, critical_replica
        Stage that ends last, its reduction included, and its slowest replica.
    """

    iteration_time_s: float
    finish_s: FloatArray
    reduced_s: FloatArray
    critical_stage: int
    critical_replica: int

    def __post_init__(self) -> None:
        object.__setattr__(self, "finish_s", read_only(self.finish_s, np.float64))
        object.__setattr__(self, "reduced_s", read_only(self.reduced_s, np.float64))


def critical_path(
    times: PlacedTimes, num_microbatches: int, p2p: P2PMode, schedule: Schedule | None = None
) -> FloatArray:
    """
    Return the end of the last backward of each stage of each replica, seconds, shape ``(pp, dp)``.

    Gradient reduction and optimizer are not included. Without a schedule: 1F1B, interleaved if ``times`` has several
    chunks. Raises ``ValueError`` if the schedule deadlocks, or if stages wait for their sends in a schedule that is not
    Megatron-Core's.
    """
    return walk(times, num_microbatches, p2p, schedule).finish_s


def walk(times: PlacedTimes, num_microbatches: int, p2p: P2PMode, schedule: Schedule | None = None) -> Walked:
    """Return the ends of last backwards, and the earliest starts of reductions, of a schedule."""
    program = program_for(times, num_microbatches, p2p, schedule)
    (walked,) = walk_batches(program, [PlacedBatch.of(times)], num_microbatches)
    return Walked(walked.launch_s[0], walked.finish_s[0])


def walk_batches(program: Program, batches: Sequence[PlacedBatch], num_microbatches: int) -> list[Walked]:
    """
    Execute one program for many placements; equal replicas only once.

    Returns
    -------
    list
        A result for each batch, with the placements as an additional first axis.
    """
    from pipette_opt.simulate import _kernel  # loads numba

    kinds = table_kinds(program, batches)
    work = np.concatenate([replica_columns(work_table(batch, kinds)) for batch in batches], axis=2)
    links = np.concatenate([replica_columns(link_table(batch)) for batch in batches], axis=1)
    ready = np.concatenate([replica_columns(ready_table(batch)) for batch in batches], axis=2)
    tables = [work.reshape(-1, work.shape[2]), links]
    if ready.any():  # an overlapped gather delays only one placement
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
    for batch in batches:
        mine = column[end : end + batch.size * batch.forward_s.shape[3]]
        end += len(mine)
        shape = (batch.size, batch.forward_s.shape[3])
        launches = np.moveaxis(launch[:, :, mine].reshape(*launch.shape[:2], *shape), 2, 0)
        found.append(Walked(launches, np.moveaxis(finish[:, mine].reshape(len(finish), *shape), 1, 0)))
    return found


def program_for(times: PlacedTimes, num_microbatches: int, p2p: P2PMode, schedule: Schedule | None) -> Program:
    """Return the program of all stages. Raise ``ValueError`` if the schedule does not match the times."""
    num_chunks, pp, _ = times.forward_s.shape
    if schedule is None:
        return megatron_program(pp, num_microbatches, num_chunks, p2p, times.overlap_p2p)
    if (schedule.num_stages, schedule.num_chunks, schedule.num_microbatches) != (pp, num_chunks, num_microbatches):
        raise ValueError(
            f"the schedule is of {schedule.num_stages} stages, {schedule.num_chunks} chunks and "
            f"{schedule.num_microbatches} micro-batches, the times of {pp}, {num_chunks} and {num_microbatches}."
        )
    return schedule_program(schedule, p2p, times.overlap_p2p)


def events(
    times: PlacedTimes, num_microbatches: int, p2p: P2PMode, replica: int, schedule: Schedule | None = None
) -> tuple[FloatArray, FloatArray, FloatArray, Program]:
    """
    Return all events of one replica.

    Returns
    -------
    tuple
        Durations and ends of all operations, seconds, shape ``(pp, num_ops)``; ends of all messages, seconds; the
        program.
    """
    from pipette_opt.simulate import _kernel

    program = program_for(times, num_microbatches, p2p, schedule)
    batch, columns = PlacedBatch.of(times), slice(replica, replica + 1)
    kinds, chunks = table_kinds(program, [batch]), len(times.forward_s)
    work = np.ascontiguousarray(work_table(batch, kinds)[0][:, :, columns])
    piece = piece_rows(program, kinds, chunks)
    _, _, ends, arrivals = _kernel.run(
        program.rows,
        piece,
        program.launch,
        work,
        np.ascontiguousarray(ready_table(batch)[0][:, :, columns]),
        np.ascontiguousarray(link_table(batch)[0][program.hop_link][:, columns]),
        num_microbatches,
        chunks * sum(kind in (FORWARD, FIRST) for kind in kinds),
        True,
    )
    durations = work[piece, np.arange(len(ends))[:, None], 0]
    return durations, ends[:, :, 0], arrivals[:, 0], program

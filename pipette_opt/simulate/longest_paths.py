"""
Critical paths as counts of operations and transfers, in which the simulated time is linear.

The simulator's clock is a maximum over the paths of an event graph that depends only on the schedule, not on the hosts.
A path's length is linear in the times of operations and links. So a critical path found at one placement is a lower
bound at every other, and the simulated time at its own. A relaxation with enough paths is therefore as tight as the
simulator (:mod:`pipette_opt.certify` collects them).
"""

import numpy as np

from pipette_opt.base.types import IntArray, P2PMode
from pipette_opt.costs.times import PlacedBatch, PlacedTimes
from pipette_opt.parallel.schedule import BACKWARD, FORWARD
from pipette_opt.problem.path_counts import PathCounts
from pipette_opt.simulate.critical_path import walk
from pipette_opt.simulate.program import FIRST, LAST, megatron_program
from pipette_opt.simulate.time_tables import link_table, piece_rows, ready_table, work_table

KINDS = (FORWARD, FIRST, BACKWARD, LAST)
"""Operation types that paths distinguish: the first forward and the last backward of a chunk may take longer."""


def critical_counts(
    times: PlacedTimes, num_microbatches: int, p2p: P2PMode, *, deciding_starts: bool = False
) -> PathCounts:
    """
    Return how often the critical path of 1F1B takes each operation and transfer, for the last backward of each stage.

    Each replica has its own paths; equal paths are returned once. With interleaving, the paths to the earliest start of
    the last chunk's reduction are added: all reductions follow that start.

    Parameters
    ----------
    deciding_starts
        Also return the paths to the start of another chunk's reduction, if the reductions from there on end last.
    """
    from pipette_opt.simulate._path_kernel import count_critical

    chunks, pp, _ = times.forward_s.shape
    program, batch = megatron_program(pp, num_microbatches, chunks, p2p), PlacedBatch.of(times)
    piece, stages = piece_rows(program, KINDS, chunks), np.arange(pp)
    work, links, ready = work_table(batch, KINDS)[0], link_table(batch)[0], ready_table(batch)[0]
    chunk_of = (-1, chunks - 1) if chunks > 1 else (-1,)
    targets = np.array([(stage, chunk) for chunk in chunk_of for stage in stages])
    if deciding_starts:
        targets = np.concatenate([targets, _deciding_starts(times, num_microbatches, p2p)])
    parts = np.where(targets[:, 1] < 0, 1, targets[:, 1] + 1)
    columns = np.concatenate([table.reshape(-1, table.shape[-1]) for table in (work, links, ready)])
    found = []
    for replica in np.unique(columns, axis=1, return_index=True)[1].tolist():
        operations, transfers, _, begun, *_ = count_critical(
            program.rows,
            piece,
            np.ascontiguousarray(work[:, :, replica]),
            np.ascontiguousarray(ready[:, :, replica]),
            np.ascontiguousarray(links[program.hop_link, replica]),
            program.hop_link,
            num_microbatches,
            2 * chunks,
            program.launch,
            targets,
        )
        ends = np.stack([targets[:, 0], parts, begun], axis=1)
        found.append(np.concatenate([ends, operations.reshape(len(targets), -1), transfers], axis=1))
    table = np.unique(np.concatenate(found), axis=0)
    end = 3 + len(KINDS) * chunks * pp
    forward, first, backward, last = np.moveaxis(table[:, 3:end].reshape(len(table), len(KINDS), chunks, pp), 1, 0)
    return PathCounts(
        stage=table[:, 0],
        parts=table[:, 1],
        begun=table[:, 2],
        forward=forward + first,
        backward=backward + last,
        first=first,
        last=last,
        up=table[:, end : end + pp],
        down=table[:, end + pp : end + 2 * pp],
    )


def _deciding_starts(times: PlacedTimes, num_microbatches: int, p2p: P2PMode) -> IntArray:
    """
    Return stages with the chunk from whose reduction on all follow without a pause, shape ``(starts, 2)``; without the
    first and the last chunk.
    """
    chunks, pp, _ = times.forward_s.shape
    if chunks < 3 or times.reduction_buckets is None:
        return np.zeros((0, 2), dtype=np.int64)
    shares = np.full((chunks, pp), 1.0 / chunks) if times.reduction_shares is None else times.reduction_shares
    starts = walk(times, num_microbatches, p2p).launch_s.max(axis=2)
    first = (starts + np.cumsum(shares, axis=0) * times.reduction_s).argmax(axis=0)
    stages = np.flatnonzero((first > 0) & (first < chunks - 1))
    return np.stack([stages, first[stages]], axis=1)

"""
Critical paths as counts of work and transfers: what makes the judge linear.

The judge's clock is a maximum over the paths of an event graph that depends on the schedule only, not on the hosts. A
path's length is linear in the times of work and links, so a critical path found at one placement is a lower bound at
every other; and at the placement where it was found it is the judge's time. A lower form of enough paths is therefore
as sharp as the judge (:mod:`pipette_opt.certify` collects them).
"""

import numpy as np

from pipette_opt.base.types import FloatArray, P2PMode
from pipette_opt.costs.times import PlacedTimes
from pipette_opt.judge.program import megatron_program
from pipette_opt.judge.schedule import FORWARD, build_schedule
from pipette_opt.problem.build import PathCounts


def critical_counts(times: PlacedTimes, num_microbatches: int, p2p: P2PMode) -> PathCounts:
    """
    The critical path to each stage's last backward in each replica, each once; 1F1B, interleaved or not.

    What first forwards wait for parameters, and what collectives slow compute down, is left out.
    """
    from pipette_opt.judge._path_kernel import count_critical

    chunks, pp, _ = times.forward_s.shape
    program, schedule = (
        megatron_program(pp, num_microbatches, chunks, p2p),
        build_schedule(pp, num_microbatches, chunks),
    )
    piece = np.where(schedule.kind == FORWARD, 0, chunks) + schedule.chunk
    work = np.concatenate([times.forward_s, times.backward_s])
    links = np.concatenate([times.send_forward_s, times.send_backward_s, np.zeros((1, work.shape[2]))])
    found = []
    for replica in _distinct(np.concatenate([work.reshape(-1, work.shape[2]), links])):
        operations, transfers, *_ = count_critical(
            program.rows,
            piece,
            np.ascontiguousarray(work[:, :, replica]),
            np.zeros((chunks, pp)),
            np.ascontiguousarray(links[program.hop_link, replica]),
            program.hop_link,
            num_microbatches,
            chunks,
            np.arange(pp),
        )
        found.append(np.concatenate([np.arange(pp)[:, None], operations.reshape(pp, -1), transfers], axis=1))
    table = np.unique(np.concatenate(found), axis=0)
    ends = 1 + 2 * chunks * pp
    operations = table[:, 1:ends].reshape(len(table), 2, chunks, pp)
    return PathCounts(
        stage=table[:, 0],
        forward=operations[:, 0],
        backward=operations[:, 1],
        up=table[:, ends : ends + pp],
        down=table[:, ends + pp : ends + 2 * pp],
    )


def _distinct(columns: FloatArray) -> list[int]:
    """One of each set of equal columns."""
    _, first = np.unique(columns, axis=1, return_index=True)
    return [int(one) for one in first]

"""
Iteration times of thousands of placed configurations.

Replicas do not mix before the reduction, so the replicas of all placements that run the same schedule are stacked,
equal ones timed once, and blocks of them timed side by side on all cores.
"""

from collections.abc import Sequence

import numpy as np

from pipette_opt.costs.placed import PlacedTimes, placed_times
from pipette_opt.errors import MissingLinkError
from pipette_opt.estimator.critical_path import distinct_columns, link_table, megatron_program, ready_times, work_table
from pipette_opt.estimator.estimate import microbatches_of, stages_done
from pipette_opt.parallel import ParallelConfig, Placement
from pipette_opt.specs import Instance
from pipette_opt.types import FloatArray, P2PMode

_Shape = tuple[int, int, int]
"""Stages, micro-batches, chunks: what a schedule depends on."""


def estimate_many(instance: Instance, placed: Sequence[tuple[ParallelConfig, Placement]]) -> FloatArray:
    """
    Iteration times of placed configurations in 1F1B, in seconds, shape ``(len(placed),)``.

    The same times as :func:`~pipette_opt.estimator.estimate.estimate` gives one by one; infinite where a placement uses
    a link that was not measured. ``InputError`` if the batch does not divide.
    """
    result = np.full(len(placed), np.inf)
    times: dict[int, PlacedTimes] = {}
    for index, (config, placement) in enumerate(placed):
        try:
            times[index] = placed_times(instance, config, placement)
        except MissingLinkError:
            continue
    microbatches = [microbatches_of(instance, placed[index][0]) for index in times]
    result[list(times)] = judge_many(list(times.values()), microbatches, instance.p2p)
    return result


def judge_many(times: Sequence[PlacedTimes], num_microbatches: Sequence[int], p2p: P2PMode) -> FloatArray:
    """Iteration times in 1F1B, in seconds, shape ``(len(times),)``; ``num_microbatches`` of each."""
    result = np.empty(len(times))
    by_shape: dict[_Shape, list[int]] = {}
    for index, (one, m) in enumerate(zip(times, num_microbatches, strict=True)):
        chunks, pp, _ = one.forward_s.shape
        by_shape.setdefault((pp, m, chunks), []).append(index)
    for shape, members in by_shape.items():
        finish = _finish_many([times[index] for index in members], shape, p2p)
        for index, ends in zip(members, finish, strict=True):
            result[index] = float(stages_done(times[index], ends).max()) + times[index].optimizer_s
    return result


def _finish_many(times: Sequence[PlacedTimes], shape: _Shape, p2p: P2PMode) -> list[FloatArray]:
    """Ends of each chunk's last backward, one array ``(num_chunks, pp, dp)`` per element."""
    from pipette_opt.estimator import _kernel

    pp, m, chunks = shape
    program = megatron_program(pp, m, chunks, p2p)
    # A gather beside the forwards holds back one placement only, so its times go along with each of its replicas.
    ready = np.concatenate([np.repeat(ready_times(one)[..., None], one.forward_s.shape[2], axis=2) for one in times], 2)
    work = np.concatenate([work_table(one) for one in times], axis=2)
    links = np.concatenate([link_table(one) for one in times], axis=1)
    replicas, column = distinct_columns(work.reshape(-1, work.shape[2]), links, ready.reshape(-1, ready.shape[2]))
    finish = _kernel.run_many(
        program.rows,
        program.piece,
        np.ascontiguousarray(work[:, :, replicas]),
        np.ascontiguousarray(ready[:, :, replicas]),
        np.ascontiguousarray(links[program.hop_link][:, replicas]),
        m,
    )
    last = np.cumsum([one.forward_s.shape[2] for one in times])
    return [finish[:, :, column[end - one.forward_s.shape[2] : end]] for end, one in zip(last, times, strict=True)]

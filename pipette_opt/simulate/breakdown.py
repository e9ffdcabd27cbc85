"""
Breakdown of an iteration's time by cause: of the whole pipeline, and of its critical path.

**Whole pipeline.** Every rank does one thing at a time: compute, one of the types of communication, or nothing. The
seconds of each are averaged over all ranks, so they add up to the iteration.

**Critical path.** The chain of operations and messages, each waiting for the one before, that ends with the iteration.
It goes from stage to stage and never idles, so it has no bubble. Only operations on it can make the iteration shorter.

========================  ============================================================================================
``compute``               kernels of the layers, recomputation included
``waiting_for_launches``  the GPU waits for the host's launches, or hides communication meanwhile
``tensor_parallel``       tensor- and context-parallel communication that compute does not hide
``expert_parallel``       tokens on their way to experts and back
``pipeline_parallel``     a transfer between stages is under way and the receiver (or a blocking sender) waits for it
``data_parallel``         gradients and parameters: slowdown and waits by their collectives, during and after compute
``bubble``                idle: warm-up and flush, slower stages and replicas, the last reduction
``optimizer``             the step, its gradient norm included
========================  ============================================================================================
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from pipette_opt.base.types import FloatArray, IntArray, P2PMode
from pipette_opt.costs.times import PlacedBatch, PlacedTimes
from pipette_opt.parallel.schedule import FORWARD, Schedule
from pipette_opt.simulate.critical_path import Simulated, program_for
from pipette_opt.simulate.program import FIRST
from pipette_opt.simulate.time_tables import (
    distinct_columns,
    link_table,
    piece_rows,
    ready_table,
    table_kinds,
    weight_part,
    work_table,
)

WAITING = "waiting_for_launches"
"""Cause that is shown only if GPUs wait for :data:`MIN_WAITING` of an iteration; else it counts as compute."""

MIN_WAITING = 1e-3
"""Least share of an iteration that waits for launches have to be shown apart. Chosen: tables have such digits."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Causes:
    """Seconds by cause: mean over all ranks, and along the critical path; each adds up to the iteration time."""

    pipeline: Mapping[str, float]
    critical_path: Mapping[str, float]


def causes_of(
    times: PlacedTimes, simulated: Simulated, num_microbatches: int, p2p: P2PMode, schedule: Schedule | None = None
) -> Causes:
    """Return the simulated time divided by cause; for 1F1B unless a schedule is given."""
    from pipette_opt.simulate._path_kernel import count_critical

    program = program_for(times, num_microbatches, p2p, schedule)
    batch, (chunks, _, dp) = PlacedBatch.of(times), times.forward_s.shape
    kinds = table_kinds(program, [batch])
    piece, work, links = piece_rows(program, kinds, chunks), work_table(batch, kinds)[0], link_table(batch)[0]
    ready, parts = ready_table(batch)[0], _parts(batch, kinds, work)
    stage, replica = simulated.critical_stage, simulated.critical_replica
    num_forward_rows = chunks * sum(kind in (FORWARD, FIRST) for kind in kinds)

    def follow(column: int, targets: IntArray) -> Any:
        return count_critical(
            program.rows,
            piece,
            np.ascontiguousarray(work[:, :, column]),
            np.ascontiguousarray(ready[:, :, column]),
            np.ascontiguousarray(links[program.hop_link, column]),
            program.hop_link,
            num_microbatches,
            num_forward_rows,
            program.launch,
            targets,
        )

    operations, transfers, started_s, *_ = follow(replica, np.array([[stage, -1]]))
    path = {name: float((operations[0] * table[:, :, replica]).sum()) for name, table in parts.items()}
    path["pipeline_parallel"] = float(transfers[0] @ links[:, replica])
    path["data_parallel"] += float(started_s[0]) + simulated.iteration_time_s - times.optimizer_s
    path["data_parallel"] -= float(simulated.finish_s[stage, replica])

    distinct, place = distinct_columns(work.reshape(-1, dp), links, ready.reshape(-1, dp))
    waits = [follow(int(column), np.empty((0, 2), dtype=np.int64))[4:] for column in distinct]
    transfer_s, gather_s = (np.stack(each, axis=1)[:, place] for each in zip(*waits, strict=True))
    counts = np.stack([np.bincount(rows, minlength=len(work)) for rows in piece], axis=1)  # of each kind, by stage
    ranks = {name: np.einsum("rs,rsd->sd", counts, table) for name, table in parts.items()}
    ranks["pipeline_parallel"] = transfer_s
    after = simulated.reduced_s - simulated.finish_s.max(axis=1)
    after[[0, -1]] += times.embedding_s
    ranks["data_parallel"] = ranks["data_parallel"] + gather_s + after[:, None]
    mean = {name: float(seconds.mean()) for name, seconds in ranks.items()}
    if mean[WAITING] < MIN_WAITING * simulated.iteration_time_s:
        for causes in (mean, path):
            causes["compute"] += causes.pop(WAITING)
    return Causes(pipeline=_adding_up(mean, times, simulated), critical_path=_adding_up(path, times, simulated))


def _adding_up(seconds: dict[str, float], times: PlacedTimes, simulated: Simulated) -> dict[str, float]:
    """Return the seconds in the order of the module's table, with the remaining time as bubble."""
    left = simulated.iteration_time_s - times.optimizer_s - sum(seconds.values())
    bubble = left if left > 1e-12 * simulated.iteration_time_s else 0.0
    compute = seconds["compute"] + left - bubble  # rounding
    return {
        "compute": compute,
        **({WAITING: seconds[WAITING]} if WAITING in seconds else {}),
        "tensor_parallel": seconds["tensor_parallel"],
        **({"expert_parallel": seconds["expert_parallel"]} if times.expert_forward_s is not None else {}),
        "pipeline_parallel": seconds["pipeline_parallel"],
        "data_parallel": seconds["data_parallel"],
        "bubble": bubble,
        "optimizer": times.optimizer_s,
    }


def _parts(times: PlacedBatch, kinds: tuple[int, ...], work: FloatArray) -> dict[str, FloatArray]:
    """Return the work table divided by cause, seconds, shape ``(kinds * num_chunks, pp, dp)`` for each cause."""
    nothing = np.zeros_like(times.forward_s)

    def table(forward: FloatArray | None, backward: FloatArray | None, weight: FloatArray = nothing) -> FloatArray:
        if forward is None or backward is None:
            return np.zeros_like(work)
        part = replace(
            times, forward_s=forward, backward_s=backward, weight_s=weight, first_extra_s=None, last_extra_s=None
        )
        found: FloatArray = work_table(part, kinds)[0]
        return found

    inside = table(times.tensor_forward_s, times.tensor_backward_s)
    experts = table(times.expert_forward_s, times.expert_backward_s)
    sharded = np.zeros_like(work)
    if times.sharded_backward_s is not None:
        alone = times.backward_s - times.tensor_backward_s
        share = np.divide(weight_part(times), alone, out=np.zeros_like(alone), where=alone > 0)
        sharded = table(times.sharded_forward_s, times.sharded_backward_s, times.sharded_backward_s * share)
    launches = np.zeros_like(work)
    if times.launch_backward_s is not None:
        launches = table(times.launch_forward_s, times.launch_backward_s, times.launch_backward_s / 2)
    plain = table(times.forward_s, times.backward_s, weight_part(times))
    beside = work - plain  # slowdown by overlapped collectives
    return {
        "compute": work - inside - sharded - beside - launches,
        WAITING: launches,
        "tensor_parallel": inside - experts,
        "expert_parallel": experts,
        "data_parallel": sharded + beside,
    }

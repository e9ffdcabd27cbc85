"""Iteration time of a placed configuration, by cause."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from pipette_opt.costs.placed import PlacedTimes, placed_times
from pipette_opt.errors import InputError
from pipette_opt.estimator.critical_path import critical_path
from pipette_opt.parallel import ParallelConfig, Placement
from pipette_opt.plan import IterationTime
from pipette_opt.specs import Instance
from pipette_opt.types import FloatArray, P2PMode, read_only


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Judged:
    """
    What the critical path says.

    Parameters
    ----------
    breakdown
        Seconds by cause, adding up to ``iteration_time_s``; keys as in :class:`~pipette_opt.plan.IterationTime`.
    finish_s
        End of the last backward of each stage of each replica, shape ``(pp, dp)``.
    critical_stage, critical_replica
        The stage that is finished last, its reduction included, and its slowest replica.
    """

    iteration_time_s: float
    breakdown: Mapping[str, float]
    finish_s: FloatArray
    critical_stage: int
    critical_replica: int

    def __post_init__(self) -> None:
        object.__setattr__(self, "finish_s", read_only(self.finish_s, np.float64))


def judge_times(times: PlacedTimes, num_microbatches: int, p2p: P2PMode) -> Judged:
    """
    Iteration time: the stage that is finished last after its slowest replica and its reduction, then the optimizer.

    Of that stage: its own work without and with tensor communication, the idle time that would remain if all
    transfers were free (bubble), what the transfers add (pipeline_parallel), its reduction (data_parallel). Each part
    is non-negative, as a stage does all its work before it is finished, and as no operation of the schedule starts
    later when a transfer gets shorter: starts are maxima of sums.
    """
    finish = critical_path(times, num_microbatches, p2p)
    done = finish.max(axis=1) + times.reduction_s
    stage = int(done.argmax())
    replica = int(finish[stage].argmax())
    without_transfers = float(critical_path(_transfers_free(times, replica), num_microbatches, p2p)[stage, 0])
    finished = float(finish[stage, replica])
    work = num_microbatches * float((times.forward_s + times.backward_s)[:, stage, replica].sum())
    tensor = num_microbatches * float((times.tensor_forward_s + times.tensor_backward_s)[:, stage, replica].sum())
    # The clips remove rounding only.
    pipeline = max(finished - without_transfers, 0.0)
    bubble = max(finished - pipeline - work, 0.0)
    breakdown = {
        "compute": finished - pipeline - bubble - tensor,
        "tensor_parallel": tensor,
        "bubble": bubble,
        "pipeline_parallel": pipeline,
        "data_parallel": float(times.reduction_s[stage]),
        "optimizer": times.optimizer_s,
    }
    return Judged(
        iteration_time_s=float(done[stage]) + times.optimizer_s,
        breakdown=breakdown,
        finish_s=finish,
        critical_stage=stage,
        critical_replica=replica,
    )


def estimate(instance: Instance, config: ParallelConfig, placement: Placement) -> IterationTime:
    """Judge a configuration on its placement. ``InputError`` if the batch or the GPU's data do not allow it."""
    training = instance.training
    try:
        num_microbatches = config.num_microbatches(training.global_batch_size)
    except ValueError as error:
        raise InputError("global_batch_size", str(error)) from error
    judged = judge_times(placed_times(instance, config, placement), num_microbatches, instance.p2p)
    tokens_per_s = training.tokens / judged.iteration_time_s
    flops_per_s = instance.model.flops_per_token(training.seq_length) * tokens_per_s
    return IterationTime(
        iteration_time_s=judged.iteration_time_s,
        tokens_per_s=tokens_per_s,
        tokens_per_s_per_gpu=tokens_per_s / config.world_size,
        mfu=flops_per_s / _peak_flops(instance, placement),
        breakdown=judged.breakdown,
    )


def _transfers_free(times: PlacedTimes, replica: int) -> PlacedTimes:
    """One replica with all its transfers between stages taking no time."""
    one = slice(replica, replica + 1)
    free = np.zeros_like(times.send_forward_s[:, one])
    return replace(
        times,
        forward_s=times.forward_s[:, :, one],
        backward_s=times.backward_s[:, :, one],
        tensor_forward_s=times.tensor_forward_s[:, :, one],
        tensor_backward_s=times.tensor_backward_s[:, :, one],
        send_forward_s=free,
        send_backward_s=free,
    )


def _peak_flops(instance: Instance, placement: Placement) -> float:
    """Peak of all GPUs with a rank, in the precision of the training."""
    precision = instance.training.precision
    nodes, num_ranks = np.unique(placement.node, return_counts=True)
    total = 0.0
    for node, ranks in zip(nodes, num_ranks, strict=True):
        gpu = instance.cluster.nodes[node].gpu
        if precision not in gpu.peak_flops:
            known = ", ".join(sorted(gpu.peak_flops))
            raise InputError(f"GPU {gpu.name}", f"has no peak for precision {precision}; it has {known}.")
        total += float(ranks) * gpu.peak_flops[precision]
    return total

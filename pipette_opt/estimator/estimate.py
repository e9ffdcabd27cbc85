"""Iteration time of a placed configuration, by cause."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from pipette_opt.costs.placed import PlacedTimes, placed_times
from pipette_opt.errors import InputError
from pipette_opt.estimator.critical_path import chunk_finish, critical_path, work_table
from pipette_opt.estimator.schedule import WEIGHT, Schedule
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


def judge_times(times: PlacedTimes, num_microbatches: int, p2p: P2PMode, schedule: Schedule | None = None) -> Judged:
    """
    Iteration time: the stage that is finished last after its slowest replica and its reduction, then the optimizer.

    Of that stage: its own work without and with tensor communication, the idle time that would remain if all
    transfers were free (bubble), what the transfers add (pipeline_parallel), and what gradients and parameters take
    after the last backward (data_parallel). Each part is non-negative, as a stage does all its work before it is
    finished, and as no operation of the schedule starts later when a transfer gets shorter: starts are maxima of sums.
    """
    by_chunk = chunk_finish(times, num_microbatches, p2p, schedule)
    finish = by_chunk.max(axis=0)
    split = schedule is not None and bool((schedule.kind == WEIGHT).any())
    done = stages_done(times, by_chunk, split_backward=split)
    stage = int(done.argmax())
    replica = int(finish[stage].argmax())
    free = critical_path(_transfers_free(times, replica), num_microbatches, p2p, schedule)
    finished = float(finish[stage, replica])
    work = num_microbatches * float((times.forward_s + times.backward_s)[:, stage, replica].sum())
    tensor = num_microbatches * float((times.tensor_forward_s + times.tensor_backward_s)[:, stage, replica].sum())
    # The clips remove rounding only.
    pipeline = max(finished - float(free[stage, 0]), 0.0)
    bubble = max(finished - pipeline - work, 0.0)
    breakdown = {
        "compute": finished - pipeline - bubble - tensor,
        "tensor_parallel": tensor,
        "bubble": bubble,
        "pipeline_parallel": pipeline,
        "data_parallel": float(done[stage]) - finished,
        "optimizer": times.optimizer_s,
    }
    return Judged(
        iteration_time_s=float(done[stage]) + times.optimizer_s,
        breakdown=breakdown,
        finish_s=finish,
        critical_stage=stage,
        critical_replica=replica,
    )


def stages_done(times: PlacedTimes, chunk_finish_s: FloatArray, *, split_backward: bool = False) -> FloatArray:
    """
    When each stage has its gradients reduced, and its parameters gathered again where that follows the optimizer.

    The first and the last stage then reduce the gradient of tied word embeddings between them, as Megatron-Core does
    (``finalize_model_grads``).

    Parameters
    ----------
    chunk_finish_s
        End of each chunk's last backward, shape ``(num_chunks, pp, dp)``.
    split_backward
        Whether that is a weight half.

    Returns
    -------
    FloatArray
        Seconds without the optimizer, shape ``(pp,)``.
    """
    done = reductions_end(times, chunk_finish_s, split_backward=split_backward)
    if times.embedding_s:
        done[[0, -1]] = max(done[0], done[-1]) + times.embedding_s
    if times.gather_s is not None and times.gather_buckets < 1:
        done = done + times.gather_s
    return done


def reductions_end(times: PlacedTimes, chunk_finish_s: FloatArray, *, split_backward: bool = False) -> FloatArray:
    """End of each stage's gradient reduction, shape ``(pp,)``."""
    end: FloatArray = reduction_pieces(times, chunk_finish_s, split_backward=split_backward)[-1]
    return end.copy()


def reduction_pieces(times: PlacedTimes, chunk_finish_s: FloatArray, *, split_backward: bool = False) -> FloatArray:
    """
    Ends of the pieces of each stage's gradient reduction, each an equal part of it, shape ``(num_pieces, pp)``.

    One piece after the last backward; or buckets: the gradients of a chunk come evenly during its last backward, equal
    buckets of all chunks are reduced one after the other, and none starts before its slowest replica has it.
    """
    if times.reduction_buckets < 1:
        whole: FloatArray = (chunk_finish_s.max(axis=(0, 2)) + times.reduction_s)[None]
        return whole
    chunks, buckets = len(chunk_finish_s), times.reduction_buckets
    last_s = work_table(times)[-chunks:] if split_backward else times.backward_s
    shares = np.arange(buckets)[::-1, None, None, None] / buckets
    ready = (chunk_finish_s - shares * last_s).max(axis=3).reshape(chunks * buckets, -1)
    ends = np.sort(ready, axis=0)
    ends[0] += times.reduction_s / len(ends)
    for index in range(1, len(ends)):
        ends[index] = np.maximum(ends[index - 1], ends[index]) + times.reduction_s / len(ends)
    return ends


def estimate(
    instance: Instance, config: ParallelConfig, placement: Placement, schedule: Schedule | None = None
) -> IterationTime:
    """
    Judge a configuration on its placement, in 1F1B unless a schedule is given.

    ``InputError`` if the batch or the GPU's data do not allow it.
    """
    num_microbatches = microbatches_of(instance, config)
    judged = judge_times(placed_times(instance, config, placement), num_microbatches, instance.p2p, schedule)
    training = instance.training
    tokens_per_s = training.tokens / judged.iteration_time_s
    flops_per_s = instance.model.flops_per_token(training.seq_length) * tokens_per_s
    return IterationTime(
        iteration_time_s=judged.iteration_time_s,
        tokens_per_s=tokens_per_s,
        tokens_per_s_per_gpu=tokens_per_s / config.world_size,
        mfu=flops_per_s / _peak_flops(instance, placement),
        breakdown=judged.breakdown,
    )


def microbatches_of(instance: Instance, config: ParallelConfig) -> int:
    """Micro-batches of one replica. ``InputError`` if they do not come out whole."""
    try:
        return config.num_microbatches(instance.training.global_batch_size)
    except ValueError as error:
        raise InputError("global_batch_size", str(error)) from error


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
        weight_s=None if times.weight_s is None else times.weight_s[:, :, one],
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

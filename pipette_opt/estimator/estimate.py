"""Iteration time of a placed configuration, by cause."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from pipette_opt.costs.placed import placed_times
from pipette_opt.costs.products import FP8
from pipette_opt.costs.times import PlacedBatch, PlacedTimes
from pipette_opt.errors import InputError
from pipette_opt.estimator.critical_path import Walked, critical_path, walk
from pipette_opt.estimator.schedule import WEIGHT, Layout, Schedule
from pipette_opt.estimator.time_tables import weight_part
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

    Of that stage: its own work without communication inside layers, that communication (what experts send apart), the
    idle time that would remain if all transfers were free (bubble), what the transfers add (pipeline_parallel), and
    what gradients and parameters take after the last backward or add beside the others (data_parallel). Each part is
    non-negative, as a stage does all its work before it is finished, and as no operation of the schedule starts later
    when something gets shorter: starts are maxima of sums.
    """
    walked = walk(times, num_microbatches, p2p, schedule)
    finish, split = walked.finish_s, is_split(schedule)
    done = stages_done(times, walked, split_backward=split)
    stage = int(done.argmax())
    replica = int(finish[stage].argmax())
    one = _replica(times, replica)
    finished = alone = float(finish[stage, replica])
    if any(getattr(times, name) is not None for name in BESIDE):
        one = replace(one, ready_s=None, first_extra_s=None, last_extra_s=None)
        alone = float(critical_path(one, num_microbatches, p2p, schedule)[stage, 0])
    free = critical_path(_transfers_free(one), num_microbatches, p2p, schedule)
    work = num_microbatches * float((times.forward_s + times.backward_s)[:, stage, replica].sum())
    inside = num_microbatches * float((times.tensor_forward_s + times.tensor_backward_s)[:, stage, replica].sum())
    experts = 0.0
    if times.expert_forward_s is not None and times.expert_backward_s is not None:
        sent = (times.expert_forward_s + times.expert_backward_s)[:, stage, replica]
        experts = num_microbatches * float(sent.sum())
    sharded = 0.0
    if times.sharded_forward_s is not None and times.sharded_backward_s is not None:
        shown = (times.sharded_forward_s + times.sharded_backward_s)[:, stage, replica]
        sharded = num_microbatches * float(shown.sum())
    # The clips remove rounding only.
    pipeline = max(alone - float(free[stage, 0]), 0.0)
    bubble = max(alone - pipeline - work, 0.0)
    breakdown = {
        "compute": alone - pipeline - bubble - inside - sharded,
        "tensor_parallel": max(inside - experts, 0.0),
        **({"expert_parallel": experts} if times.expert_forward_s is not None else {}),
        "bubble": bubble,
        "pipeline_parallel": pipeline,
        "data_parallel": float(done[stage]) - finished + max(finished - alone, 0.0) + sharded,
        "optimizer": times.optimizer_s,
    }
    return Judged(
        iteration_time_s=float(done[stage]) + times.optimizer_s,
        breakdown=breakdown,
        finish_s=finish,
        critical_stage=stage,
        critical_replica=replica,
    )


def layout_of(schedule: Schedule | None) -> Layout:
    """Where a schedule has the layers."""
    return "loop" if schedule is None else schedule.layout


def is_split(schedule: Schedule | None) -> bool:
    """Whether a schedule splits its backwards."""
    return schedule is not None and bool((schedule.kind == WEIGHT).any())


def stages_done(times: PlacedTimes, walked: Walked, *, split_backward: bool = False) -> FloatArray:
    """:func:`batch_done` of one placement, shape ``(pp,)``."""
    one = Walked(walked.launch_s[None], walked.finish_s[None])
    done: FloatArray = batch_done(PlacedBatch.of([times]), one, split_backward=split_backward)[0]
    return done


def batch_done(times: PlacedBatch, walked: Walked, *, split_backward: bool = False) -> FloatArray:
    """
    When each stage has its gradients reduced, seconds without the optimizer, shape ``(n, pp)``.

    The first and the last stage then reduce the gradient of tied word embeddings between them, as Megatron-Core does
    (``finalize_model_grads``).

    Parameters
    ----------
    walked
        The critical path, with the placements as first axis.
    split_backward
        Whether the last backward is a weight half.
    """
    done: FloatArray = reduction_ends(times, walked, split_backward=split_backward)[-1].copy()
    tied = times.embedding_s > 0
    if tied.any():
        later = np.maximum(done[:, 0], done[:, -1]) + times.embedding_s
        done[tied, 0] = done[tied, -1] = later[tied]
    return done


def reduction_ends(times: PlacedBatch, walked: Walked, *, split_backward: bool = False) -> FloatArray:
    """
    Ends of the equal parts of each stage's gradient reduction, one for each chunk, shape ``(num_chunks, n, pp)``.

    After the last backward, as one (all parts end together); or beside the last backwards:

    - With one chunk, in buckets: its gradients come evenly during its last backward, equal buckets are reduced one
      after the other, and none starts before its slowest replica has it. Of ``K`` buckets the k-th waits for ``finish -
      (1 - k / K) backward``, and ``K - k + 1`` are left; this is linear in k, so the first or the last decides.
    - With several chunks, each as one part when it may start.
    """
    chunks, whole = times.forward_s.shape[1], times.reduction_s
    together: FloatArray = walked.finish_s.max(axis=2) + whole
    if times.reduction_buckets is None:
        return np.repeat(together[None], chunks, axis=0)
    beside = times.reduction_buckets > 0
    if chunks == 1:
        buckets = np.maximum(times.reduction_buckets, 1)[..., None]
        work = last_backward(times, split_backward=split_backward)[:, 0]
        shown = np.maximum(whole[..., None] / buckets, whole[..., None] - (1.0 - 1.0 / buckets) * work)
        ends: FloatArray = np.where(beside, (walked.finish_s + shown).max(axis=2), together)[None]
        return ends
    starts = np.sort(walked.launch_s.max(axis=3), axis=1)
    ends = np.empty((chunks, *together.shape))
    for part in range(chunks):
        begin = starts[:, part] if part == 0 else np.maximum(starts[:, part], ends[part - 1])
        ends[part] = begin + whole / chunks
    of_chunks: FloatArray = np.where(beside, ends, together)
    return of_chunks


def last_backward(times: PlacedBatch, *, split_backward: bool) -> FloatArray:
    """What makes the gradients of each chunk's weights for the last micro-batch, shape ``(n, num_chunks, pp, dp)``."""
    work = weight_part(times) if split_backward else times.backward_s
    return work if times.last_extra_s is None else work + times.last_extra_s


def estimate(
    instance: Instance, config: ParallelConfig, placement: Placement, schedule: Schedule | None = None
) -> IterationTime:
    """
    Judge a configuration on its placement, in 1F1B unless a schedule is given.

    ``InputError`` if the batch or the GPU's data do not allow it.
    """
    num_microbatches = microbatches_of(instance, config)
    times = placed_times(instance, config, placement, layout_of(schedule))
    judged = judge_times(times, num_microbatches, instance.p2p, schedule)
    training = instance.training
    tokens_per_s = training.tokens / judged.iteration_time_s
    flops_per_s = instance.model.flops_per_token(training.seq_length) * tokens_per_s
    return IterationTime(
        iteration_time_s=judged.iteration_time_s,
        tokens_per_s=tokens_per_s,
        tokens_per_s_per_gpu=tokens_per_s / config.world_size,
        mfu=flops_per_s / _peak_flops(instance, placement),
        breakdown=_with_loss(judged.breakdown, instance, config),
    )


def _with_loss(breakdown: Mapping[str, float], instance: Instance, config: ParallelConfig) -> Mapping[str, float]:
    """What is lost where memory is nearly full, apart from the optimizer's step, whose time has it."""
    if instance.edge_loss_s is None:
        return breakdown
    lost = instance.edge_loss_s(config)
    return {**breakdown, "optimizer": max(breakdown["optimizer"] - lost, 0.0), "full_memory": lost}


def microbatches_of(instance: Instance, config: ParallelConfig) -> int:
    """Micro-batches of one replica. ``InputError`` if they do not come out whole."""
    try:
        return config.num_microbatches(instance.training.global_batch_size)
    except ValueError as error:
        raise InputError("global_batch_size", str(error)) from error


EXPERTS = ("expert_forward_s", "expert_backward_s")
"""Tokens on their way."""

SHARDED = ("sharded_forward_s", "sharded_backward_s")
"""What ZeRO stages 2 and 3 add to every micro-batch."""

BESIDE = ("ready_s", "first_extra_s", "last_extra_s")
"""What collectives beside compute add to a schedule."""


def _replica(times: PlacedTimes, replica: int) -> PlacedTimes:
    """One replica."""
    one = slice(replica, replica + 1)
    names = (
        "forward_s",
        "backward_s",
        "tensor_forward_s",
        "tensor_backward_s",
        "weight_s",
        *EXPERTS,
        *SHARDED,
        *BESIDE,
    )
    of_replica: dict[str, Any] = {
        name: array[:, :, one] for name in names if (array := getattr(times, name)) is not None
    }
    sends = {name: getattr(times, name)[:, one] for name in ("send_forward_s", "send_backward_s")}
    return replace(times, **of_replica, **sends)


def _transfers_free(times: PlacedTimes) -> PlacedTimes:
    """The same with all transfers between stages taking no time."""
    free = np.zeros_like(times.send_forward_s)
    return replace(times, send_forward_s=free, send_backward_s=free)


def _peak_flops(instance: Instance, placement: Placement) -> float:
    """Peak of all GPUs with a rank, in the precision of the training's matrix products."""
    precision = FP8 if instance.training.fp8 else instance.training.precision
    nodes, num_ranks = np.unique(placement.node, return_counts=True)
    total = 0.0
    for node, ranks in zip(nodes, num_ranks, strict=True):
        gpu = instance.cluster.nodes[node].gpu
        if precision not in gpu.peak_flops:
            known = ", ".join(sorted(gpu.peak_flops))
            raise InputError(f"GPU {gpu.name}", f"has no peak for precision {precision}; it has {known}.")
        total += float(ranks) * gpu.peak_flops[precision]
    return total

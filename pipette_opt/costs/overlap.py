"""
Communication that overlaps with compute, as in Megatron-Core 0.16.

**Gradients** (``overlap_grad_reduce``). Without interleaving, the first stage's gradients are reduced in buckets while
its last backward makes them. Later stages reduce theirs after the last backward, as one bucket, in the flush of the
stages before (``DistributedDataParallel``: no buckets beyond the first stage; ``forward_backward_pipelining_without_
interleaving`` enables the reduction early on rank 0 only). With interleaving, each chunk is reduced as one bucket while
earlier chunks still compute (``disable_bucketing``).

**Parameters** (``overlap_param_gather``). Without interleaving, a bucket is requested when the bucket before has
arrived, from the hook before the first forward. The first stage works on what it has; a later stage waits for all of
its parameters, and only once its first input has arrived. With interleaving, the first two chunks are gathered from the
start. The gather of chunk ``c`` starts when the first forward of chunk ``c - 1`` is as many forwards away as the
stage's rank (``forward_step_helper_preprocess``, for all stages to start together).

**Slowdown.** Collectives take multiprocessors and memory bandwidth: overlapped compute takes ``overlap_slowdown``
longer.

In relaxations, waits for parameters and the slowdown are in the paths (:mod:`pipette_opt.problem.beside`).
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from pipette_opt.base.types import FloatArray, IntArray
from pipette_opt.costs.collectives import NO_TRAFFIC, RingTraffic, gradient_traffic
from pipette_opt.costs.compute import StageCompute
from pipette_opt.costs.context import inside_stages_s
from pipette_opt.costs.stage import expert_block, stage_parameters
from pipette_opt.parallel import ParallelConfig
from pipette_opt.specs import Instance, ModelSpec

SMALLEST_BUCKET, BUCKET_PER_RANK = 40_000_000, 1_000_000
"""
Number of parameters in a bucket by default: the first number, or the second times the data-parallel ranks if larger.

``DistributedDataParallel.__init__``, where ``ddp_bucket_size`` is not given.
"""

UNLIMITED_S = 1e30


class Exposed(NamedTuple):
    """Exposed part of overlapped collectives; fields as in :class:`~pipette_opt.costs.times.PlacedTimes`."""

    reduction_buckets: IntArray
    ready_s: FloatArray | None
    first_extra_s: FloatArray | None
    last_extra_s: FloatArray | None
    reduction_shares: FloatArray | None = None


class StageRing(NamedTuple):
    """
    Traffic of a stage's data-parallel rings, and the compute that can hide it; stages with equal exposure are equal.

    Parameters
    ----------
    experts
        Traffic of routed experts over their own rings, after the dense rings.
    buckets
        Number of buckets of the reduction; 0 without overlap.
    backward_s
        Largest seconds of the stage's last backward over all placements, slowed down by collectives.
    """

    reduction: RingTraffic
    experts: RingTraffic | None = None
    buckets: int = 0
    backward_s: float = 0.0

    def shown_s(
        self,
        time_s: Callable[[RingTraffic], FloatArray],
        experts_s: Callable[[RingTraffic], FloatArray | float] = lambda traffic: 0.0,
    ) -> FloatArray:
        """
        Return the exposed seconds of all rings.

        ``time_s`` and ``experts_s`` return the seconds of a ring of dense parameters, and of a ring of experts.
        """
        reduction = time_s(self.reduction)
        if self.experts is not None:
            reduction = reduction + experts_s(self.experts)
        return shown_reduction_s(reduction, self.buckets, self.backward_s) if self.buckets else reduction


def stage_rings(instance: Instance, config: ParallelConfig, compute: StageCompute) -> list[StageRing]:
    """Return the rings of each stage, length ``pp``."""
    model, training, stack = instance.model, instance.training, instance.stack
    if not config.reduces_in_one_ring:  # the simulator counts the messages of ZeRO 2 and 3, and of instances
        return [StageRing(NO_TRAFFIC)] * config.pipeline_model_parallel_size
    traffic = gradient_traffic(model, training, config)
    pp, chunks = config.pipeline_model_parallel_size, config.num_chunks
    experts: list[RingTraffic | None] = [None] * pp
    if model.num_experts is not None:
        experts = [*gradient_traffic(model, training, config, experts=True)]
    both = list(zip(traffic, experts, strict=True))
    if not config.overlap_grad_reduce:
        return [StageRing(dense, experts=expert) for dense, expert in both]
    if chunks > 1:  # the first chunk's part follows the last backward
        parts = zip(both, config.chunk_shares[0].tolist(), strict=True)
        return [
            StageRing(_part(dense, share), experts=expert and _part(expert, share)) for (dense, expert), share in parts
        ]
    buckets, (_, backward) = num_buckets(model, config), hiding_s(instance, config, compute)
    backward = backward * (1.0 + stack.overlap_slowdown * (1.0 - 1.0 / buckets))
    return [
        StageRing(dense, experts=expert, buckets=int(buckets[stage]), backward_s=float(backward[stage]))
        for stage, (dense, expert) in enumerate(both)
    ]


def _part(traffic: RingTraffic, share: float) -> RingTraffic:
    """Return the traffic that takes a fraction ``share`` of the time, latencies included."""
    return RingTraffic(traffic.hop_bytes * share, traffic.num_steps * share, traffic.num_calls * share)


def hiding_s(instance: Instance, config: ParallelConfig, compute: StageCompute) -> tuple[FloatArray, FloatArray]:
    """
    Return the largest forward and backward time of one micro-batch on each stage, seconds, ``(pp,)`` each.

    It is that of the slowest GPU type; unlimited if tensor groups span hosts, or experts send tokens.
    """
    works = (compute.forward_s.sum(axis=1), compute.backward_s.sum(axis=1))
    inside = config.tensor_model_parallel_size * config.context_parallel_size <= instance.cluster.gpus_per_node
    if not inside or (instance.model.num_experts is not None and expert_block(config) > 1):
        return np.full(works[0].shape[1], UNLIMITED_S), np.full(works[0].shape[1], UNLIMITED_S)
    sent = inside_stages_s(instance, config, compute, list(range(len(works[0])))).sum(axis=1)
    forward, backward = ((work + passed).max(axis=0) for work, passed in zip(works, sent, strict=True))
    return forward, backward


def shown_reduction_s(reduction_s: FloatArray, buckets: IntArray | int, backward_s: FloatArray | float) -> FloatArray:
    """
    Return the exposed time of a reduction in buckets after the last backward, seconds.

    Of ``K`` buckets, the last follows the backward; the others overlap with its last ``1 - 1 / K``.
    """
    later = 1.0 - 1.0 / np.asarray(buckets)
    left: FloatArray = np.maximum(reduction_s / buckets, reduction_s - later * backward_s)
    return left


def shown_gather_s(
    gather_s: FloatArray, buckets: IntArray | int, forward_s: FloatArray | float, slowdown: float
) -> FloatArray:
    """Return the seconds that a gather in buckets adds to the first forward, which waits for it and is slowed down."""
    later = 1.0 - 1.0 / np.asarray(buckets)
    waits = gather_s / buckets + later * np.maximum(gather_s - forward_s, 0.0)
    longer: FloatArray = waits + slowdown * later * np.minimum(gather_s, forward_s)
    return longer


def num_buckets(model: ModelSpec, config: ParallelConfig) -> IntArray:
    """Return the buckets of each stage's first chunk, shape ``(pp,)``; only the first stage has several."""
    ranks = config.data_parallel_size * config.context_parallel_size
    size = config.ddp_bucket_size or max(SMALLEST_BUCKET, BUCKET_PER_RANK * ranks)
    buckets = np.ones(config.pipeline_model_parallel_size, dtype=np.int64)
    parameters = stage_parameters(model, config, trained=True).total[0]
    buckets[0] = max(1, int(np.ceil(parameters * float(config.chunk_shares[0, 0]) / size)))
    return buckets


def exposed(
    buckets: IntArray,
    forward_s: FloatArray,
    backward_s: FloatArray,
    reduction_s: FloatArray,
    gather_s: FloatArray | None,
    slowdown: float,
    shares: FloatArray | None = None,
) -> Exposed:
    """
    Return the exposed part of overlapped collectives, for placements with equal degrees.

    Parameters
    ----------
    buckets
        Number of buckets from :func:`num_buckets`, shape ``(n, pp)``.
    forward_s, backward_s
        Seconds of one micro-batch in each chunk, shape ``(n, num_chunks, pp, dp)``.
    reduction_s
        Gradient reduction of each stage, seconds, shape ``(n, pp)``.
    gather_s
        Parameter gather of each stage, seconds, shape ``(n, pp)``, if it overlaps with the forwards.
    slowdown
        Relative additional time of compute during collectives.
    shares
        Fraction of each chunk in its stage's reduction and gather, shape ``(n, num_chunks, pp)``; equal by default.
    """
    chunks, pp = forward_s.shape[1:3]
    whole = reduction_s[:, None, :, None]
    gather = None if gather_s is None else gather_s[:, None, :, None]
    if chunks == 1:
        pieces = buckets[:, None, :, None]
        last = slowdown * (1.0 - 1.0 / pieces) * np.minimum(whole, backward_s)
        first = None if gather is None else shown_gather_s(gather, pieces, forward_s, slowdown)
        return Exposed(buckets, None, first, last)
    if shares is None:
        shares = np.full((len(whole), chunks, pp), 1.0 / chunks)
    part = shares[..., None]
    last = np.zeros_like(backward_s)  # a chunk's reduction overlaps with the last backwards of the chunk before it
    last[:, :-1] = slowdown * np.minimum(whole * part[:, 1:], pp * backward_s[:, :-1])
    ready = first = None
    if gather is not None:
        gather = gather * part
        first = np.zeros_like(forward_s)  # the next chunk's gather beside the forwards of this one
        first[:, 1:] = slowdown * np.minimum(gather[:, 1:], pp * forward_s[:, 1:])
        follows = forward_s + first
        follows[:, 0] /= buckets[:, :, None]
        ready = _arrivals(forward_s, gather) + follows
    return Exposed(np.ones_like(buckets), ready, first, last, shares)


def _arrivals(forward_s: FloatArray, gather_s: FloatArray) -> FloatArray:
    """
    Return the arrival time of each chunk's parameters in an interleaved schedule, seconds, ``(n, num_chunks, pp, 1)``.

    Forwards before the launch of a gather count without their own waits; the slowest replica counts.

    Parameters
    ----------
    gather_s
        Gather of each chunk, seconds, shape ``(n, num_chunks, pp, 1)``.
    """
    _, chunks, pp, _ = forward_s.shape
    slowest, rank = forward_s.max(axis=3), np.arange(pp)
    arrivals = np.empty((*slowest.shape, 1))
    for chunk in range(chunks):
        before = arrivals[:, chunk - 1] if chunk else np.zeros_like(gather_s[:, 0])
        if chunk > 1:
            ahead = (chunk - 1) * pp - rank  # forwards until then, pp of each chunk in turn
            done = np.clip(ahead[None, :] - pp * np.arange(chunks)[:, None], 0, pp)
            before = np.maximum(before, (slowest * done).sum(axis=1)[..., None])
        arrivals[:, chunk] = before + gather_s[:, chunk]
    return arrivals

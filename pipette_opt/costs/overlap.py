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

**In the analytical 1F1B model**, the compute that hides a stage's reduction is the least over all hosts. Every later
stage waits for parameters as long as the last stage. Relaxations have both in their paths
(:mod:`pipette_opt.problem.beside`).
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from pipette_opt.base.types import FloatArray, IntArray
from pipette_opt.costs.collectives import NO_TRAFFIC, RingTraffic, gradient_traffic, parameter_traffic
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
    shown_s: FloatArray
    reduction_shares: FloatArray | None = None


class StageRing(NamedTuple):
    """
    Traffic of a stage's data-parallel rings, and the compute that can hide it; stages with equal exposure are equal.

    Parameters
    ----------
    parameters
        Traffic of the parameter gather that overlaps with the forwards; ``None`` without.
    experts, expert_parameters
        Traffic of routed experts over their own rings, after the dense rings; reduction and gather.
    buckets
        Number of buckets of reduction and gather; 0 without overlap.
    forward_s, backward_s
        Seconds of the stage's first forward and last backward: for the analytical model the least over all placements;
        for a relaxation the largest, slowed down (its paths have the waits for parameters and the slowdown).
    others
        Number of other stages, which also wait for their parameters.
    slowdown
        Relative additional time of compute during collectives.
    """

    reduction: RingTraffic
    parameters: RingTraffic | None = None
    experts: RingTraffic | None = None
    expert_parameters: RingTraffic | None = None
    buckets: int = 0
    forward_s: float = 0.0
    backward_s: float = 0.0
    first: bool = False
    others: int = 0
    slowdown: float = 0.0

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
        if not self.buckets:
            return reduction
        shown = shown_reduction_s(reduction, self.buckets, self.backward_s, self.slowdown)
        if self.parameters is None:
            return shown
        gather = time_s(self.parameters)
        if self.expert_parameters is not None:
            gather = gather + experts_s(self.expert_parameters)
        waits = self.others * gather
        if self.first:
            waits = waits + shown_gather_s(gather, self.buckets, self.forward_s, self.slowdown)
        return shown + waits


def stage_rings(
    instance: Instance, config: ParallelConfig, compute: StageCompute, *, analytical: bool
) -> list[StageRing]:
    """
    Return the rings of each stage, length ``pp``.

    Parameters
    ----------
    analytical
        ``True`` for the analytical model, with the least compute time of all GPU types; ``False`` for a relaxation.
    """
    model, training, stack = instance.model, instance.training, instance.stack
    if not config.reduces_in_one_ring:  # the simulator counts the messages of ZeRO 2 and 3, and of instances
        return [StageRing(NO_TRAFFIC)] * config.pipeline_model_parallel_size
    traffic = gradient_traffic(model, training, config)
    pp, chunks = config.pipeline_model_parallel_size, config.num_chunks
    nobody: list[RingTraffic | None] = [None] * pp
    experts = nobody
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
    buckets, (forward, backward) = num_buckets(model, config), hiding_s(instance, config, compute, least=analytical)
    if not analytical:
        backward = backward * (1.0 + stack.overlap_slowdown * (1.0 - 1.0 / buckets))
    gathers = expert_gathers = nobody
    if config.overlap_param_gather and analytical:
        gathers = [*parameter_traffic(model, training, config)]
        if model.num_experts is not None:
            expert_gathers = [*parameter_traffic(model, training, config, experts=True)]
    return [
        StageRing(
            reduction=traffic[stage],
            parameters=gathers[stage],
            experts=experts[stage],
            expert_parameters=expert_gathers[stage],
            buckets=int(buckets[stage]),
            forward_s=float(forward[stage]),
            backward_s=float(backward[stage]),
            first=stage == 0,
            others=pp - 1,
            slowdown=stack.overlap_slowdown if analytical else 0.0,
        )
        for stage in range(pp)
    ]


def _part(traffic: RingTraffic, share: float) -> RingTraffic:
    """Return the traffic that takes a fraction ``share`` of the time, latencies included."""
    return RingTraffic(traffic.hop_bytes * share, traffic.num_steps * share, traffic.num_calls * share)


def hiding_s(
    instance: Instance, config: ParallelConfig, compute: StageCompute, *, least: bool
) -> tuple[FloatArray, FloatArray]:
    """
    Return the least (or largest) forward and backward time of one micro-batch on each stage, seconds, ``(pp,)`` each.

    The least is on the fastest GPU type, with tensor communication if groups stay inside hosts. The largest is on the
    slowest type; unlimited if tensor groups span hosts, or experts send tokens.
    """
    inside = config.tensor_model_parallel_size * config.context_parallel_size <= instance.cluster.gpus_per_node
    if not least and instance.model.num_experts is not None and expert_block(config) > 1:
        inside = False
    works = (compute.forward_s.sum(axis=1), compute.backward_s.sum(axis=1))
    if not least and not inside:
        return np.full(works[0].shape[1], UNLIMITED_S), np.full(works[0].shape[1], UNLIMITED_S)
    kinds = range(len(works[0]))
    if inside:
        hidden = [[kind] for kind in kinds] if least else [list(kinds)]
        sent = np.stack([inside_stages_s(instance, config, compute, each).sum(axis=1) for each in hidden], axis=1)
        works = (works[0] + sent[0], works[1] + sent[1])
    forward, backward = (work.min(axis=0) if least else work.max(axis=0) for work in works)
    return forward, backward


def shown_reduction_s(
    reduction_s: FloatArray, buckets: IntArray | int, backward_s: FloatArray | float, slowdown: float
) -> FloatArray:
    """
    Return the exposed time of a reduction in buckets after the last backward, and the backward's slowdown, seconds.

    Of ``K`` buckets, the last follows the backward; the others overlap with its last ``1 - 1 / K``. Without slowdown,
    the exposed time falls as the backward grows. With slowdown, it is never below that, which relaxations use.
    """
    later = 1.0 - 1.0 / np.asarray(buckets)
    slower = slowdown * later * np.minimum(reduction_s, backward_s)
    left: FloatArray = np.maximum(reduction_s / buckets, reduction_s - later * (backward_s + slower)) + slower
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
    parameters = stage_parameters(model, config).total[0]
    buckets[0] = max(1, int(np.ceil(parameters * float(config.chunk_shares[0, 0]) / size)))
    return buckets


def exposed(
    buckets: IntArray,
    forward_s: FloatArray,
    backward_s: FloatArray,
    reduction_s: FloatArray,
    gather_s: FloatArray | None,
    least_s: FloatArray,
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
    least_s
        Least seconds of forward and backward of one micro-batch over all placements of a stage, shape ``(n, 2, pp)``;
        used by the analytical model only.
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
        shown = shown_reduction_s(reduction_s, buckets, least_s[:, 1], slowdown)
        first = None
        if gather_s is not None and gather is not None:
            first = shown_gather_s(gather, pieces, forward_s, slowdown)
            shown = shown + (pp - 1) * gather_s
            shown[:, 0] += shown_gather_s(gather_s[:, 0], buckets[:, 0], least_s[:, 0, 0], slowdown)
        return Exposed(buckets, None, first, last, shown)
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
    return Exposed(np.ones_like(buckets), ready, first, last, reduction_s, shares)


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

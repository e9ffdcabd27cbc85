"""
What runs beside compute, as Megatron-Core 0.16 does it.

**Gradients** (``overlap_grad_reduce``). Without interleaving the first stage's gradients are reduced in buckets while
its last backward makes them; later stages reduce theirs after the last backward, as one, in the flush of the stages
before (``DistributedDataParallel``: no buckets beyond the first stage; ``forward_backward_pipelining_without_
interleaving`` enables the reduction early on rank 0 only). Interleaved, each chunk is reduced as one while earlier
chunks are still at work (``disable_bucketing``).

**Parameters** (``overlap_param_gather``). Without interleaving a bucket is asked for when the bucket before has
arrived, from the hook before the first forward: the first stage works on what it has, a later stage waits for all of
its parameters, and only when its first input is there. Interleaved, the chunks' parameters are gathered one after the
other from the start.

**Slowdown.** Collectives take some of the chip and of its memory's bandwidth: compute beside them takes
``overlap_slowdown`` longer.
"""

from typing import NamedTuple

import numpy as np

from pipette_opt.costs.compute import stage_parameters
from pipette_opt.parallel import ParallelConfig
from pipette_opt.specs import ModelSpec
from pipette_opt.types import FloatArray, IntArray

SMALLEST_BUCKET, BUCKET_PER_RANK = 40_000_000, 1_000_000
"""
Parameters of a bucket, where ``ddp_bucket_size`` is not given: the larger of the first and of the second for each rank
of the data-parallel group (``DistributedDataParallel.__init__``).
"""


class Exposed(NamedTuple):
    """What collectives beside compute leave to the schedule; fields as in ``PlacedTimes``."""

    reduction_buckets: IntArray
    ready_s: FloatArray | None
    first_extra_s: FloatArray | None
    last_extra_s: FloatArray | None


def num_buckets(model: ModelSpec, config: ParallelConfig) -> IntArray:
    """Buckets of each stage's first chunk, shape ``(pp,)``; only the first stage has more than one."""
    ranks = config.data_parallel_size * config.context_parallel_size
    size = config.ddp_bucket_size or max(SMALLEST_BUCKET, BUCKET_PER_RANK * ranks)
    buckets = np.ones(config.pipeline_model_parallel_size, dtype=np.int64)
    buckets[0] = max(1, int(np.ceil(stage_parameters(model, config)[0] / config.num_chunks / size)))
    return buckets


def exposed(
    buckets: IntArray,
    forward_s: FloatArray,
    backward_s: FloatArray,
    reduction_s: FloatArray,
    gather_s: FloatArray | None,
    slowdown: float,
) -> Exposed:
    """
    Overlap in placements with equal degrees.

    Parameters
    ----------
    buckets
        As :func:`num_buckets` says, shape ``(n, pp)``.
    forward_s, backward_s
        Shape ``(n, num_chunks, pp, dp)``.
    reduction_s
        Gradient reduction of each stage, shape ``(n, pp)``.
    gather_s
        Parameter gather of each stage, same shape, if it runs beside the forwards.
    slowdown
        Extra time of compute beside collectives, a share.
    """
    chunks, pp = forward_s.shape[1:3]
    if chunks == 1:
        pieces = buckets[:, None, :, None]
        later = 1.0 - 1.0 / pieces
        last = slowdown * later * np.minimum(reduction_s[:, None, :, None], backward_s)
        first = None
        if gather_s is not None:
            gather = gather_s[:, None, :, None]
            waits = gather / pieces + later * np.maximum(gather - forward_s, 0.0)
            first = waits + slowdown * later * np.minimum(gather, forward_s)
        return Exposed(buckets, None, first, last)
    last = np.zeros_like(backward_s)  # a chunk's reduction runs beside the last backwards of the chunk before it
    last[:, :-1] = slowdown * np.minimum(reduction_s[:, None, :, None] / chunks, pp * backward_s[:, :-1])
    ready = first = None
    if gather_s is not None:
        gather = gather_s[:, None, :, None] / chunks
        first = np.zeros_like(forward_s)  # the next chunk's gather beside the forwards of this one
        first[:, 1:] = slowdown * np.minimum(gather, pp * forward_s[:, 1:])
        arrival = np.arange(1, chunks + 1)[None, :, None, None] * gather
        follows = forward_s + first
        follows[:, 0] /= buckets[:, :, None]
        ready = arrival + follows
    return Exposed(np.ones_like(buckets), ready, first, last)

"""Simulated iteration time of a placed configuration, and its breakdown by cause."""

import numpy as np

from pipette_opt.base.errors import InputError
from pipette_opt.base.types import FloatArray, P2PMode
from pipette_opt.costs.placed import placed_times
from pipette_opt.costs.times import PlacedBatch, PlacedTimes
from pipette_opt.parallel import ParallelConfig, Placement, microbatches_of
from pipette_opt.parallel.schedule import WEIGHT, Layout, Schedule
from pipette_opt.plans.plan import IterationTime
from pipette_opt.simulate.breakdown import causes_of
from pipette_opt.simulate.critical_path import Simulated as Simulated
from pipette_opt.simulate.critical_path import Walked, walk
from pipette_opt.simulate.time_tables import weight_part
from pipette_opt.specs import Instance


def simulate_times(
    times: PlacedTimes, num_microbatches: int, p2p: P2PMode, schedule: Schedule | None = None
) -> Simulated:
    """
    Return the simulation of placed times: 1F1B unless a schedule is given.

    The iteration ends with the stage that ends last, after its slowest replica and its reduction, plus the optimizer.
    """
    walked = walk(times, num_microbatches, p2p, schedule)
    batch, walks = PlacedBatch.of(times), Walked(walked.launch_s[None], walked.finish_s[None])
    reduced = reduction_ends(batch, walks, split_backward=is_split(schedule))[-1]
    done = _with_embedding(batch, reduced)[0]
    # Tied embeddings end together on the first and last stage: take the stage that the other waits for.
    stage = int(np.where(done == done.max(), reduced[0], -np.inf).argmax())
    return Simulated(
        iteration_time_s=float(done[stage]) + times.optimizer_s,
        finish_s=walked.finish_s,
        reduced_s=reduced[0],
        critical_stage=stage,
        critical_replica=int(walked.finish_s[stage].argmax()),
    )


def layout_of(schedule: Schedule | None) -> Layout:
    """Return the order in which a schedule puts layer groups on stages: ``loop`` or ``vee``."""
    return "loop" if schedule is None else schedule.layout


def is_split(schedule: Schedule | None) -> bool:
    """Return whether a schedule splits its backward passes."""
    return schedule is not None and bool((schedule.kind == WEIGHT).any())


def batch_done(times: PlacedBatch, walked: Walked) -> FloatArray:
    """
    Return the end of each stage's gradient reduction, seconds without the optimizer, shape ``(n, pp)``.

    The first and the last stage then reduce the gradient of tied word embeddings between them, as Megatron-Core does
    (``finalize_model_grads``).

    Parameters
    ----------
    walked
        Result of executing the schedule, with the placements as first axis.
    """
    return _with_embedding(times, reduction_ends(times, walked)[-1])


def _with_embedding(times: PlacedBatch, reduced_s: FloatArray) -> FloatArray:
    """Return the ends of reductions followed by those of tied embeddings, seconds, shape ``(n, pp)``."""
    done = reduced_s.copy()
    tied = times.embedding_s > 0
    if tied.any():
        later = np.maximum(done[:, 0], done[:, -1]) + times.embedding_s
        done[tied, 0] = done[tied, -1] = later[tied]
    return done


def reduction_ends(times: PlacedBatch, walked: Walked, *, split_backward: bool = False) -> FloatArray:
    """
    Return the ends of the parts of each stage's gradient reduction, seconds, shape ``(num_chunks, n, pp)``.

    Each chunk has a part, in the order of their starts. Without overlap, one reduction follows the last backward, and
    all parts end together. With overlap:

    - With one chunk, in buckets: gradients arrive evenly during the last backward. Equal buckets are reduced one after
      the other, and none starts before its slowest replica has it. Of ``K`` buckets, the k-th waits for ``finish -
      (1 - k / K) backward``, and ``K - k + 1`` are left. This is linear in k, so the first or the last decides.
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
    starts, seconds = walked.launch_s.max(axis=3), reduction_parts_s(times)
    order = np.argsort(starts, axis=1, kind="stable")
    starts, seconds = np.take_along_axis(starts, order, axis=1), np.take_along_axis(seconds, order, axis=1)
    ends = np.empty((chunks, *together.shape))
    for part in range(chunks):
        begin = starts[:, part] if part == 0 else np.maximum(starts[:, part], ends[part - 1])
        ends[part] = begin + seconds[:, part]
    of_chunks: FloatArray = np.where(beside, ends, together)
    return of_chunks


def reduction_parts_s(times: PlacedBatch) -> FloatArray:
    """Return the seconds of the reduction of each chunk of each stage, shape ``(n, num_chunks, pp)``."""
    chunks, whole = times.forward_s.shape[1], times.reduction_s[:, None]
    shares = np.full((1, chunks, 1), 1.0 / chunks) if times.reduction_shares is None else times.reduction_shares
    return whole * shares


def last_backward(times: PlacedBatch, *, split_backward: bool) -> FloatArray:
    """Return seconds of the weight gradients of each chunk's last micro-batch, shape ``(n, num_chunks, pp, dp)``."""
    work = weight_part(times) if split_backward else times.backward_s
    return work if times.last_extra_s is None else work + times.last_extra_s


def estimate(
    instance: Instance, config: ParallelConfig, placement: Placement, schedule: Schedule | None = None
) -> IterationTime:
    """
    Simulate a configuration on its placement, in 1F1B unless a schedule is given.

    Raises ``InputError`` if the batch size does not allow it, or if the GPU has no peak for the precision.
    """
    num_microbatches = microbatches_of(instance.training, config)
    times = placed_times(instance, config, placement, layout_of(schedule))
    simulated = simulate_times(times, num_microbatches, instance.p2p, schedule)
    causes = causes_of(times, simulated, num_microbatches, instance.p2p, schedule)
    model, training = instance.model, instance.training
    tokens_per_s = training.tokens / simulated.iteration_time_s
    per_flop = tokens_per_s / peak_of_ranks(instance, placement)
    executed = _executed_flops_per_token(instance, config)
    return IterationTime(
        iteration_time_s=simulated.iteration_time_s,
        tokens_per_s=tokens_per_s,
        tokens_per_s_per_gpu=tokens_per_s / config.world_size,
        mfu=model.flops_per_token(training.attended_length) * per_flop,
        hfu=executed * per_flop,
        breakdown=causes.pipeline,
        critical_path=causes.critical_path,
    )


def _executed_flops_per_token(instance: Instance, config: ParallelConfig) -> float:
    """
    Return the FLOPs executed per token: those of products and attention, as their kernels compute them, and again.

    Recomputation of whole layers counts by its fraction of the layers, and that of the attention core; not that of
    other modules.
    """
    model, training = instance.model, instance.training
    whole = float(config.recompute_granularity == "full")
    if config.recomputation == "block":
        whole = sum(map(sum, config.recomputed_per_chunk)) / model.num_layers
    core_again = max(whole, float(config.recompute_granularity == "selective" and config.recomputes("core_attn")))
    total = model.flops_outside_layers
    for kind, count in model.counted_layers.items():
        for branch in model.branches(kind):
            forward, backward = branch.core_flops(training)
            total += count * ((6.0 + 2.0 * whole) * branch.multiplications + (1.0 + core_again) * forward + backward)
    return total


def peak_of_ranks(instance: Instance, placement: Placement) -> float:
    """Return the dense peak of all GPUs with a rank, in the precision of the training's matrix products, FLOP/s."""
    recipe = instance.training.recipe
    precision = instance.training.precision if recipe is None else recipe.peak
    nodes, num_ranks = np.unique(placement.node, return_counts=True)
    total = 0.0
    for node, ranks in zip(nodes, num_ranks, strict=True):
        gpu = instance.cluster.nodes[node].gpu
        if precision not in gpu.peak_flops:
            known = ", ".join(sorted(gpu.peak_flops))
            raise InputError(f"GPU {gpu.name}", f"has no peak for precision {precision}; it has {known}.")
        total += float(ranks) * gpu.peak_flops[precision]
    return total

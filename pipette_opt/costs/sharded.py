"""
ZeRO stages 2 and 3: what is sent beside the work of every micro-batch.

Stage 3 (PyTorch's FSDP with ``reshard_after_forward``) gathers the parameters of each layer before its forward and
again before its backward, and scatters its gradients after that; one layer's is in flight while another works. So a
pass of ``n`` layers shows the first gather (or the last scatter), and of the others what is longer than the work beside
them: the form of a gather in ``n`` buckets. Stage 2 (Rajbhandari et al., arXiv 1910.02054; DeepSpeed) scatters each
micro-batch's gradients and gathers parameters once, after the step.
"""

from typing import NamedTuple

from pipette_opt.costs.collectives import NO_TRAFFIC, RingTraffic, gather_traffic, parameter_traffic
from pipette_opt.costs.compute import stage_parameters
from pipette_opt.parallel import ParallelConfig
from pipette_opt.specs import ModelSpec, TrainingSpec


class ShardedCosts(NamedTuple):
    """
    Rings over the ranks that share parameters, for one micro-batch.

    Parameters
    ----------
    forward, backward
        What a pass moves beside its work, of each stage, length ``pp``.
    units
        Layers of each stage, whose messages follow one another.
    """

    forward: list[RingTraffic]
    backward: list[RingTraffic]
    units: tuple[int, ...]


def sharded_costs(model: ModelSpec, training: TrainingSpec, config: ParallelConfig) -> ShardedCosts | None:
    """``None`` for ZeRO stages 0 and 1, which send once in an iteration."""
    if config.sharding_stage < 2:
        return None
    units = config.layers_per_stage
    size = config.data_parallel_size * config.context_parallel_size
    counts = stage_parameters(model, config).tolist()
    scatter, gather = gather_traffic(training.gradient_bytes, size), gather_traffic(training.parameter_bytes, size)
    full = config.sharding_stage == 3
    forward, backward = [], []
    for count, layers in zip(counts, units, strict=True):
        again = gather.hop_bytes if full else 0.0
        steps, calls = scatter.num_steps * layers, layers
        forward.append(RingTraffic(gather.hop_bytes * count, steps, calls) if full else NO_TRAFFIC)
        backward.append(RingTraffic((scatter.hop_bytes + again) * count, (1 + full) * steps, (1 + full) * calls))
    return ShardedCosts(forward=forward, backward=backward, units=units)


def once_traffic(model: ModelSpec, training: TrainingSpec, config: ParallelConfig) -> list[RingTraffic]:
    """What is left for the end of the iteration, length ``pp``: stage 2 gathers parameters, stage 3 nothing."""
    if config.sharding_stage == 2:
        return parameter_traffic(model, training, config)
    return [NO_TRAFFIC] * config.pipeline_model_parallel_size

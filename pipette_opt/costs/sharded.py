"""
ZeRO 2 and 3: communication that overlaps with the compute of every micro-batch; and that of optimizer instances.

ZeRO 3 (PyTorch's FSDP with ``reshard_after_forward``, ``optim_grads_params`` of Megatron-FSDP) gathers the parameters
of each layer before its forward and again before its backward. Afterwards it scatters the gradients. The collectives of
one layer run while another layer computes. So a pass of ``n`` layers exposes the first gather (or the last scatter),
like a gather in ``n`` buckets. Of the others, it exposes the time beyond the compute beside them. ZeRO 2 (Rajbhandari
et al., arXiv 1910.02054; DeepSpeed, ``optim_grads``) scatters each micro-batch's gradients and gathers parameters once,
after the step. Experts are divided among the ranks that hold equal experts, in rings of their own, after the layer's
rings.

With several optimizer instances (hybrid sharding: ``num_distributed_optimizer_instances``), these collectives, and the
scatter and gather of ZeRO 1, are inside an instance. Once in an iteration, each rank reduces its shard of the gradients
with the ranks of the other instances that hold an equal shard (``start_grad_sync`` in Megatron-Core's
``param_and_grad_buffer.py``). If the optimizer is also divided among instances, they scatter it, and gather the shard's
parameters after the step (``outer_dp_sharding_strategy``).
"""

from typing import NamedTuple

from pipette_opt.costs.collectives import (
    NO_TRAFFIC,
    RingTraffic,
    all_reduce_traffic,
    gather_traffic,
    gathered_bytes,
    parameter_traffic,
    sharing,
)
from pipette_opt.parallel import ParallelConfig
from pipette_opt.specs import ModelSpec, TrainingSpec


class ShardedRings(NamedTuple):
    """
    Traffic of rings over the ranks that share parameters, for each stage, length ``pp``.

    Parameters
    ----------
    forward, backward
        Traffic of one micro-batch's pass, which overlaps with its compute.
    """

    forward: list[RingTraffic]
    backward: list[RingTraffic]


class ShardedCosts(NamedTuple):
    """
    Traffic of parameters that replicas share under ZeRO 2 and 3.

    Parameters
    ----------
    layers
        Traffic of all parameters but routed experts.
    experts
        Traffic of routed experts; ``None`` for a dense model.
    units
        Number of layers of each stage, whose messages follow one another.
    """

    layers: ShardedRings
    experts: ShardedRings | None
    units: tuple[int, ...]


def sharded_costs(model: ModelSpec, training: TrainingSpec, config: ParallelConfig) -> ShardedCosts | None:
    """Return the traffic of shared parameters; ``None`` for ZeRO 0 and 1, which send once an iteration."""
    if config.sharding_stage < 2:
        return None
    own = _rings(model, training, config)
    experts = None if model.num_experts is None else _rings(model, training, config, experts=True)
    return ShardedCosts(layers=own, experts=experts, units=config.layers_per_stage)


def _rings(
    model: ModelSpec,
    training: TrainingSpec,
    config: ParallelConfig,
    *,
    experts: bool = False,
) -> ShardedRings:
    """Return the rings of the parameters that ranks share, all but routed experts or these."""
    num_reductions = config.num_microbatches(training.global_batch_size) if training.whole_gradients else 1
    full, (size, counts) = config.sharding_stage == 3, sharing(model, config, experts=experts, trained=True)
    whole = gathered_bytes(model, training, config, experts=experts)
    forward, backward = [], []
    for count, message, layers in zip(counts, whole, config.layers_per_stage, strict=True):
        gather, scatter = gather_traffic(message, size), gather_traffic(count * training.gradient_bytes, size)
        steps, is_sent = gather.num_steps * layers, size > 1 and message > 0
        again = gather.hop_bytes if full else 0.0
        forward.append(RingTraffic(gather.hop_bytes, steps, layers) if full and is_sent else NO_TRAFFIC)
        reduced = scatter.hop_bytes / num_reductions
        times = full + (num_reductions == 1)
        both = RingTraffic(reduced + again, times * steps, times * layers)
        backward.append(both if is_sent else NO_TRAFFIC)
    return ShardedRings(forward, backward)


def outer_traffic(
    model: ModelSpec, training: TrainingSpec, config: ParallelConfig, *, experts: bool = False
) -> list[RingTraffic]:
    """Return the traffic among optimizer instances once an iteration, length ``pp``; none with one instance."""
    if config.num_distributed_optimizer_instances == 1:
        return [NO_TRAFFIC] * config.pipeline_model_parallel_size
    size, counts = sharing(model, config, experts=experts, trained=True)
    whole = gathered_bytes(model, training, config, experts=experts, trained=True)
    return [
        _outer(count * training.gradient_bytes / size, message / size, config)
        for count, message in zip(counts, whole, strict=True)
    ]


def _outer(gradient_bytes: float, parameter_bytes: float, config: ParallelConfig) -> RingTraffic:
    """
    Return the traffic of a rank's shard among optimizer instances.

    They reduce it as a whole, or each reduces a part and gathers the result.
    """
    groups = config.num_distributed_optimizer_instances
    if config.state_groups == 1:
        return all_reduce_traffic(gradient_bytes, groups)
    scatter, gather = gather_traffic(gradient_bytes, groups), gather_traffic(parameter_bytes, groups)
    return RingTraffic(scatter.hop_bytes + gather.hop_bytes, scatter.num_steps + gather.num_steps, 2)


def once_traffic(
    model: ModelSpec, training: TrainingSpec, config: ParallelConfig, *, experts: bool = False
) -> list[RingTraffic]:
    """Return the traffic at an iteration's end, length ``pp``: ZeRO 2 gathers parameters, ZeRO 3 sends nothing."""
    if config.sharding_stage == 2:
        return parameter_traffic(model, training, config, experts=experts)
    return [NO_TRAFFIC] * config.pipeline_model_parallel_size

"""
ZeRO stages 2 and 3: communication that overlaps with the work of every micro-batch.

Stage 3 (PyTorch's FSDP with ``reshard_after_forward``, ``optim_grads_params`` of Megatron-FSDP) gathers the parameters
of each layer before its forward and again before its backward, and scatters its gradients after that; one layer's is in
flight while another works. So a pass of ``n`` layers shows the first gather (or the last scatter), and of the others
what is longer than the work beside them: the form of a gather in ``n`` buckets. Stage 2 (Rajbhandari et al., arXiv
1910.02054; DeepSpeed, ``optim_grads``) scatters each micro-batch's gradients and gathers parameters once, after the
step. Experts are divided over the ranks that hold the same ones, in rings of their own, after those of the layer.

With several groups of replicas (hybrid sharding: ``num_distributed_optimizer_instances``) all that is inside a group.
Once in an iteration each rank reduces its shard of the gradients with the ranks of the other groups that hold the same
one; where the optimizer is divided over the groups, too, they scatter it, and gather the shard's parameters after the
step (``outer_dp_sharding_strategy``).
"""

from collections.abc import Sequence
from typing import NamedTuple

from pipette_opt.costs.collectives import (
    NO_TRAFFIC,
    RingTraffic,
    all_reduce_traffic,
    gather_traffic,
    gathered_bytes,
    parameter_traffic,
)
from pipette_opt.costs.compute import stage_parameters
from pipette_opt.costs.experts import expert_replicas, stage_expert_parameters
from pipette_opt.parallel import ParallelConfig
from pipette_opt.specs import ModelSpec, TrainingSpec


class ShardedRings(NamedTuple):
    """
    Rings over the ranks that share the same parameters, each of all stages, length ``pp``.

    Parameters
    ----------
    forward, backward
        Traffic of a pass of one micro-batch, which overlaps with its work.
    outer
        Traffic of the reduction among ranks of several groups once an iteration; none with one group.
    """

    forward: list[RingTraffic]
    backward: list[RingTraffic]
    outer: list[RingTraffic]


class ShardedCosts(NamedTuple):
    """
    Traffic of parameters that replicas share.

    Parameters
    ----------
    layers
        Traffic of all parameters but experts.
    experts
        Traffic of experts; ``None`` for a model without.
    units
        Layers of each stage, whose messages follow one another.
    """

    layers: ShardedRings
    experts: ShardedRings | None
    units: tuple[int, ...]


def sharded_costs(model: ModelSpec, training: TrainingSpec, config: ParallelConfig) -> ShardedCosts | None:
    """Return the traffic of shared parameters; ``None`` for ZeRO stages 0 and 1, which send once an iteration."""
    if config.sharding_stage < 2:
        return None
    own = _rings(model, training, config, config.sharing_ranks, stage_parameters(model, config).tolist())
    experts = None
    if model.num_experts is not None:
        size = max(expert_replicas(config) // config.num_distributed_optimizer_instances, 1)
        counts = stage_expert_parameters(model, config).tolist()
        experts = _rings(model, training, config, size, counts, experts=True)
    return ShardedCosts(layers=own, experts=experts, units=config.layers_per_stage)


def _rings(
    model: ModelSpec,
    training: TrainingSpec,
    config: ParallelConfig,
    size: int,
    counts: Sequence[float],
    *,
    experts: bool = False,
) -> ShardedRings:
    """Return the rings of ``counts`` parameters on each stage that ``size`` ranks share."""
    full, groups = config.sharding_stage == 3, config.num_distributed_optimizer_instances
    whole = gathered_bytes(model, training, config, experts=experts)
    forward, backward, outer = [], [], []
    for count, message, layers in zip(counts, whole, config.layers_per_stage, strict=True):
        gather, scatter = gather_traffic(message, size), gather_traffic(count * training.gradient_bytes, size)
        steps, is_sent = gather.num_steps * layers, size > 1 and count > 0
        again = gather.hop_bytes if full else 0.0
        forward.append(RingTraffic(gather.hop_bytes, steps, layers) if full and is_sent else NO_TRAFFIC)
        both = RingTraffic(scatter.hop_bytes + again, (1 + full) * steps, (1 + full) * layers)
        backward.append(both if is_sent else NO_TRAFFIC)
        outer.append(
            _outer(count * training.gradient_bytes / size, message / size, config) if groups > 1 else NO_TRAFFIC
        )
    return ShardedRings(forward, backward, outer)


def _outer(gradient_bytes: float, parameter_bytes: float, config: ParallelConfig) -> RingTraffic:
    """Traffic of a rank's shard among the groups, which reduce it whole, or a part each and gather the result."""
    groups = config.num_distributed_optimizer_instances
    if config.state_groups == 1:
        return all_reduce_traffic(gradient_bytes, groups)
    scatter, gather = gather_traffic(gradient_bytes, groups), gather_traffic(parameter_bytes, groups)
    return RingTraffic(scatter.hop_bytes + gather.hop_bytes, scatter.num_steps + gather.num_steps, 2)


def once_traffic(
    model: ModelSpec, training: TrainingSpec, config: ParallelConfig, *, experts: bool = False
) -> list[RingTraffic]:
    """Traffic of a group at the end of the iteration, length ``pp``: stage 2 gathers parameters, stage 3 nothing."""
    if config.sharding_stage == 2:
        return parameter_traffic(model, training, config, experts=experts)
    return [NO_TRAFFIC] * config.pipeline_model_parallel_size

"""
Default rule for searching ZeRO 3: replicas that share parameters (Megatron-FSDP, FSDP2).

ZeRO 3 sends parameters in every micro-batch, and saves memory. If weights and gradients of the whole model fit on a
GPU, sharding the optimizer suffices. Otherwise the layers must be divided among GPUs, which ZeRO 3 avoids. That is 5 to
12 % faster for Llama 3 70B on 32 and 64 GPUs of one NVL72 domain, as in NVIDIA's recipes.

Data parallelism alone with ZeRO 3 is what most run, so these few configurations are always searched for dense models.

Over NICs, parameters rarely arrive in time (2 % faster on 64 B200, slower on A100). Lower bounds are loosest for rings
over hosts that compute hides in part: on 64 hosts of A100, a gap of 0.4 % becomes 5.4 %. Beyond an NVLink domain ZeRO 3
is therefore otherwise searched only on request.
"""

from dataclasses import replace

from pipette_opt.base.errors import InfeasibleError, InputError
from pipette_opt.candidates.enumeration import enumerate_candidates
from pipette_opt.candidates.known import agrees
from pipette_opt.candidates.space import SearchSpace
from pipette_opt.layers.parameters import num_trained_parameters
from pipette_opt.specs import Instance

SHARED_PARAMETERS = "optim_grads_params"
"""Megatron-FSDP's name for replicas that share parameters, gradients and optimizer states (ZeRO 3)."""


def with_shared_parameters(instance: Instance, space: SearchSpace) -> SearchSpace:
    """
    Return the search space with ZeRO 3 added where it may help; unchanged if sharding is pinned.

    It is also unchanged in these cases: the job is larger than an NVLink domain or a host; weights and gradients fit on
    one GPU; the time limit narrowed the space (:mod:`~pipette_opt.solver.narrowing`); the optimizer is Muon, which
    excludes ZeRO 3; the model has experts, for which no public run shows whether parameters arrive in time.
    """
    is_pinned = space.data_parallel_sharding_strategy is not None or space.use_distributed_optimizer is not None
    training, cluster = instance.training, instance.cluster
    num_gpus = space.num_gpus or space.max_gpus or cluster.num_nodes * cluster.gpus_per_node
    if num_gpus > cluster.most_in_domain * cluster.gpus_per_node:
        return space
    if is_pinned or set(space.narrowed) - {"world_sizes"} or SHARED_PARAMETERS in space.more_sharding:
        return space
    if training.optimizer == "muon" or instance.model.num_experts is not None:
        return space
    model = instance.model
    held = model.num_parameters * training.parameter_bytes + num_trained_parameters(model) * training.gradient_bytes
    if held <= max(gpu.memory_bytes for gpu in cluster.gpu_kinds):
        return space
    return replace(space, more_sharding=(*space.more_sharding, SHARED_PARAMETERS))


def data_parallelism_alone(instance: Instance, space: SearchSpace, strategies: tuple[str, ...]) -> SearchSpace:
    """
    Return the space of data parallelism alone on all GPUs of a search space, whatever that pins besides their number.

    Parameters
    ----------
    strategies
        Sharding among replicas to try.
    """
    most = instance.cluster.num_nodes * instance.cluster.gpus_per_node
    return SearchSpace(
        num_gpus=space.num_gpus or min(space.max_gpus or most, most),
        tensor_parallel=(1,),
        pipeline_parallel=(1,),
        context_parallel=(1,),
        data_parallel_sharding_strategy=strategies,
    )


def with_data_parallelism_alone(instance: Instance, space: SearchSpace) -> SearchSpace:
    """Return the search space with ZeRO 3 on all GPUs added, as far as its pins allow; unchanged with experts."""
    if instance.model.num_experts is not None or space.use_distributed_optimizer is not None:
        return space
    try:
        alone = enumerate_candidates(instance, data_parallelism_alone(instance, space, (SHARED_PARAMETERS,)))
    except (InfeasibleError, InputError):
        return space
    more = (config for config in alone if config.recomputation != "block" and agrees(space, config))
    return replace(space, more_configs=tuple(dict.fromkeys((*space.more_configs, *more))))

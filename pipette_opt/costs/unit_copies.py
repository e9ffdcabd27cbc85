"""
Copies of units in sharded data parallelism: into flat buffers outside Megatron, and to and from the host.

FSDP2 gathers a unit's parameters into one buffer and copies them out into each parameter, in the stream of compute. It
copies the gradients of a unit, converted, into the buffer of the reduce-scatter (``foreach_all_gather_copy_out`` and
``foreach_reduce`` in ``torch/distributed/fsdp/_fully_shard/_fsdp_collectives.py``). Megatron-FSDP and Megatron-Core's
optimizer keep parameters and gradients in such buffers.
"""

from pipette_opt.costs.stage import parts_on_rank
from pipette_opt.parallel import ParallelConfig
from pipette_opt.specs import GpuSpec, LayerKind, ModelSpec, StackSpec, TrainingSpec
from pipette_opt.specs.activations import host_keeps


def layer_copies_s(
    model: ModelSpec, training: TrainingSpec, config: ParallelConfig, gpu: GpuSpec, rates: StackSpec, kind: LayerKind
) -> tuple[float, float]:
    """Return the seconds of a layer's copies for one micro-batch, forward and backward."""
    if rates.family != "fsdp" or config.sharding_stage < 2:
        return 0.0, 0.0
    parts = parts_on_rank(model, config)
    replicas = config.expert_data_parallel_size // config.num_distributed_optimizer_instances
    own = parts_on_rank(model, config, trained=True)
    held, trained = (each.layers[kind] + (replicas > 1) * each.experts[kind] for each in (parts, own))
    return copies_s(held, trained, training, config, gpu, rates)


def copies_s(
    parameters: float, trained: float, training: TrainingSpec, config: ParallelConfig, gpu: GpuSpec, rates: StackSpec
) -> tuple[float, float]:
    """
    Return the seconds of the copies of a unit's parameters for one micro-batch, forward and backward.

    ``trained``: those of the parameters that have gradients.
    """
    if rates.family != "fsdp" or config.sharding_stage < 2 or config.sharing_ranks == 1:
        return 0.0, 0.0
    stream = parameters / (gpu.memory_bytes_per_s * rates.streaming)
    out = 2.0 * training.gather_bytes * stream * (config.sharding_stage == 3)
    back = (training.parameter_bytes + training.gradient_bytes) * trained
    return out, out + back / (gpu.memory_bytes_per_s * rates.streaming)


def layer_host_copies_s(
    model: ModelSpec, training: TrainingSpec, config: ParallelConfig, gpu: GpuSpec, rates: StackSpec, kind: LayerKind
) -> tuple[float, float]:
    """Return the seconds of copies of a layer's shard from and to the host for a micro-batch, forward and backward."""
    if not host_keeps(training, config).parameters:
        return 0.0, 0.0
    parts, own = parts_on_rank(model, config), parts_on_rank(model, config, trained=True)
    to_experts = config.sharing_ranks / max(
        config.expert_data_parallel_size // config.num_distributed_optimizer_instances, 1
    )
    held, trained = (each.layers[kind] + to_experts * each.experts[kind] for each in (parts, own))
    return host_copies_s(held, trained, model, training, config, gpu, rates)


def host_copies_s(
    parameters: float,
    trained: float,
    model: ModelSpec,
    training: TrainingSpec,
    config: ParallelConfig,
    gpu: GpuSpec,
    rates: StackSpec,
) -> tuple[float, float]:
    """
    Return the seconds of copies of a unit's shard for one micro-batch, forward and backward; 0 if GPUs keep shards.

    Weights go to the GPU before each of their gathers, in FSDP2 as the fp32 copies that the optimizer changes
    (``all_gather_inputs`` in ``_fsdp_param.py``). Gradients return meanwhile. ``parameters`` and ``trained`` are those
    of a rank before replicas share them.
    """
    if not host_keeps(training, config).parameters:
        return 0.0, 0.0
    is_wide = rates.family == "fsdp" and training.main_params_dtype == "fp32"
    frozen = 0.0 if model.adapters is None else min(model.adapters.base_bytes, training.parameter_bytes)
    weights = (4 if is_wide else training.parameter_bytes) * trained + frozen * (parameters - trained)
    rate = gpu.host_bytes_per_s * config.sharing_ranks
    return weights / rate, max(weights, training.gradient_bytes * trained) / rate

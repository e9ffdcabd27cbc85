"""Correction of layer times learned from measured runs."""

from pipette_opt.parallel import ParallelConfig
from pipette_opt.specs import GpuSpec, Instance, StackSpec
from pipette_opt.specs.layers import LayerFactor


def layer_shape(instance: Instance, config: ParallelConfig, gpu: GpuSpec) -> LayerFactor | None:
    """
    Return the shape of the layers without experts, as a key of the table learned from measured runs.

    ``None`` where the table does not apply: context parallelism, and tensor groups over several hosts, which wait for
    the network.
    """
    tp = config.tensor_model_parallel_size
    if config.context_parallel_size > 1 or tp > instance.cluster.gpus_per_node:
        return None
    model, training = instance.model, instance.training
    # Where the GPU's usual kernels are as fast as the second version, both are one.
    version = training.flash_version if gpu.efficiency.attention.flash2 < 1.0 else min(training.flash_version, 2)
    products = "fp8" if training.fp8 else "nvfp4" if training.fp4 else training.precision
    attention = f"flash{version}" if training.attention_kernel == "flash" else "unfused"
    softmax = "" if training.attention_kernel == "flash" or training.fused_softmax else " softmax-unfused"
    norms = "" if training.fused_norm else " norm-unfused"
    return LayerFactor(
        gpu=gpu.kind,
        kernels=f"{products} {attention}{softmax}{norms}",
        tensor_model_parallel_size=tp,
        sequence_parallel=config.sequence_parallel,
        seq_length=training.seq_length,
        hidden_size=model.hidden_size,
        ffn_hidden_size=model.ffn_hidden_size,
        micro_batch_size=config.micro_batch_size,
    )


def learned_factor(instance: Instance, config: ParallelConfig, gpu: GpuSpec, stack: StackSpec) -> float:
    """Return measured over predicted compute of a dense layer; 1 without a similar run, and for latent attention."""
    unknown = stack.layers is None or instance.model.multi_latent_attention is not None
    shape = None if unknown else layer_shape(instance, config, gpu)
    return 1.0 if stack.layers is None or shape is None else stack.layers.factor(shape)

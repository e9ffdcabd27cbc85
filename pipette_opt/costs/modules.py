"""Times of a layer's modules that the backward pass can recompute one by one."""

from pipette_opt.costs.expert_layer import activation_again_s, expert_times_s
from pipette_opt.costs.products import cast_s, linear_format, product_s
from pipette_opt.layers.adapters import Adapters
from pipette_opt.layers.branch import BY_OPERATION, Branch, Module
from pipette_opt.parallel import ParallelConfig
from pipette_opt.specs import GpuSpec, Instance, LayerKind, StackSpec, TrainingSpec
from pipette_opt.specs.activations import micro_batch_tokens

FUSED_NORM_PASSES, UNFUSED_NORM_PASSES = (2.0, 3.0), (18.0, 45.0)
"""
Number of activations that a normalisation layer reads and writes, forward and backward, fused and unfused. Counted.

A fused kernel reads and writes once. Framework operations cast to fp32, square, average, scale, cast back and scale by
the weight, each through memory, in fp32 in between: 36 bytes an element; their derivatives read and write about 90.
"""


def modules_again_s(
    instance: Instance, config: ParallelConfig, gpu: GpuSpec, rates: StackSpec, kind: LayerKind
) -> float:
    """
    Return the time of a layer's selective recomputation without the attention core, seconds.

    Each module takes its forward time. ``costs/collectives.py`` and ``costs/exchange.py`` have the repeated
    communication.
    """
    if config.recompute_granularity != "selective":
        return 0.0
    model, training, stream = instance.model, instance.training, gpu.memory_bytes_per_s * rates.streaming

    own = 1 / (config.tensor_model_parallel_size if config.sequence_parallel else 1)
    passes = FUSED_NORM_PASSES if training.fused_norm else UNFUSED_NORM_PASSES
    moved = micro_batch_tokens(training, config) * model.hidden_size * own * training.parameter_bytes
    seconds, repeats_all = 0.0, kind.has_experts and config.recomputes("moe")
    if config.recomputes(BY_OPERATION):
        return sum(operations_again_s(branch, training, config, gpu, rates) for branch in model.branches(kind))
    for branch in model.branches(kind):
        if branch.has_own_norm and config.recomputes("layernorm"):
            seconds += passes[0] * moved / stream + rates.kernel_s
        for name, module in branch.modules.items():
            if config.recomputes(name) or (name == "shared_experts" and repeats_all):
                seconds += module_forward_s(module, model.adapters, training, config, gpu, rates)
    if repeats_all:
        seconds += expert_times_s(model, training, config, gpu, rates)[0]
    elif kind.has_experts and config.recomputes("moe_act"):
        seconds += activation_again_s(model, training, config, gpu, rates)
    return seconds


def operations_again_s(
    branch: Branch, training: TrainingSpec, config: ParallelConfig, gpu: GpuSpec, rates: StackSpec
) -> float:
    """Return the time of what recomputation by operation repeats of a branch, seconds."""
    normed = branch.model.hidden_size * (1 + branch.model.more_norms)
    repeated = Module(branch.operations[1::2], branch.streamed, normed, kernels=branch.kernels(training))
    return module_forward_s(repeated, branch.model.adapters, training, config, gpu, rates)


def module_forward_s(
    module: Module,
    adapters: Adapters | None,
    training: TrainingSpec,
    config: ParallelConfig,
    gpu: GpuSpec,
    rates: StackSpec,
) -> float:
    """Return the forward time of a part of a branch, seconds: norms, products with their casts, elementwise kernels."""
    tokens, tp = micro_batch_tokens(training, config), config.tensor_model_parallel_size
    form, own = linear_format(gpu, training, rates), 1 / (tp if config.sequence_parallel else 1)
    products = [product_s(product, adapters, training, config, gpu, rates).forward_s for product in module.products]
    passes = FUSED_NORM_PASSES if training.fused_norm else UNFUSED_NORM_PASSES
    stream = tokens * training.parameter_bytes / (gpu.memory_bytes_per_s * rates.streaming)
    moved = module.streamed / tp * rates.elementwise + passes[0] * module.normed * own
    inputs = sum(product.inputs for product in module.products if product.split == "rows") / tp
    of_norms = training.fused_norm * module.normed * own
    casts = cast_s(tokens * inputs, form, gpu, rates, of_norms=tokens * of_norms)
    return sum(products) + stream * moved + casts + module.kernels * rates.kernel_s

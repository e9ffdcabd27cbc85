"""Times of a layer's modules that the backward pass can recompute one by one."""

from pipette_opt.costs.expert_layer import activation_again_s, expert_times_s
from pipette_opt.costs.products import cast_s, linear_format, micro_batch_tokens, product_times_s
from pipette_opt.parallel import ParallelConfig
from pipette_opt.specs import GpuSpec, Instance, LatentAttention, LayerKind, ModelSpec, StackSpec, TrainingSpec
from pipette_opt.specs.layer_parameters import mlp_width

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

    share = config.tensor_model_parallel_size if config.sequence_parallel else 1
    is_latent = kind.mixer == "latent_attention"
    norms = (kind.has_experts + is_latent) * config.recomputes("layernorm")
    passes = FUSED_NORM_PASSES if training.fused_norm else UNFUSED_NORM_PASSES
    moved = micro_batch_tokens(training, config) * model.hidden_size / share * training.parameter_bytes
    seconds = norms * (passes[0] * moved / stream + rates.kernel_s)
    if is_latent and config.recomputes("mla_up_proj"):
        seconds += up_projection_forward_s(model, training, config, gpu, rates)

    def mlp(width: int) -> float:
        return mlp_forward_s(model, training, config, gpu, rates, width) if width else 0.0

    if not kind.has_experts:
        return seconds + (mlp(mlp_width(model, kind)) if config.recomputes("mlp") else 0.0)
    shared = model.moe_shared_expert_intermediate_size
    if config.recomputes("moe"):
        seconds += expert_times_s(model, training, config, gpu, rates)[0] + mlp(shared)
    else:
        seconds += activation_again_s(model, training, config, gpu, rates) if config.recomputes("moe_act") else 0.0
        seconds += mlp(shared) if config.recomputes("shared_experts") else 0.0
    return seconds


def up_projection_forward_s(
    model: ModelSpec, training: TrainingSpec, config: ParallelConfig, gpu: GpuSpec, rates: StackSpec
) -> float:
    """
    Return the time of latent attention's up-projections (norms, products, positions), seconds; 0 without latent
    attention.
    """
    latent, tokens = model.multi_latent_attention, micro_batch_tokens(training, config)
    if latent is None:
        return 0.0
    tp, form = config.tensor_model_parallel_size, linear_format(gpu, training, rates)
    share = tp if config.sequence_parallel else 1
    products = [
        product_times_s(tokens, n // tp, k, form=form, gpu=gpu, rates=rates, gradient_bytes=training.gradient_bytes)[0]
        for n, k in model.attention_shapes[:-1]
    ]
    passes = FUSED_NORM_PASSES if training.fused_norm else UNFUSED_NORM_PASSES
    moved = rotated_latent(latent) * model.num_attention_heads / tp * rates.elementwise
    moved += passes[0] * latent.latent_size / share
    stream = tokens * training.parameter_bytes / (gpu.memory_bytes_per_s * rates.streaming)
    return (
        sum(products)
        + stream * moved
        + cast_s(0.0, form, gpu, rates, of_norms=tokens * latent.latent_size / share)
        + 4 * rates.kernel_s
    )


def rotated_latent(latent: LatentAttention) -> float:
    """
    Return the channels of a head that the fused position kernels of latent attention read or write.

    Queries: the part with positions, in place. Keys without positions and values are read, whole keys and values
    written (``fusions/fused_mla_...``).
    """
    return 2.0 * latent.qk_pos_emb_head_dim + latent.up_head_size + latent.key_head_size + latent.v_head_dim


def mlp_forward_s(
    model: ModelSpec, training: TrainingSpec, config: ParallelConfig, gpu: GpuSpec, rates: StackSpec, width: int
) -> float:
    """Return the forward time of an MLP, seconds: norm, two products with their casts, and activation."""
    tokens, tp, h = micro_batch_tokens(training, config), config.tensor_model_parallel_size, model.hidden_size
    up, form = 2 * width if model.gated_linear_unit else width, linear_format(gpu, training, rates)
    share, passes = (
        (tp if config.sequence_parallel else 1),
        (FUSED_NORM_PASSES if training.fused_norm else UNFUSED_NORM_PASSES),
    )
    products = [
        product_times_s(tokens, n, k, form=form, gpu=gpu, rates=rates, gradient_bytes=training.gradient_bytes)[0]
        for n, k in ((up // tp, h), (h, width // tp))
    ]
    stream = tokens * training.parameter_bytes / (gpu.memory_bytes_per_s * rates.streaming)
    moved = (2.0 * up + width) / tp * rates.elementwise + passes[0] * h / share
    casts = cast_s(tokens * width / tp, form, gpu, rates, of_norms=tokens * h / share * training.fused_norm)
    return sum(products) + stream * moved + casts + 3 * rates.kernel_s

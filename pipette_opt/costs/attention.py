"""
Time of one layer's attention: scores, softmax, and the product with the values.

A fused kernel skips the masked half and includes the softmax; its law is
:class:`~pipette_opt.specs.efficiency.AttentionLaw`. Without a fused kernel, scores stream through memory.

Latent attention has wider heads for keys than for values. Its kernels get the rate of heads as wide as the values: with
192 and 128 channels (DeepSeek-V3, sequences of 2,048 tokens and more) TensorRT-LLM's on H100 take 0.93 to 1.08 of that,
those on B200 and GB200 0.7 to 0.9 (``benchmarks/silicon/latent.py``).

With a window, the law counts the tokens that a query sees, as if the sequence were twice as long. Its constants come
from whole sequences. For 15,800 windowed kernels on H100, B200 and GB200, the predicted time is 0.72, 0.82 and 0.77 of
the measured one in the median with 128 tokens, 0.76 to 1.02 with 1,024, and 1.02 to 1.12 with 8,192
(``benchmarks/silicon/windows.py``).
"""

from pipette_opt.costs.products import peak_flops, plain_format
from pipette_opt.costs.ring_steps import ring_steps_s
from pipette_opt.costs.sparse import sparse_times_s
from pipette_opt.layers.attention import AttentionBranch
from pipette_opt.layers.sparse import SparseAttentionBranch
from pipette_opt.parallel import ParallelConfig
from pipette_opt.specs import GpuSpec, LayerKind, ModelSpec, StackSpec, TrainingSpec
from pipette_opt.specs.activations import attended_tokens, micro_batch_tokens

BACKWARD_WORK = 2.5
"""FLOPs of the fused backward over the forward's: five products for two, as the scores are computed anew."""

BACKWARD_RATE = 0.87
"""
Rate of the fused backward over the forward's. On H100 with head size 128 and 16,384 tokens, in TFLOP/s: 561 and 648
(FlashAttention-3), 516 and 595 (cuDNN), 322 and 370 (FlashAttention-2): figures 5 and 6 of arXiv 2407.08608.
"""

BACKWARD_BYTES = 2.5
"""
Traffic of the backward over the forward's: query, key, value, output and its gradient read, three gradients written,
that of the query in fp32 (10 passes for 4, where keys are as wide as queries).
"""

UNFUSED_PASSES, PLAIN_PASSES = (8.0, 8.0), (14.0, 16.0)
"""
Number of times that scores are read or written, forward and backward, if attention is not fused. Counted.

Scale, mask, softmax and dropout stream them about four times each way. Without a fused softmax, a scaling, a masking
and two casts stream them as well.
"""


def attention_times_s(
    model: ModelSpec, training: TrainingSpec, config: ParallelConfig, gpu: GpuSpec, rates: StackSpec, kind: LayerKind
) -> tuple[float, float]:
    """
    Return the forward and backward time of a layer's attention, seconds; 0 for layers without attention.

    With context parallelism, it includes all blocks and their merging.
    """
    branch = model.mixer(kind)
    if not isinstance(branch, AttentionBranch):
        return 0.0, 0.0
    if isinstance(branch, SparseAttentionBranch):
        return sparse_times_s(branch, training, config, gpu, rates).total
    times_s = _fused_times_s if training.attention_kernel == "flash" else _unfused_times_s
    whole = times_s(branch, training, config, gpu, rates)
    further = ring_steps_s(model, training, config, gpu, rates)
    return whole[0] + further[0], whole[1] + further[1]


def _fused_times_s(
    branch: AttentionBranch, training: TrainingSpec, config: ParallelConfig, gpu: GpuSpec, rates: StackSpec
) -> tuple[float, float]:
    """Return the forward and backward time of a rank's attention as if it were one fused kernel, seconds."""
    model, tokens, tp = branch.model, attended_tokens(training, config), config.tensor_model_parallel_size
    law, seen = gpu.efficiency.attention, branch.tokens_seen(training.attended_length)
    rate = peak_flops(gpu, training) * law.share(model.value_head_size)
    width = sum(branch.core_widths) / tp
    flops = tokens * branch.core_flops(training)[0] / tp
    rate *= 1.0 if training.flash_version > 2 else law.flash2  # the first version is written in terms of the second
    rate *= 1.0 if training.flash_version > 1 else rates.flash1
    compute = flops * (1.0 + law.half_seq / (2.0 * seen)) / rate
    moved = tokens * (width + branch.keys_width(tp)) * training.parameter_bytes
    stream = moved / (gpu.memory_bytes_per_s * rates.streaming)
    backward = BACKWARD_WORK * compute / (BACKWARD_RATE * rates.attention_backward_speed)
    return (
        law.start_s + compute / rates.attention_speed + stream,
        law.start_s + backward + BACKWARD_BYTES * stream,
    )


def _unfused_times_s(
    branch: AttentionBranch, training: TrainingSpec, config: ParallelConfig, gpu: GpuSpec, rates: StackSpec
) -> tuple[float, float]:
    """
    Return the forward and backward time of unfused attention, seconds: two batched products and passes over the scores.

    All scores count, whatever the window.
    """
    model, tokens, tp = branch.model, micro_batch_tokens(training, config), config.tensor_model_parallel_size
    keys = training.sequence_tokens(config.micro_batch_size)
    scores = tokens * keys * training.parameter_bytes * model.num_attention_heads / tp
    passes = UNFUSED_PASSES if training.fused_softmax else PLAIN_PASSES
    stream = scores / (gpu.memory_bytes_per_s * rates.streaming)
    form = plain_format(gpu, training, rates)
    flops = tokens * branch.core_flops(training)[0] / tp
    product = flops / form.flops_per_s * (1.0 + form.law.half_inner / model.key_head_size)
    return (
        product + passes[0] * stream + 6 * rates.kernel_s,
        2.0 * product + passes[1] * stream + 8 * rates.kernel_s,
    )

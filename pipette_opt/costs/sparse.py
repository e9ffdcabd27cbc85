"""
Time of sparse attention: scores of the indexer, choice of the tokens, attention on their latents, the indexer's loss.

The kernels are TileLang's of Megatron-Core (``ops/tilelang_*`` of ``experimental_attention_variant``, 0.20). They were
measured on one H200 with DeepSeek-V3.2's sizes, 4,096 to 32,768 tokens, 16 to 128 heads
(``benchmarks/results/sparse-attention.md``). Rates are shares of the dense peak, so that other GPUs have a time.
Written out in PyTorch, as without ``--dsa-kernel-backend``, all of it takes several times as long.
"""

from typing import NamedTuple

from pipette_opt.base.units import ceil_div
from pipette_opt.costs.products import peak_flops
from pipette_opt.layers.sparse import SCORE_BYTES, SparseAttentionBranch
from pipette_opt.parallel import ParallelConfig
from pipette_opt.specs import GpuSpec, StackSpec, TrainingSpec
from pipette_opt.specs.activations import micro_batch_tokens

HEADS_OF_BLOCK = 64
"""Heads that share the latents that a thread block reads (``sparse_mla_fwd``)."""

QUERY_PASSES = (2.0, 10.0)
"""
Number of times that elementwise kernels read or write queries and outputs, forward and backward.

Measured beside the attention kernels: 2 forward and 10.5 backward with 128 heads.
"""

BACKWARD_WORK = 2.5
"""FLOPs of the backward kernel over the forward kernel's: five products for two."""

BACKWARD_SHARE = 0.088
"""
Share of the dense peak that the backward kernel attains beside one reading of the latents of all chosen tokens.

Measured between 16, 64 and 128 heads: 87 TFLOP/s of 989.
"""

SCORE_FLOPS = 165e3
"""
FLOPs at the dense peak that last as long as the part of an indexer's score that does not grow with its heads.

Measured: .17 ns a score on H200. Threads write the scores one by one.
"""

SCORE_SHARE = 0.264
"""Share of the dense peak of the products of the indexer's scores, measured between 32 and 64 heads."""

CHOICE_PASSES = 12.0
"""
Number of times that the choice reads or writes the fp32 scores of all tokens, masked ones too.

Measured: 14 with 8,192 tokens, 11 with 32,768 (``torch.topk`` and the cleaning of the scores).
"""

INPUT_PASSES = 20.0
"""
Number of times that elementwise kernels read or write the indexer's queries, each way.

Measured: 20 to 22, with positions that no kernel fuses. Without the loss the indexer has no backward pass.
"""

TARGET_SHARE, HEADS_OF_TARGET = 0.039, 32
"""
Share of the dense peak of the kernel that sums attention's probabilities for the loss, and the heads of its blocks.

Measured: 1.8 to 2.0 ns for a chosen token and block of 32 heads, which has two products.
"""

GRADIENT_SHARE = 0.062
"""Share of the dense peak of the indexer's backward kernel: measured .065 with 64 heads, .053 with 32."""


class SparseTimes(NamedTuple):
    """
    Forward and backward seconds of the parts of sparse attention.

    Parameters
    ----------
    attention
        Attention on the latents of the chosen tokens; the backward pass computes the forward pass anew.
    scores, choice
        Scores of the indexer, and choice of the best.
    inputs
        Elementwise kernels on the indexer's queries, key and weights.
    """

    attention: tuple[float, float]
    scores: tuple[float, float]
    choice: tuple[float, float]
    inputs: tuple[float, float]
    loss: tuple[float, float]

    @property
    def total(self) -> tuple[float, float]:
        """Forward and backward seconds of all parts."""
        forward, backward = zip(*self, strict=True)
        return sum(forward), sum(backward)


def sparse_times_s(
    branch: SparseAttentionBranch, training: TrainingSpec, config: ParallelConfig, gpu: GpuSpec, rates: StackSpec
) -> SparseTimes:
    """Return the forward and backward time of a rank's sparse attention, without matrix products, seconds."""
    tokens, tp, indexer = micro_batch_tokens(training, config), config.tensor_model_parallel_size, branch.indexer
    peak, stream = peak_flops(gpu, training), gpu.memory_bytes_per_s * rates.streaming
    heads, width = branch.model.num_attention_heads // tp, sum(branch.core_widths) / tp
    pairs = float(tokens * branch.slots(training.seq_length))
    law, element = gpu.efficiency.attention, training.parameter_bytes
    product = 2.0 * pairs * width
    read = pairs * ceil_div(heads, HEADS_OF_BLOCK) * branch.latent_width * element
    rate = peak * law.share(branch.model.value_head_size) * rates.attention_speed
    kernel = law.start_s + product / rate + read / stream
    gradients = BACKWARD_WORK * product / (BACKWARD_SHARE * rates.attention_backward_speed * peak)
    gradients += pairs * branch.latent_width * element / stream
    streamed = [passes * tokens * width * element / stream for passes in QUERY_PASSES]
    scores = tokens * training.seq_length / 2
    score = 2.0 * indexer.n_heads * indexer.head_dim / SCORE_SHARE + SCORE_FLOPS
    inputs = INPUT_PASSES * tokens * indexer.n_heads * indexer.head_dim * element / stream
    targets = 4.0 * pairs * HEADS_OF_TARGET * ceil_div(heads, HEADS_OF_TARGET) * branch.latent_width
    of_index = 6.0 * pairs * indexer.n_heads * indexer.head_dim
    has_loss = indexer.loss_coeff > 0
    return SparseTimes(
        attention=(kernel + streamed[0], kernel + gradients + streamed[1]),
        scores=(scores * score / peak, 0.0),
        choice=(CHOICE_PASSES * SCORE_BYTES * tokens * training.seq_length / stream, 0.0),
        inputs=(inputs, has_loss * inputs),
        loss=(has_loss * targets / (TARGET_SHARE * peak), has_loss * of_index / (GRADIENT_SHARE * peak)),
    )

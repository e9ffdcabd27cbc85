"""
Time of sparse attention: scores of the indexer, choice of the tokens, attention on their latents, the indexer's loss.

The kernels are TileLang's of Megatron-Core (``ops/tilelang_*`` of ``experimental_attention_variant``, 0.20), with the
rates of the stack (:class:`~pipette_opt.specs.stack.SparseRates`). Written out in PyTorch, as without
``--dsa-kernel-backend``, all of it takes several times as long.
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

BACKWARD_WORK = 2.5
"""FLOPs of the backward kernel over the forward kernel's: five products for two."""

HEADS_OF_TARGET = 32
"""Heads of a block of the kernel that sums attention's probabilities for the indexer's loss."""


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
    sparse = rates.sparse_attention
    peak, stream = peak_flops(gpu, training), gpu.memory_bytes_per_s * rates.streaming
    heads, width = branch.model.num_attention_heads // tp, sum(branch.core_widths) / tp
    pairs = float(tokens * branch.slots(training.attended_length))
    law, element = gpu.efficiency.attention, training.parameter_bytes
    product = 2.0 * pairs * width
    read = pairs * ceil_div(heads, HEADS_OF_BLOCK) * branch.latent_width * element
    rate = peak * law.share(branch.model.value_head_size) * rates.attention_speed
    kernel = law.start_s + product / rate + read / stream
    gradients = BACKWARD_WORK * product / (sparse.backward_share * rates.attention_backward_speed * peak)
    gradients += pairs * branch.latent_width * element / stream
    streamed = [passes * tokens * width * element / stream for passes in sparse.query_passes]
    scores = tokens * training.attended_length / 2
    score = 2.0 * indexer.n_heads * indexer.head_dim / sparse.score_share + sparse.score_flops
    inputs = sparse.input_passes * tokens * indexer.n_heads * indexer.head_dim * element / stream
    targets = 4.0 * pairs * HEADS_OF_TARGET * ceil_div(heads, HEADS_OF_TARGET) * branch.latent_width
    of_index = 6.0 * pairs * indexer.n_heads * indexer.head_dim
    has_loss = indexer.loss_coeff > 0
    return SparseTimes(
        attention=(kernel + streamed[0], kernel + gradients + streamed[1]),
        scores=(scores * score / peak, 0.0),
        choice=(sparse.choice_passes * SCORE_BYTES * tokens * training.attended_length / stream, 0.0),
        inputs=(inputs, has_loss * inputs),
        loss=(has_loss * targets / (sparse.target_share * peak), has_loss * of_index / (sparse.gradient_share * peak)),
    )

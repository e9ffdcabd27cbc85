"""
Sparse attention of DeepSeek-V3.2 and GLM-5: latent attention to the tokens that an indexer finds best.

The indexer scores every earlier token with narrow heads, which share one key, and each token attends to the
``topk`` best (DeepSeek-AI, "DeepSeek-V3.2", arXiv 2512.02556, section 2.1). Every tensor rank computes the indexer
whole, on all its tokens (``experimental_attention_variant/dsa.py`` of Megatron-Core 0.16). Attention itself works on
the latents, which all heads share, as the tokens that each token reads are its own.

Counted are the operations of fused kernels, as Megatron-Core 0.19 has with ``--dsa-kernel-backend``; without it, as in
0.16, the scores of all tokens are written out. Seconds are those of TileLang's kernels (``costs/sparse.py``).
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from pipette_opt.layers.branch import Kept, OnRank, Product
from pipette_opt.layers.latent import LatentAttentionBranch
from pipette_opt.layers.recurrent import check_sizes

if TYPE_CHECKING:
    from pipette_opt.specs.training import TrainingSpec

INDEXER_KERNELS = 14
"""
Kernel launches of the indexer in one pass. Counted.

Products (3), norm, positions (6), rotations (2), scores, top-k. Megatron-Core's module launches 88 kernels, measured at
6 to 10 us each; the host time of a counted launch, 80 us, includes such small ones.
"""

INDEX_BYTES, SCORE_BYTES = 4, 4
"""Bytes of the number of a chosen token, and of a score."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SparseAttention:
    """
    Sizes of the indexer (``dsa_indexer_...`` of megatron-core's ``TransformerConfig``).

    Parameters
    ----------
    n_heads, head_dim
        Heads of the indexer, and channels of each.
    topk
        Tokens to which each token attends.
    loss_coeff
        Coefficient of the loss that trains the indexer to choose as attention would; 0 leaves the loss out, and with it
        the indexer's backward pass.
    """

    n_heads: int = 64
    head_dim: int = 128
    topk: int = 2048
    loss_coeff: float = 0.0

    def __post_init__(self) -> None:
        check_sizes("sparse_attention", self, ("n_heads", "head_dim", "topk"))
        if not 0 <= self.loss_coeff < float("inf"):
            raise ValueError(f"loss_coeff of sparse_attention must be >= 0, got {self.loss_coeff!r}.")


class SparseAttentionBranch(LatentAttentionBranch):
    """Latent attention, and the indexer that chooses its tokens."""

    context_types: ClassVar[tuple[str, ...]] = ("all_gather",)

    @property
    def indexer(self) -> SparseAttention:
        """Sizes of the indexer."""
        sizes = self.model.sparse_attention
        assert sizes is not None
        return sizes

    @property
    def products(self) -> tuple[Product, ...]:
        """Products of latent attention, and of the indexer's queries, key and weights of heads."""
        h, indexer = self.model.hidden_size, self.indexer
        return (
            *super().products,
            Product(indexer.n_heads * indexer.head_dim, self.sizes.q_lora_rank or h, "repeated"),
            Product(indexer.head_dim, h, "repeated"),
            Product(indexer.n_heads, h, "repeated"),
        )

    @property
    def whole_vectors(self) -> int:
        """Vectors of latent attention, and the norm of the indexer's key with weights and biases."""
        return super().whole_vectors + 2 * self.indexer.head_dim

    @property
    def gathers(self) -> tuple[int, int]:
        """Gathers of latent attention, and those of the indexer: the layer's input and the latent of the queries."""
        width, calls = super().gathers
        rank = self.sizes.q_lora_rank
        return width + self.model.hidden_size + (rank or 0), calls + (1 if rank is None else 2)

    @property
    def core_widths(self) -> tuple[int, int]:
        """Channels of all heads, each as wide as the latent of keys and values, with positions in the scores."""
        heads, latent = self.model.num_attention_heads, self.sizes.kv_lora_rank
        return heads * (latent + self.sizes.qk_pos_emb_head_dim), heads * latent

    def tokens_seen(self, seq_length: float) -> float:
        """Return the mean number of chosen tokens: all earlier ones, until they are more than ``topk``."""
        chosen = min(self.indexer.topk, seq_length)
        return chosen * (1 - chosen / (2 * seq_length))

    def core_flops(self, training: "TrainingSpec") -> tuple[float, float]:
        """
        Return the FLOPs of attention on the latents of the chosen tokens, of the indexer's scores, and of its loss.

        The indexer scores all earlier tokens. For its loss, the backward pass has the scores of attention anew, and
        the gradients of the indexer's queries, keys and weights, for the chosen tokens.
        """
        slots, indexer = self.slots(training.attended_length), self.indexer
        width = indexer.n_heads * indexer.head_dim
        core = 2.0 * sum(self.core_widths) * slots
        loss = slots * (4.0 * self.model.num_attention_heads * self.latent_width + 6.0 * width)
        return core + width * training.attended_length, 2 * core + (indexer.loss_coeff > 0) * loss

    def keys_width(self, tp: int) -> float:
        """Return the channels of a token's latent, of its positions and of the indexer's key, which all ranks have."""
        return float(self.latent_width + self.indexer.head_dim)

    @property
    def latent_width(self) -> int:
        """Channels of the latent of a token's key with its positions, which all heads share."""
        return self.sizes.kv_lora_rank + self.sizes.qk_pos_emb_head_dim

    def slots(self, seq_length: float) -> float:
        """Return the tokens that kernels attend to for each token, with padding where fewer are earlier."""
        return min(self.indexer.topk, seq_length)

    def kept_inside(self, rank: OnRank) -> tuple[Kept, ...]:
        """
        Return the latents, and what attention on them keeps in place of keys and values of heads.

        Queries and outputs of heads are as wide as the latents. Beside them are the chosen tokens' numbers and, for the
        loss, the indexer's inputs if tensor ranks gather them, its queries, key and weights, and scores, gradients and
        validity of the chosen tokens. On one H200 these are all bytes without the loss, and 1 % less than measured with
        it.
        """
        sizes, indexer, model, e = self.sizes, self.indexer, self.model, rank.element
        heads = model.num_attention_heads / rank.tp
        wider = heads * (self.latent_width - sizes.key_head_size - sizes.v_head_dim) + self.latent_width
        made = (indexer.n_heads + 2) * indexer.head_dim + indexer.n_heads
        gathered = (model.hidden_size + (sizes.q_lora_rank or 0)) * (rank.tp > 1)
        of_loss = e * (made + gathered) + (2 * SCORE_BYTES + 1) * indexer.topk
        core = heads * (e * sizes.kv_lora_rank + 1) + INDEX_BYTES * indexer.topk + of_loss * (indexer.loss_coeff > 0)
        return (
            *super().kept_inside(rank),
            Kept(e * rank.tokens * wider, freed_by=self.heads_freed_by),
            Kept(rank.tokens * core, freed_by=("core_attn",)),
        )

    def kernels(self, training: "TrainingSpec") -> int:
        """Return the kernel launches of a pass."""
        return super().kernels(training) + INDEXER_KERNELS

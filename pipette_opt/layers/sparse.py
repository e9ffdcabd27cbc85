"""
Sparse attention of DeepSeek-V3.2 and GLM-5: latent attention to the tokens that an indexer finds best.

The indexer scores every earlier token with narrow heads, which share one key, and each token attends to the
``topk`` best (DeepSeek-AI, "DeepSeek-V3.2", arXiv 2512.02556, section 2.1). Every tensor rank computes the indexer
whole, on all its tokens (``experimental_attention_variant/dsa.py`` of Megatron-Core 0.16). Attention itself works on
the latents, which all heads share, as the tokens that each token reads are its own.

Counted are the operations of fused kernels, as Megatron-Core 0.19 has with ``--dsa-kernel-backend``; 0.16 writes out
the scores of all tokens. Nothing of it was measured.
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

Products (3), norm, positions (6), rotations (2), scores, top-k.
"""

INDEX_BYTES = 4
"""Bytes of the number of a chosen token."""


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
    """

    n_heads: int = 64
    head_dim: int = 128
    topk: int = 2048

    def __post_init__(self) -> None:
        check_sizes("sparse_attention", self)


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

    def tokens_seen(self, seq_length: int) -> float:
        """Return the mean number of chosen tokens: all earlier ones, until they are more than ``topk``."""
        chosen = min(self.indexer.topk, seq_length)
        return chosen * (1 - chosen / (2 * seq_length))

    def keys_width(self, tp: int) -> float:
        """Return the channels of a token's latent, of its positions and of the indexer's key, which all ranks have."""
        return float(self.sizes.kv_lora_rank + self.sizes.qk_pos_emb_head_dim + self.indexer.head_dim)

    def keys_read(self, tp: int, seq_length: int) -> float:
        """Return the channels of the latents of all chosen tokens: no other token reads the same ones."""
        return self.tokens_seen(seq_length) * (self.sizes.kv_lora_rank + self.sizes.qk_pos_emb_head_dim)

    def index_flops(self, seq_length: int) -> float:
        """Return the FLOPs of the indexer's scores of all earlier tokens, per token."""
        return 2.0 * self.indexer.n_heads * self.indexer.head_dim * seq_length / 2

    def kept_inside(self, rank: OnRank) -> tuple[Kept, ...]:
        """Return the latents; inputs, queries, key and weights of the indexer; and the chosen tokens' numbers."""
        indexer = self.indexer
        inputs = self.model.hidden_size + (self.sizes.q_lora_rank or 0)
        made = (indexer.n_heads + 2) * indexer.head_dim + indexer.n_heads
        of_token = rank.element * (inputs + made) + INDEX_BYTES * indexer.topk
        return *super().kept_inside(rank), Kept(rank.tokens * of_token)

    def kernels(self, training: "TrainingSpec") -> int:
        """Return the kernel launches of a pass."""
        return super().kernels(training) + INDEXER_KERNELS

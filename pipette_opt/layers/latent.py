"""
Multi-head latent attention: queries, keys and values are projected from narrow latents (arXiv 2405.04434, section 2.1).

Each token is projected down to a latent of ``q_lora_rank`` channels and to one of ``kv_lora_rank`` channels. A rotary
key of ``qk_pos_emb_head_dim`` channels, shared by all heads, comes on top. Both latents are normalised and projected up
to the heads. Megatron-Core (``multi_latent_attention.py``) holds the down projections whole on every tensor rank, each
for its own tokens, and splits the up projections by heads.
"""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar

from pipette_opt.layers.adapters import LATENT_TARGETS
from pipette_opt.layers.attention import AttentionBranch
from pipette_opt.layers.branch import Branch, Kept, Matrix, Module, OnRank, Product
from pipette_opt.layers.yarn import YarnScaling

if TYPE_CHECKING:
    from pipette_opt.specs.training import TrainingSpec

LATENT_SIZES = ("q_lora_rank", "kv_lora_rank", "qk_head_dim", "qk_pos_emb_head_dim", "v_head_dim")
"""Fields of :class:`LatentAttention` that hold sizes; Megatron-LM's options have the same names."""


PLAIN_YARN = YarnScaling()
"""YaRN parameters with megatron-core's defaults; they leave rotary positions unscaled."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LatentAttention:
    """
    Sizes of latent attention, with megatron-core's names and defaults (``MLATransformerConfig``).

    Parameters
    ----------
    q_lora_rank
        Channels of the queries' latent; ``None`` if queries are projected from the layer's input directly.
    kv_lora_rank
        Channels of the latent of keys and values.
    qk_head_dim
        Channels per head of a query or key, without the rotary channels.
    qk_pos_emb_head_dim
        Rotary channels per head, in addition to ``qk_head_dim``.
    v_head_dim
        Channels per head of a value.
    yarn
        YaRN scaling of the rotary positions, ``rope_type: yarn``; ``None`` for unscaled positions.
    """

    q_lora_rank: int | None = None
    kv_lora_rank: int = 32
    qk_head_dim: int = 128
    qk_pos_emb_head_dim: int = 64
    v_head_dim: int = 128
    yarn: YarnScaling | None = PLAIN_YARN

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if field.name == "yarn" or (field.name == "q_lora_rank" and value is None):
                continue
            if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value < 2**31:
                raise ValueError(f"{field.name} of latent attention must be a whole number >= 1, got {value!r}.")
        if (self.key_head_size + self.v_head_dim) % 2 or self.qk_pos_emb_head_dim % 2:
            raise ValueError(
                "latent attention needs an even qk_pos_emb_head_dim and an even sum of key and value channels, got "
                f"qk_head_dim {self.qk_head_dim}, qk_pos_emb_head_dim {self.qk_pos_emb_head_dim}, v_head_dim "
                f"{self.v_head_dim}."
            )

    @property
    def key_head_size(self) -> int:
        """Channels per head of a query or key, including the rotary channels."""
        return self.qk_head_dim + self.qk_pos_emb_head_dim

    @property
    def latent_size(self) -> int:
        """Channels of both normalised latents together."""
        return (self.q_lora_rank or 0) + self.kv_lora_rank

    @property
    def down_sizes(self) -> tuple[int, ...]:
        """Output channels of each down projection: of queries, if there is one, and of keys with the rotary key."""
        of_keys = self.kv_lora_rank + self.qk_pos_emb_head_dim
        return (of_keys,) if self.q_lora_rank is None else (self.q_lora_rank, of_keys)

    @property
    def down_size(self) -> int:
        """Output channels of all down projections together, including the rotary key."""
        return sum(self.down_sizes)

    @property
    def up_head_size(self) -> int:
        """Channels per head that are projected up from the latent of keys and values: non-rotary key plus value."""
        return self.qk_head_dim + self.v_head_dim


class LatentAttentionBranch(AttentionBranch):
    """Down projections that every tensor rank holds whole, their norms, up projections, attention, output product."""

    has_own_norm = True
    norm_module = "attn_norm"
    norms_heads = False
    heads_freed_by = ("mla_up_proj",)
    context_types: ClassVar[tuple[str, ...]] = ("p2p",)
    first_linears = ("q_proj", *LATENT_TARGETS[:2])

    @property
    def sizes(self) -> LatentAttention:
        """Sizes of the latents."""
        sizes = self.model.multi_latent_attention
        assert sizes is not None
        return sizes

    @property
    def products(self) -> tuple[Product, ...]:
        """Up projections of queries, and of keys with values; output product; down projections."""
        h, heads, sizes = self.model.hidden_size, self.model.num_attention_heads, self.sizes
        rank = sizes.q_lora_rank
        return (
            Product(heads * sizes.key_head_size, rank or h, "columns"),
            Product(heads * sizes.up_head_size, sizes.kv_lora_rank, "columns"),
            Product(h, heads * sizes.v_head_dim, "rows"),
            *(Product(size, h, "whole") for size in sizes.down_sizes),
        )

    @property
    def orthogonal(self) -> tuple[Product, ...]:
        """Matrices of all products; Megatron-Core splits none of them."""
        return self.products

    @property
    def linears(self) -> Mapping[str, Product]:
        """Projections of queries, of keys with values, and of the output."""
        whole = self.sizes.q_lora_rank is None
        query, down = ("q_proj", ()) if whole else ("q_b_proj", ("q_a_proj",))
        names = (query, "kv_b_proj", "o_proj", *down, "kv_a_proj_with_mqa")
        return dict(zip(names, self.products, strict=False))  # an indexer's own products follow

    @property
    def operations(self) -> tuple[Product, ...]:
        """No product: recomputation by operation is not known here."""
        return ()

    @property
    def split_vectors(self) -> int:
        """Sinks of the softmax; the projections have no biases."""
        return self.model.num_attention_heads if self.model.softmax_type == "learnable" else 0

    @property
    def whole_vectors(self) -> int:
        """Bias of the output product, and norms of the latents."""
        norm = self.model.norm_parameters // self.model.hidden_size
        return self.bias + self.model.qk_layernorm * norm * self.sizes.latent_size

    @property
    def split_sizes(self) -> Mapping[str, int]:
        """No size: tensor ranks split heads."""
        return {}

    def product_widths(self, tp: int, expert_tp: int) -> Mapping[str, int]:
        """Return the widths of heads, and of the latents."""
        latents = {f"latent width {size}": size for size in self.sizes.down_sizes}
        return {**super().product_widths(tp, expert_tp), **latents}

    @property
    def streamed(self) -> float:
        """
        Channels that the fused position kernels read or write.

        Queries: the part with positions, in place. Keys without positions and values are read, whole keys and values
        written (``fusions/fused_mla_...``).
        """
        sizes = self.sizes
        of_head = 2.0 * sizes.qk_pos_emb_head_dim + sizes.up_head_size + sizes.key_head_size + sizes.v_head_dim
        return of_head * self.model.num_attention_heads

    @property
    def normed_inputs(self) -> int:
        """Channels of the latents, which are normalised and cast together."""
        return self.sizes.latent_size

    @property
    def normed_inside(self) -> int:
        """Channels of the latents."""
        return self.sizes.latent_size

    @property
    def gathers(self) -> tuple[int, int]:
        """Latents and the key with positions, a call each; the layer's input too if queries come from it."""
        return self.sizes.down_size + (self.model.hidden_size if self.sizes.q_lora_rank is None else 0), 3

    @property
    def modules(self) -> Mapping[str, Module]:
        """The up projections with their norms and positions."""
        into = tuple(product for product in self.products if product.split == "columns")
        return MappingProxyType({"mla_up_proj": Module(into, self.streamed, self.sizes.latent_size, kernels=4)})

    def shares_keys(self, tp: Any) -> bool:
        """Return ``False``: keys are as wide as queries, and only values differ."""
        return False

    def local_matrices(self, rank: OnRank) -> tuple[Matrix, ...]:
        """Return the matrices of all products."""
        return Branch.local_matrices(self, rank)

    def kept_inside(self, rank: OnRank) -> tuple[Kept, ...]:
        """
        Return the projected and the normalised latents.

        In fp8, every down projection keeps a copy of the layer's input.
        """
        sizes, tokens = self.sizes, rank.own_tokens
        copies = (len(sizes.down_sizes) - 1) * rank.fp8 * self.model.hidden_size
        return (
            Kept(tokens * rank.element * sizes.down_size),
            Kept(tokens * rank.stored * sizes.latent_size, freed_by=self.heads_freed_by, input_of=LATENT_TARGETS[2:]),
            Kept(tokens * copies, freed_by=("layernorm",), input_of=self.first_linears),
        )

    def kernels(self, training: "TrainingSpec") -> int:
        """
        Return the kernel launches of a pass. Counted.

        Beyond those of ordinary attention: three more products and two norms, without a latent of queries a product and
        a norm less; three copies that make queries, keys and values contiguous (``MultiLatentAttention.forward``).
        """
        return super().kernels(training) + 2 * len(self.sizes.down_sizes) + 4

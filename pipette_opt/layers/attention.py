"""Softmax attention with heads of one width, over the whole sequence, a window or a chunk of it."""

from collections.abc import Mapping
from typing import TYPE_CHECKING

from pipette_opt.layers.branch import Branch, OnRank, Product

if TYPE_CHECKING:
    from pipette_opt.specs.training import TrainingSpec


class AttentionBranch(Branch):
    """Queries, keys and values from one product, fused attention, output product; groups of queries share keys."""

    graph_module = "attn"
    core = "attention"

    @property
    def products(self) -> tuple[Product, ...]:
        """Product of queries (with the gate of the output), keys and values; output product."""
        model = self.model
        query = model.query_projection_size
        into = query * (1 + model.attention_output_gate) + 2 * model.kv_projection_size
        return Product(into, model.hidden_size, "columns"), Product(model.hidden_size, query, "rows")

    @property
    def orthogonal(self) -> tuple[Product, ...]:
        """Queries (with the gate of the output), keys, values (``muon_split_qkv`` of Megatron-Core), output product."""
        (into, hidden, _), *rest = self.products
        keys = self.model.kv_projection_size
        return *(Product(size, hidden, "columns") for size in (into - 2 * keys, keys, keys)), *rest

    @property
    def split_vectors(self) -> int:
        """Bias of the first product, and sinks of the softmax."""
        sinks = self.model.num_attention_heads if self.model.softmax_type == "learnable" else 0
        return sinks + (self.products[0].outputs if self.model.add_qkv_bias else 0)

    @property
    def whole_vectors(self) -> int:
        """Bias of the output product, and norms of queries and keys."""
        model = self.model
        heads = model.num_attention_heads + model.num_query_groups if model.qk_layernorm_across_heads else 2
        of_channel = model.norm_parameters // model.hidden_size
        return self.bias + model.qk_layernorm * heads * model.kv_channels * of_channel

    @property
    def streamed(self) -> float:
        """Rotation of queries and keys, and the gate of the output: queries read, written and read again."""
        return 3.0 * self.model.query_projection_size * (1 + self.model.attention_output_gate)

    def kernels(self, training: "TrainingSpec") -> int:
        """
        Return the kernel launches of a pass. Counted.

        Norm, product, fused attention with its reads and writes, product, and the addition: 7. Unfused scores take 4 or
        8 more, rotary positions 8.
        """
        unfused = 0 if training.attention_kernel == "flash" else 4 if training.fused_softmax else 8
        return 7 + unfused + 8 * self.kind.rotary

    @property
    def core_widths(self) -> tuple[int, int]:
        """Channels of all heads in the scores, and in their product with the values."""
        return self.model.query_projection_size, self.model.attention_output_size

    def keys_width(self, tp: int) -> float:
        """Return the channels of a token's keys and values on one tensor rank."""
        return 2.0 * max(self.model.kv_projection_size / tp, self.model.kv_head_size)

    def keys_read(self, tp: int, seq_length: int) -> float:
        """Return the channels of keys and values that a token reads on one tensor rank: its own, as kernels share."""
        return self.keys_width(tp)

    def index_flops(self, seq_length: int) -> float:
        """Return the FLOPs per token, forward, that choose which tokens it attends to; every tensor rank has all."""
        return 0.0

    def module_inputs(self, rank: OnRank) -> Mapping[str, float]:
        """Return the bytes of the inputs of both products and of the attention core; the norm is fused."""
        model = self.model
        query, keys = model.query_projection_size / rank.tp, max(model.kv_projection_size / rank.tp, model.kv_head_size)
        return {
            "qkv_linear": (rank.element + rank.stored) * rank.own_tokens * model.hidden_size,
            "core_attn": rank.element * rank.tokens * (query + 2 * keys),
            "attn_proj": max(rank.stored, rank.element) * rank.tokens * model.attention_output_size / rank.tp,
        }

    def tokens_seen(self, seq_length: int) -> float:
        """Return half of the sequence."""
        return seq_length / 2


class WindowedAttentionBranch(AttentionBranch):
    """Attention to the last tokens only, or to the earlier tokens of the same chunk of the sequence."""

    context_types = ("a2a", "all_gather")

    def tokens_seen(self, seq_length: int) -> float:
        """
        Return the mean number of tokens that a token sees.

        With a window of ``w`` tokens, the first ``w`` tokens see half of it on average, and all later ones see ``w``.
        """
        chunk = self.model.attention_chunk_size
        if chunk is not None:
            whole, rest = divmod(seq_length, chunk)
            return (whole * chunk**2 + rest**2) / (2 * seq_length)
        window = min(self.model.attention_window, seq_length)
        return window * (1 - window / (2 * seq_length))

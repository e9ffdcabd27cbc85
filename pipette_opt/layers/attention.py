"""Softmax attention with heads of one width, over the whole sequence, a window or a chunk of it."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from pipette_opt.layers.adapters import ATTENTION_TARGETS
from pipette_opt.layers.branch import Branch, Kept, Matrix, OnRank, Product, Work

if TYPE_CHECKING:
    from pipette_opt.specs.training import TrainingSpec


class AttentionBranch(Branch):
    """Queries, keys and values from one product, fused attention, output product; groups of queries share keys."""

    graph_module = "attn"
    norm_module: ClassVar[str | None] = "qkv_linear"
    core = "attention"

    norms_heads: ClassVar[bool] = True
    """``--qk-layernorm`` normalises the heads of queries and keys."""

    first_linears: ClassVar[tuple[str, ...]] = ATTENTION_TARGETS[:3]
    """Matrices of products with the layer's input, by PEFT's names."""

    heads_freed_by: ClassVar[tuple[str, ...]] = ()
    """Modules whose selective recomputation frees queries, keys and values."""

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
    def operations(self) -> tuple[Product, ...]:
        """Queries, keys, values, output product; none with a gate of the output."""
        return () if self.model.attention_output_gate else self.orthogonal

    @property
    def linears(self) -> Mapping[str, Product]:
        """Queries (with the gate of the output), keys, values, output product."""
        return dict(zip(ATTENTION_TARGETS, self.orthogonal, strict=True))

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
    def split_sizes(self) -> Mapping[str, int]:
        """Outputs of the first product, of queries, keys and values together (``SelfAttention.linear_qkv``)."""
        return {"query-key-value width": self.products[0].outputs}

    def product_widths(self, tp: int, expert_tp: int) -> Mapping[str, int]:
        """Return the widths of queries, and of queries, keys and values together."""
        query, keys = self.model.query_projection_size, self.model.kv_projection_size
        return {"query width on a rank": query // tp, "query-key-value width on a rank": (query + 2 * keys) // tp}

    @property
    def streamed(self) -> float:
        """Rotation of queries and keys, and the gate of the output: queries read, written and read again."""
        return 3.0 * self.model.query_projection_size * (1 + self.model.attention_output_gate)

    @property
    def normed_heads(self) -> int:
        """Channels of queries and keys, if each head of both is normalised (``--qk-layernorm``)."""
        model = self.model
        return self.norms_heads * model.qk_layernorm * (model.query_projection_size + model.kv_projection_size)

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
        return float(self.local_widths(tp)[1])

    def shares_keys(self, tp: Any) -> Any:
        """Return whether several query heads share a key head on one of ``tp`` ranks."""
        return self.local_widths(tp)[1] < 2 * self.local_widths(tp)[0]

    def local_widths(self, tp: Any) -> tuple[Any, Any, Any]:
        """Return the channels of queries, of keys and values together, and of the output, on one of ``tp`` ranks."""
        model = self.model
        keys = 2 * np.maximum(model.kv_projection_size / tp, model.kv_head_size)
        return model.query_projection_size / tp, keys, model.attention_output_size / tp

    def scores(self, rank: OnRank) -> Any:
        """Return the scores that the attention kernel stores of a micro-batch; 0 with a fused kernel."""
        stores = rank.training.attention_kernel != "flash"
        heads, keys = self.model.num_attention_heads / rank.tp, rank.training.seq_length // rank.cp
        return stores * rank.tokens * heads * keys

    def local_matrices(self, rank: OnRank) -> tuple[Matrix, ...]:
        """Return the matrices of both products; with more ranks than groups of queries, each has whole keys."""
        query, keys, output = self.local_widths(rank.tp)
        h, gates = self.model.hidden_size, self.model.attention_output_gate
        return Matrix(query * (1 + gates) + keys, h), Matrix(h, output)

    def kept(self, rank: OnRank) -> tuple[Kept, ...]:
        """Return the tensors of norms, the inputs of both products, and the tensors of the attention core."""
        e, tokens = rank.element, rank.tokens
        query, keys, output = self.local_widths(rank.tp)
        layer_input = rank.stored * rank.own_tokens * self.model.hidden_size
        return (
            *super().kept(rank),
            Kept(layer_input, "qkv_linear", ("layernorm",) * self.has_own_norm, input_of=self.first_linears),
            Kept(e * tokens * (query + keys), "core_attn", self.heads_freed_by),
            # The core keeps its output, too, so an fp8 copy of it is additional.
            Kept(e * tokens * output, "attn_proj", ("core_attn",) if rank.fp8 else (), in_work=True),
            Kept(rank.fp8 * tokens * output, input_of=("o_proj",)),
            Kept(self.core_bytes(rank), freed_by=("core_attn",)),
            *self.kept_inside(rank),
        )

    def kept_by_operation(self, rank: OnRank) -> Any:
        """Return the bytes that recomputation by operation keeps: also the layer's input, and attention's output."""
        layer_input = rank.element * rank.own_tokens * self.model.hidden_size
        output = rank.element * rank.tokens * self.local_widths(rank.tp)[2]
        return Branch.kept_by_operation(self, rank) + layer_input + output + self.core_bytes(rank)

    def work(self, rank: OnRank) -> Work:
        """Return the working memory of the backward pass, or of the forward pass of ring attention."""
        e, tokens, model, gathers = rank.element, rank.tokens, self.model, rank.shards > 1
        query, keys, output = (e * tokens * width for width in self.local_widths(rank.tp))
        sums = 4 * tokens * model.num_attention_heads / rank.tp
        hidden, scores = e * tokens * model.hidden_size, self.scores(rank)
        flash = query + output + keys + 4 / e * query + sums + self.shares_keys(rank.tp) * 2 * query
        stored = (2 - (model.attention_dropout > 0)) * e * scores
        back = 4 * keys + flash + query
        forth = rank.cp * (keys + query + sums) + keys - self.gradient_bytes(rank)
        moments = (
            stored if rank.training.attention_kernel != "flash" else flash,
            (rank.cp > 1) * np.maximum(back, forth),
            hidden * (1 + gathers) - query + rank.fp8 * (query + keys - gathers * hidden / 2),
        )
        return Work(np.maximum.reduce(moments))

    def kept_inside(self, rank: OnRank) -> tuple[Kept, ...]:
        """Return the gate, attention's output before it, and the tensors of norms of queries and keys."""
        model, e = self.model, rank.element
        query, keys, _ = self.local_widths(rank.tp)
        heads = model.num_attention_heads / rank.tp * (1 + keys / 2 / query)  # of queries and of keys, equally wide
        norms = model.qk_layernorm * (e * (query + keys / 2) + self.statistics * heads)
        return (Kept(rank.tokens * (2 * e * query * model.attention_output_gate + norms)),)

    def core_bytes(self, rank: OnRank) -> Any:
        """Return the bytes that the attention core keeps besides queries, keys, values and output."""
        model, e, scores = self.model, rank.element, self.scores(rank)
        if rank.training.attention_kernel == "flash":
            return 4 * rank.tokens * model.num_attention_heads / rank.tp  # fp32 sums of the softmax
        query, keys, _ = self.local_widths(rank.tp)
        repeated = 2 * e * rank.tokens * (query - keys / 2) * self.shares_keys(rank.tp)
        return scores * (e + (model.attention_dropout > 0) * (1 + e)) + repeated

    def tokens_seen(self, seq_length: float) -> float:
        """Return half of the sequence."""
        return seq_length / 2

    def core_flops(self, training: "TrainingSpec") -> tuple[float, float]:
        """
        Return the FLOPs of scores and their product with the values; the backward pass has twice as many.

        Fused kernels skip the tokens that a token does not see, others compute all scores and mask them. Windows and
        chunks apply to documents as if all had the attended length.
        """
        is_fused = training.attention_kernel == "flash"
        seen = self.tokens_seen(training.attended_length) if is_fused else training.seq_length
        forward = 2.0 * sum(self.core_widths) * seen
        return forward, 2 * forward


class WindowedAttentionBranch(AttentionBranch):
    """Attention to the last tokens only, or to the earlier tokens of the same chunk of the sequence."""

    context_types = ("a2a", "all_gather")

    def tokens_seen(self, seq_length: float) -> float:
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

"""The transformer that is trained."""

from dataclasses import dataclass
from typing import Literal

from pipette_opt.types import RecomputeGranularity
from pipette_opt.units import ceil_div

LARGEST, MOST_LAYERS = 2**31 - 1, 100_000
"""Sizes beyond them are no model's; what counts layers or bytes need not expect them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSpec:
    """
    A decoder-only transformer, in Megatron-Core's words.

    Parameters
    ----------
    name
        Preset or file name; for people.
    kv_channels
        Size of one attention head. Defaults in readers to ``hidden_size / num_attention_heads``.
    num_query_groups
        Key-value heads; equal to ``num_attention_heads`` without grouped-query attention.
    gated_linear_unit
        SwiGLU-like MLP (three matrices) instead of two.
    untie_embeddings_and_output_weights
        Whether the output head has weights of its own.
    position_embedding_type
        ``learned_absolute`` adds ``max_position_embeddings * hidden_size`` parameters.
    num_experts
        Experts of one mixture-of-experts layer; ``None`` for a dense model.
    moe_router_topk
        Experts that each token goes to.
    moe_ffn_hidden_size
        Width of one expert; ``None`` for ``ffn_hidden_size``.
    moe_shared_expert_intermediate_size
        Width of the shared experts together, which every token passes; 0 without.
    num_dense_layers
        Layers without experts, before all the others.
    """

    name: str
    num_layers: int
    hidden_size: int
    ffn_hidden_size: int
    num_attention_heads: int
    num_query_groups: int
    kv_channels: int
    vocab_size: int
    max_position_embeddings: int
    gated_linear_unit: bool = False
    untie_embeddings_and_output_weights: bool = False
    add_bias_linear: bool = True
    add_qkv_bias: bool = True
    qk_layernorm: bool = False
    normalization: Literal["LayerNorm", "RMSNorm"] = "LayerNorm"
    position_embedding_type: Literal["learned_absolute", "rope"] = "learned_absolute"
    hidden_dropout: float = 0.0
    attention_dropout: float = 0.0
    make_vocab_size_divisible_by: int = 128
    num_experts: int | None = None
    moe_router_topk: int = 2
    moe_ffn_hidden_size: int | None = None
    moe_shared_expert_intermediate_size: int = 0
    num_dense_layers: int = 0

    def __post_init__(self) -> None:
        for field in (
            "num_layers",
            "hidden_size",
            "ffn_hidden_size",
            "num_attention_heads",
            "num_query_groups",
            "kv_channels",
            "vocab_size",
            "max_position_embeddings",
            "make_vocab_size_divisible_by",
        ):
            value = getattr(self, field)
            if not isinstance(value, int) or isinstance(value, bool) or value < 1:
                raise ValueError(f"{field} must be a whole number >= 1, got {value!r}.")
            most = MOST_LAYERS if field == "num_layers" else LARGEST
            if value > most:
                raise ValueError(f"{field} must be at most {most:,}, got {value:,}.")
        if self.num_attention_heads % self.num_query_groups:
            raise ValueError(
                f"num_query_groups must divide num_attention_heads={self.num_attention_heads}, "
                f"got {self.num_query_groups}."
            )
        self._check_experts()
        for field in ("hidden_dropout", "attention_dropout"):
            if not 0.0 <= getattr(self, field) < 1.0:
                raise ValueError(f"{field} must be in [0, 1), got {getattr(self, field)}.")

    def _check_experts(self) -> None:
        """Without experts nothing else may speak of them."""
        for field in ("moe_shared_expert_intermediate_size", "num_dense_layers"):
            value = getattr(self, field)
            if not isinstance(value, int) or isinstance(value, bool) or value < 0:
                raise ValueError(f"{field} must be a whole number >= 0, got {value!r}.")
            if value and self.num_experts is None:
                raise ValueError(f"{field}={value} needs num_experts.")
        if self.num_experts is None:
            if self.moe_ffn_hidden_size is not None:
                raise ValueError(f"moe_ffn_hidden_size={self.moe_ffn_hidden_size} needs num_experts.")
            return
        for field in ("num_experts", "moe_router_topk", "moe_ffn_hidden_size"):
            value = getattr(self, field)
            if value is None:
                continue
            if not isinstance(value, int) or isinstance(value, bool) or value < 1:
                raise ValueError(f"{field} must be a whole number >= 1, got {value!r}.")
            if value > LARGEST:
                raise ValueError(f"{field} must be at most {LARGEST:,}, got {value:,}.")
        if self.moe_router_topk > self.num_experts:
            raise ValueError(f"moe_router_topk must be <= num_experts={self.num_experts}, got {self.moe_router_topk}.")
        if self.num_dense_layers >= self.num_layers:
            raise ValueError(f"num_dense_layers must be < num_layers={self.num_layers}, got {self.num_dense_layers}.")

    @property
    def expert_ffn_size(self) -> int:
        """Width of one expert."""
        return self.ffn_hidden_size if self.moe_ffn_hidden_size is None else self.moe_ffn_hidden_size

    @property
    def num_moe_layers(self) -> int:
        """Layers with experts."""
        return 0 if self.num_experts is None else self.num_layers - self.num_dense_layers

    @property
    def query_projection_size(self) -> int:
        """Width of all query heads together."""
        return self.kv_channels * self.num_attention_heads

    @property
    def kv_projection_size(self) -> int:
        """Width of all key (or value) heads together."""
        return self.kv_channels * self.num_query_groups

    @property
    def norm_parameters(self) -> int:
        """Parameters of one normalisation layer."""
        return self.hidden_size * (2 if self.normalization == "LayerNorm" else 1)

    @property
    def attention_parameters(self) -> int:
        """Parameters of one layer's attention that tensor parallelism splits."""
        h, q, kv = self.hidden_size, self.query_projection_size, self.kv_projection_size
        return h * (q + 2 * kv) + q * h + ((q + 2 * kv) if self.add_qkv_bias else 0)

    def mlp_parameters(self, width: int) -> int:
        """Parameters of a gated or plain MLP of that width, its row-parallel bias apart."""
        up = 2 * width if self.gated_linear_unit else width
        return self.hidden_size * (up + width) + (up if self.add_bias_linear else 0)

    @property
    def sharded_layer_parameters(self) -> int:
        """Parameters of one dense transformer layer that tensor parallelism splits."""
        return self.attention_parameters + self.mlp_parameters(self.ffn_hidden_size)

    @property
    def sharded_moe_layer_parameters(self) -> int:
        """The same of a layer with experts: attention and shared experts."""
        shared = self.moe_shared_expert_intermediate_size
        return self.attention_parameters + (self.mlp_parameters(shared) if shared else 0)

    @property
    def expert_layer_parameters(self) -> int:
        """Parameters of all routed experts of one layer; they have no biases."""
        matrices = 3 if self.gated_linear_unit else 2
        return (self.num_experts or 0) * matrices * self.hidden_size * self.expert_ffn_size

    @property
    def replicated_moe_layer_parameters(self) -> int:
        """Parameters of a layer with experts that every tensor rank holds whole: its router too."""
        mlp_bias = self.hidden_size if self.add_bias_linear and not self.moe_shared_expert_intermediate_size else 0
        return self.replicated_layer_parameters - mlp_bias + self.hidden_size * (self.num_experts or 0)

    @property
    def replicated_layer_parameters(self) -> int:
        """Parameters of one dense layer that every tensor rank holds whole: norms and row-parallel biases."""
        biases = 2 * self.hidden_size if self.add_bias_linear else 0
        qk_norms = 2 * self.kv_channels if self.qk_layernorm else 0
        return 2 * self.norm_parameters + biases + qk_norms

    @property
    def layer_parameters(self) -> int:
        """Parameters of one dense transformer layer."""
        return self.sharded_layer_parameters + self.replicated_layer_parameters

    @property
    def moe_layer_parameters(self) -> int:
        """Parameters of one layer with experts."""
        return self.sharded_moe_layer_parameters + self.replicated_moe_layer_parameters + self.expert_layer_parameters

    def padded_vocab_size(self, tensor_model_parallel_size: int) -> int:
        """Vocabulary padded as Megatron pads it: to a multiple of ``make_vocab_size_divisible_by * tp``."""
        multiple = self.make_vocab_size_divisible_by * tensor_model_parallel_size
        return ceil_div(self.vocab_size, multiple) * multiple

    @property
    def num_parameters(self) -> int:
        """All parameters, vocabulary unpadded."""
        embedding = self.vocab_size * self.hidden_size
        position = (
            self.max_position_embeddings * self.hidden_size if self.position_embedding_type == "learned_absolute" else 0
        )
        head = embedding if self.untie_embeddings_and_output_weights else 0
        dense_layers = self.num_layers - self.num_moe_layers
        layers = dense_layers * self.layer_parameters + self.num_moe_layers * self.moe_layer_parameters
        return layers + embedding + position + head + self.norm_parameters

    def flops_per_token(
        self, seq_length: int, *, causal: bool = True, recompute: RecomputeGranularity | None = None
    ) -> float:
        """
        FLOPs of one token, forward and backward.

        Six per matrix parameter that multiplies it (the output head counts, the embedding look-up does not), plus
        ``12 * num_layers * query_width * seq_length`` for attention scores and their product with the values
        (Narayanan et al., arXiv 2104.04473, equation 3), half of that if ``causal``: a token sees those before it,
        half of the sequence on average. Of the experts those count that the token goes to.

        Parameters
        ----------
        recompute
            Count the second forward, too: of the attention scores (``selective``), or of whole layers (``full``).
        """
        h, q, kv = self.hidden_size, self.query_projection_size, self.kv_projection_size
        width = (self.num_layers - self.num_moe_layers) * self.ffn_hidden_size
        if self.num_experts is not None:
            active = self.moe_router_topk * self.expert_ffn_size + self.moe_shared_expert_intermediate_size
            width += self.num_moe_layers * active
        attention = self.num_layers * (h * (q + 2 * kv) + q * h)
        matrices = attention + h * width * (3 if self.gated_linear_unit else 2)
        router = self.num_moe_layers * h * (self.num_experts or 0)
        head = h * self.vocab_size
        seen = seq_length / 2 if causal else seq_length
        of_layers, of_scores = 8.0 if recompute == "full" else 6.0, 16.0 if recompute else 12.0
        return of_layers * (matrices + router) + 6.0 * head + of_scores * self.num_layers * q * seen

"""The transformer that is trained."""

from dataclasses import dataclass
from typing import Literal

from pipette_opt.units import ceil_div


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
        if self.num_attention_heads % self.num_query_groups:
            raise ValueError(
                f"num_query_groups must divide num_attention_heads={self.num_attention_heads}, "
                f"got {self.num_query_groups}."
            )
        for field in ("hidden_dropout", "attention_dropout"):
            if not 0.0 <= getattr(self, field) < 1.0:
                raise ValueError(f"{field} must be in [0, 1), got {getattr(self, field)}.")

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
    def sharded_layer_parameters(self) -> int:
        """Parameters of one transformer layer that tensor parallelism splits."""
        h, q, kv, ffn = self.hidden_size, self.query_projection_size, self.kv_projection_size, self.ffn_hidden_size
        up = 2 * ffn if self.gated_linear_unit else ffn
        weights = h * (q + 2 * kv) + q * h + h * up + ffn * h
        qkv_bias = (q + 2 * kv) if self.add_qkv_bias else 0
        up_bias = up if self.add_bias_linear else 0
        return weights + qkv_bias + up_bias

    @property
    def replicated_layer_parameters(self) -> int:
        """Parameters of one transformer layer that every tensor rank holds whole: norms and row-parallel biases."""
        biases = 2 * self.hidden_size if self.add_bias_linear else 0
        qk_norms = 2 * self.kv_channels if self.qk_layernorm else 0
        return 2 * self.norm_parameters + biases + qk_norms

    @property
    def layer_parameters(self) -> int:
        """Parameters of one transformer layer."""
        return self.sharded_layer_parameters + self.replicated_layer_parameters

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
        return self.num_layers * self.layer_parameters + embedding + position + head + self.norm_parameters

    def flops_per_token(self, seq_length: int) -> float:
        """
        Model FLOPs of one token, forward and backward, without recomputation.

        Six per matrix parameter that multiplies it (the output head counts, the embedding look-up does not), plus
        ``12 * num_layers * query_width * seq_length`` for attention scores and their product with the values
        (Narayanan et al., arXiv 2104.04473, equation 3; full attention, no causal halving).
        """
        h, q, kv, ffn = self.hidden_size, self.query_projection_size, self.kv_projection_size, self.ffn_hidden_size
        matrices = h * (q + 2 * kv) + q * h + h * ffn * (3 if self.gated_linear_unit else 2)
        head = h * self.vocab_size
        return 6.0 * (self.num_layers * matrices + head) + 12.0 * self.num_layers * q * seq_length

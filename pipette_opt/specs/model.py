"""The model that is trained."""

from collections import Counter
from dataclasses import dataclass
from typing import Literal

from pipette_opt.base.types import RecomputeGranularity
from pipette_opt.base.units import ceil_div
from pipette_opt.specs.latent import LatentAttention
from pipette_opt.specs.layer_kinds import (
    LayerFrequency,
    LayerKind,
    Layers,
    layers_of,
    layers_of_pattern,
)
from pipette_opt.specs.layer_parameters import (
    depth_parameters,
    layer_parameters,
    matrix_flops,
    norm_parameters,
    tokens_seen,
)
from pipette_opt.specs.model_checks import check_model
from pipette_opt.specs.recurrent import GatedDeltaNet, Mamba
from pipette_opt.specs.yarn import YarnScaling


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSpec:
    """
    A decoder-only transformer, in Megatron-Core's words, with the defaults of Megatron-LM's arguments.

    The first fields shape time and memory. Those from ``activation_func`` on make it the same model where it is
    trained; the estimates do not know them (:mod:`pipette_opt.specs.model_gaps` lists what that leaves out).

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
    num_layers_at_start_in_bf16, num_layers_at_end_in_bf16
        Layers at both ends whose products stay in 16 bits where the training has them in fewer.
    qk_layernorm
        Queries and keys are normalised, each head by itself, with weights; of latent attention the latents.
    qk_layernorm_across_heads
        That norm goes over all heads of a token together, with a weight for each channel of each head (OLMo,
        MiniMax-M2). Megatron-LM has no argument for it.
    multi_latent_attention
        Sizes of latent attention, which then say all of queries, keys and values; ``kv_channels`` means nothing there.
    attention_output_gate
        What attention gives is multiplied by a gate, which the queries' product gives, too (Qwen3-Next).
    mamba
        Sizes of Mamba-2 layers, the ``M`` of the pattern.
    hybrid_layer_pattern
        A letter for each layer, which has one branch only: ``M`` Mamba-2, ``G`` gated delta net, ``*`` attention, ``-``
        a dense MLP, ``E`` experts; ``None`` where all layers have both branches.
    gated_delta_net
        Sizes of gated delta nets, of ``linear_attention_freq`` or the ``G`` of the pattern.
    linear_attention_freq
        Layers with a gated delta net in place of attention: all but the last of every N, or those with a 1.
    position_embedding_type
        ``learned_absolute`` adds ``max_position_embeddings * hidden_size`` parameters. ``yarn`` is rotary, too.
    num_experts
        Experts of one mixture-of-experts layer; ``None`` for a dense model.
    moe_router_topk
        Experts that each token goes to.
    moe_ffn_hidden_size
        Width of one expert; ``None`` for ``ffn_hidden_size``.
    moe_shared_expert_intermediate_size
        Width of the shared experts together, which every token passes; 0 without.
    num_dense_layers
        First layers, which have no experts.
    moe_layer_freq
        Layers with experts: the first of every N, or those with a 1, but none of the first ``num_dense_layers``;
        ``None`` for all others. Both are written as briefly as they can be.
    moe_router_pre_softmax
        The router's softmax goes over all experts before the best are taken, not over those afterwards.
    moe_latent_size
        Width of tokens on their way to routed experts and back, with a projection before and after; ``None`` for
        ``hidden_size``. Shared experts and the router work at the model's width.
    moe_router_num_groups, moe_router_group_topk
        Each token goes to experts of so many groups (the latter) of all (the former); ``None`` for no such limit.
    mtp_num_layers
        Depths of multi-token prediction: each has a layer like the model's last, a projection of twice the width, three
        norms, and a loss of its own with the model's head; 0 for none.
    mtp_layer_pattern
        Letters of the layers of each depth in place of that layer, as of ``hybrid_layer_pattern``.
    mtp_use_repeated_layer
        All depths share one layer and one projection.
    mtp_loss_scaling_factor
        Weight of these losses.
    activation_func
        ``squared_relu`` without a gate, ``quick_gelu`` or ``gelu`` with one; ``None`` is GELU without a gate and SiLU
        with one.
    glu_linear_offset
        Added to the half of a gated MLP that is not activated.
    activation_func_clamp_value
        Bound of what enters the activation; ``None`` for none.
    norm_epsilon
        Of every normalisation layer.
    layernorm_zero_centered_gamma
        Weights of normalisation layers are stored less one.
    rotary_base
        Megatron's argument takes whole numbers only.
    rotary_percent
        Share of a head's channels that are rotated.
    rotary_interleaved
        Neighbouring channels are a pair, instead of channels of the first and of the second half.
    rotary_seq_len_interpolation_factor
        Positions are divided by it (linear scaling); a whole number, as Megatron's argument.
    rope_scaling_factor
        Factor of Llama 3.1's scaling of frequencies (its other three numbers are Megatron's constants: 1, 4 and 8,192
        tokens); ``None`` without it.
    yarn
        Parameters of ``yarn`` positions.
    no_rope_freq
        Layers without rotary positions: the last of every N, or those with a 1.
    window_size
        Tokens before and after its own that a token attends to, -1 for all; ``None`` for no window.
    window_attn_skip_freq
        Layers without a window: the last of every N, or those with a 0; ``None`` for no such layer.
    attention_chunk_size
        Tokens of the chunks of which attention with rotary positions sees its own only (Llama 4); ``None`` for none.
        Megatron-LM has no argument for it.
    softmax_type
        Of attention: ``off-by-one`` adds 1 to the denominator, ``learnable`` a parameter of each head.
    pre_norms
        The input of each branch is normalised. Without it only the output is (OLMo 2 and 3), which needs
        ``post_norms``.
    post_norms
        The output of each branch is normalised (Gemma). Megatron-LM has no argument for it.
    local_rotary_base
        Rotary base of layers with a window, where it is another (Gemma 3); Megatron-LM has no argument for it.
    parallel_residual
        Attention and MLP of a layer read the same input, as in GPT-NeoX. Megatron-Core has no such layer.
    multipliers
        Constant factors of embeddings, residuals, attention scores and logits, each with its name in Hugging Face's
        config (Granite). No estimate depends on them, and Megatron-LM has no argument for them. ``None`` for none.
    init_method_std
        Standard deviation of a new model's weights.
    other_arguments
        Megatron-LM's further arguments of the model, each with its values, as they were given: the router's formula and
        the like, which no estimate depends on. ``None`` for none.
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
    qk_layernorm_across_heads: bool = False
    multi_latent_attention: LatentAttention | None = None
    attention_output_gate: bool = False
    mamba: Mamba | None = None
    hybrid_layer_pattern: str | None = None
    gated_delta_net: GatedDeltaNet | None = None
    linear_attention_freq: LayerFrequency = None
    num_layers_at_start_in_bf16: int = 0
    num_layers_at_end_in_bf16: int = 0
    normalization: Literal["LayerNorm", "RMSNorm"] = "LayerNorm"
    position_embedding_type: Literal["learned_absolute", "rope", "yarn", "none"] = "learned_absolute"
    hidden_dropout: float = 0.0
    attention_dropout: float = 0.0
    make_vocab_size_divisible_by: int = 128
    num_experts: int | None = None
    moe_router_topk: int = 2
    moe_ffn_hidden_size: int | None = None
    moe_shared_expert_intermediate_size: int = 0
    num_dense_layers: int = 0
    moe_layer_freq: LayerFrequency = None
    moe_router_pre_softmax: bool = False
    moe_latent_size: int | None = None
    moe_router_num_groups: int | None = None
    moe_router_group_topk: int | None = None
    mtp_num_layers: int = 0
    mtp_layer_pattern: str | None = None
    mtp_use_repeated_layer: bool = False
    mtp_loss_scaling_factor: float = 0.1
    activation_func: Literal["squared_relu", "quick_gelu", "gelu"] | None = None
    glu_linear_offset: float = 0.0
    activation_func_clamp_value: float | None = None
    norm_epsilon: float = 1e-5
    layernorm_zero_centered_gamma: bool = False
    rotary_base: int = 10000
    rotary_percent: float = 1.0
    rotary_interleaved: bool = False
    rotary_seq_len_interpolation_factor: int | None = None
    rope_scaling_factor: float | None = None
    yarn: YarnScaling | None = None
    no_rope_freq: LayerFrequency = None
    window_size: tuple[int, ...] | None = None
    window_attn_skip_freq: LayerFrequency = None
    attention_chunk_size: int | None = None
    softmax_type: Literal["vanilla", "off-by-one", "learnable"] = "vanilla"
    pre_norms: bool = True
    post_norms: bool = False
    local_rotary_base: int | None = None
    parallel_residual: bool = False
    multipliers: tuple[tuple[str, ...], ...] | None = None
    init_method_std: float = 0.02
    other_arguments: tuple[tuple[str, ...], ...] | None = None

    def __post_init__(self) -> None:
        check_model(self)

    @property
    def expert_hidden_size(self) -> int:
        """Width of what routed experts get and give."""
        return self.hidden_size if self.moe_latent_size is None else self.moe_latent_size

    @property
    def expert_ffn_size(self) -> int:
        """Width of one expert."""
        return self.ffn_hidden_size if self.moe_ffn_hidden_size is None else self.moe_ffn_hidden_size

    @property
    def layers(self) -> Layers:
        """The kind of each layer, first to last."""
        if self.hybrid_layer_pattern is not None:
            return layers_of_pattern(self.hybrid_layer_pattern, self.has_rotary_positions)
        return layers_of(
            self.num_layers,
            self.has_rotary_positions,
            self.no_rope_freq,
            None if self.window_size is None or self.window_size[0] < 0 else self.window_attn_skip_freq or 0,
            None if self.num_experts is None else self.moe_layer_freq or 1,
            self.num_dense_layers,
            "attention" if self.multi_latent_attention is None else "latent_attention",
            self.attention_chunk_size is not None,
            self.linear_attention_freq,
        )

    @property
    def wide_share(self) -> float:
        """Share of the layers whose products stay in 16 bits whatever the training says."""
        return (self.num_layers_at_start_in_bf16 + self.num_layers_at_end_in_bf16) / self.num_layers

    @property
    def depth_layers(self) -> Layers:
        """The layers of one depth of multi-token prediction."""
        if self.mtp_layer_pattern is not None:
            return layers_of_pattern(self.mtp_layer_pattern, self.has_rotary_positions)
        return self.layers[-1:]

    @property
    def held_depths(self) -> int:
        """Depths of multi-token prediction with weights of their own."""
        return min(self.mtp_num_layers, 1) if self.mtp_use_repeated_layer else self.mtp_num_layers

    @property
    def num_moe_layers(self) -> int:
        """Layers with experts."""
        return sum(kind.has_experts for kind in self.layers)

    @property
    def has_rotary_positions(self) -> bool:
        """Whether queries and keys are rotated by their position."""
        return self.position_embedding_type in ("rope", "yarn")

    @property
    def num_windowed_layers(self) -> int:
        """Layers whose attention has a window, or a chunk."""
        if self.window_size is None and self.attention_chunk_size is None:
            return 0
        return sum(kind.mixer == "windowed_attention" for kind in self.layers)

    @property
    def attention_window(self) -> int:
        """Tokens that a token of such a layer attends to, its own among them."""
        assert self.window_size is not None
        return self.window_size[0] + 1

    @property
    def key_head_size(self) -> int:
        """Channels of a query's or key's head."""
        latent = self.multi_latent_attention
        return self.kv_channels if latent is None else latent.key_head_size

    @property
    def value_head_size(self) -> int:
        """Channels of a value's head, and of the attention's output."""
        latent = self.multi_latent_attention
        return self.kv_channels if latent is None else latent.v_head_dim

    @property
    def kv_head_size(self) -> int:
        """Mean channels of a key's and a value's head, which differ in latent attention only."""
        return (self.key_head_size + self.value_head_size) // 2

    @property
    def query_projection_size(self) -> int:
        """Width of all query heads together."""
        return self.key_head_size * self.num_attention_heads

    @property
    def attention_output_size(self) -> int:
        """Width of what attention gives to its output projection."""
        return self.value_head_size * self.num_attention_heads

    @property
    def kv_projection_size(self) -> int:
        """Width of all key (or value) heads together, the mean of both where they differ."""
        return self.kv_head_size * self.num_query_groups

    @property
    def more_norms(self) -> int:
        """Norms of a branch beside the first: 1 where both its input and its output are normalised, else 0."""
        return self.pre_norms + self.post_norms - 1

    @property
    def norm_parameters(self) -> int:
        """Parameters of one normalisation layer."""
        return norm_parameters(self)

    @property
    def attention_shapes(self) -> tuple[tuple[int, int], ...]:
        """Outputs and inputs of the products of one layer's attention that tensor parallelism splits."""
        h, heads = self.hidden_size, self.num_attention_heads
        if self.multi_latent_attention is not None:
            return self.multi_latent_attention.up_shapes(h, heads)
        query = self.query_projection_size
        return (query * (1 + self.attention_output_gate) + 2 * self.kv_projection_size, h), (h, query)

    def recurrent_mixer(self, kind: LayerKind) -> Mamba | GatedDeltaNet | None:
        """Sizes of what mixes tokens by a state in layers of a kind; ``None`` for others."""
        return {"mamba": self.mamba, "gated_delta_net": self.gated_delta_net}.get(kind.mixer)

    @property
    def recurrent_mixers(self) -> tuple[Mamba | GatedDeltaNet, ...]:
        """All of them that the model has."""
        return tuple(one for one in (self.mamba, self.gated_delta_net) if one is not None)

    @property
    def replicated_attention_shapes(self) -> tuple[tuple[int, int], ...]:
        """The same of the products that every tensor rank holds whole: down projections of latent attention."""
        latent = self.multi_latent_attention
        return () if latent is None else latent.down_shapes(self.hidden_size)

    @property
    def replicated_attention_matrices(self) -> int:
        """Parameters of these."""
        return sum(n * k for n, k in self.replicated_attention_shapes)

    def padded_vocab_size(self, tensor_model_parallel_size: int) -> int:
        """Vocabulary padded as Megatron pads it: to a multiple of ``make_vocab_size_divisible_by * tp``."""
        multiple = self.make_vocab_size_divisible_by * tensor_model_parallel_size
        return ceil_div(self.vocab_size, multiple) * multiple

    @property
    def num_parameters(self) -> int:
        """All parameters, those of multi-token prediction among them, vocabulary unpadded."""
        embedding = self.vocab_size * self.hidden_size
        position = (
            self.max_position_embeddings * self.hidden_size if self.position_embedding_type == "learned_absolute" else 0
        )
        head = embedding if self.untie_embeddings_and_output_weights else 0
        layers = sum(count * layer_parameters(self, kind) for kind, count in Counter(self.layers).items())
        return layers + embedding + position + head + self.norm_parameters + self.num_mtp_parameters

    @property
    def num_mtp_parameters(self) -> int:
        """Parameters of multi-token prediction, which published counts often leave out."""
        of_depth = sum(layer_parameters(self, kind) for kind in self.depth_layers)
        return self.held_depths * (of_depth + sum(depth_parameters(self)))

    def flops_per_token(
        self, seq_length: int, *, causal: bool = True, recompute: RecomputeGranularity | None = None
    ) -> float:
        """
        FLOPs of one token, forward and backward.

        Six per matrix parameter that multiplies it (the output head counts, the embedding look-up does not), plus
        ``12 * num_layers * query_width * seq_length`` for attention scores and their product with the values
        (Narayanan et al., arXiv 2104.04473, equation 3; where keys and values differ, the mean of both widths), half of
        that if ``causal``: a token sees those before it, half of the sequence on average, or what its window leaves of
        them. Of the experts those count that the token goes to. Each depth of multi-token prediction has a layer, a
        projection and the head.

        Parameters
        ----------
        recompute
            Count the second forward, too: of the attention scores (``selective``), or of whole layers (``full``).
        """
        of_layers, of_scores = 8.0 if recompute == "full" else 6.0, 16.0 if recompute else 12.0
        of_heads = (self.query_projection_size + self.attention_output_size) / 2
        depths = self.mtp_num_layers
        total = 6.0 * self.hidden_size * (self.vocab_size * (1 + depths) + 2 * self.hidden_size * depths)
        for kind, count in Counter((*self.layers, *self.depth_layers * depths)).items():
            seen = tokens_seen(self, kind, seq_length) if causal else seq_length * kind.has_attention
            total += count * of_layers * matrix_flops(self, kind)
            total += count * of_scores * of_heads * seen
        return total

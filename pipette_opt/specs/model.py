"""Model that is trained."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal

from pipette_opt.base.units import ceil_div
from pipette_opt.layers.adapters import Adapters, check_targets
from pipette_opt.layers.branch import Branch
from pipette_opt.layers.branches import branches_of
from pipette_opt.layers.kinds import (
    LayerFrequency,
    LayerKind,
    Layers,
    layers_of,
    layers_of_pattern,
)
from pipette_opt.layers.latent import LatentAttention
from pipette_opt.layers.parameters import embedding_parameters, head_parameters, layer_parameters
from pipette_opt.layers.recurrent import RECURRENT_MIXERS, GatedDeltaNet, Mamba
from pipette_opt.layers.sparse import SparseAttention
from pipette_opt.layers.yarn import YarnScaling
from pipette_opt.specs.model_checks import check_model


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSpec:
    """
    Decoder-only transformer or hybrid, with Megatron-Core's names and the defaults of Megatron-LM's arguments.

    The first fields shape time and memory. Fields from ``activation_func`` on are passed to the launch, but the
    estimates do not depend on them (:mod:`pipette_opt.specs.model_gaps` lists the consequences).

    Parameters
    ----------
    name
        Preset or file name; for people.
    kv_channels
        Channels of one attention head. Readers default to ``hidden_size / num_attention_heads``.
    num_query_groups
        Key-value heads; equal to ``num_attention_heads`` without grouped-query attention.
    gated_linear_unit
        SwiGLU-like MLP (three matrices) instead of two matrices.
    untie_embeddings_and_output_weights
        Whether the output head has its own weights.
    num_layers_at_start_in_bf16, num_layers_at_end_in_bf16
        First and last layers whose products stay in 16 bits when the training uses fp8 or fp4.
    qk_layernorm
        Queries and keys are normalised per head, with weights; in latent attention the latents are.
    qk_layernorm_across_heads
        The query and key norms span all heads of a token, with a weight for each channel of each head (OLMo,
        MiniMax-M2). Megatron-LM has no argument for this.
    multi_latent_attention
        Sizes of latent attention; they replace ``kv_channels``, which is then unused.
    sparse_attention
        Sizes of the indexer that chooses the tokens of latent attention (DeepSeek-V3.2); ``None`` for all tokens.
    attention_output_gate
        The output of attention is multiplied by a gate, which the query projection also computes (Qwen3-Next).
    mamba
        Sizes of Mamba-2 layers, ``M`` in the pattern.
    hybrid_layer_pattern
        One letter per layer, for layers with a single branch: ``M`` Mamba-2, ``G`` gated delta net, ``*`` attention,
        ``-`` dense MLP, ``E`` experts. ``None`` if all layers have both a mixer and an MLP.
    gated_delta_net
        Sizes of gated delta nets, from ``linear_attention_freq`` or ``G`` in the pattern.
    linear_attention_freq
        Layers with a gated delta net in place of attention: all but the last of every N, or layers marked 1.
    position_embedding_type
        ``learned_absolute`` adds ``max_position_embeddings * hidden_size`` parameters. ``rope`` and ``yarn`` are
        rotary.
    num_experts
        Experts of one mixture-of-experts layer; ``None`` for a dense model.
    moe_router_topk
        Experts to which each token is sent.
    moe_ffn_hidden_size
        Width of one expert; ``None`` for ``ffn_hidden_size``.
    moe_shared_expert_intermediate_size
        Width of all shared experts together, which every token passes; 0 without shared experts.
    num_dense_layers
        Number of first layers that have no experts.
    moe_layer_freq
        Layers with experts: the first of every N, or layers marked 1, except the first ``num_dense_layers``; ``None``
        for all other layers. Both fields are stored in their shortest form.
    moe_router_pre_softmax
        The router's softmax runs over all experts before the top-k choice, not over the chosen experts afterwards.
    moe_latent_size
        Width of tokens while they are sent to routed experts and back, with a projection before and after; ``None`` for
        ``hidden_size``. Shared experts and the router use the model's width.
    moe_router_num_groups, moe_router_group_topk
        Number of expert groups, and how many of them a token may use; ``None`` for no such limit.
    mtp_num_layers
        Depths of multi-token prediction; 0 for none. Each has a layer like the model's last, a projection of twice the
        width, three norms, and its own loss with the model's head.
    mtp_layer_pattern
        Letters of the layers of each depth, as in ``hybrid_layer_pattern``, in place of a layer like the model's last.
    mtp_use_repeated_layer
        All depths share one layer and one projection.
    mtp_loss_scaling_factor
        Weight of the losses of multi-token prediction.
    activation_func
        ``squared_relu`` without a gate, ``quick_gelu`` or ``gelu`` with a gate; ``None`` is GELU without a gate and
        SiLU with a gate.
    glu_linear_offset
        Offset added to the half of a gated MLP that is not activated.
    activation_func_clamp_value
        Bound on the input of the activation; ``None`` for no bound.
    norm_epsilon
        Epsilon of every normalisation layer.
    layernorm_zero_centered_gamma
        Weights of normalisation layers are stored minus 1.
    rotary_base
        Base of rotary frequencies; Megatron's argument takes whole numbers only.
    rotary_percent
        Share of a head's channels that are rotated.
    rotary_interleaved
        Neighbouring channels form a pair, instead of a channel of the first half and its counterpart in the second.
    rotary_seq_len_interpolation_factor
        Divisor of positions (linear scaling); a whole number, as in Megatron's argument.
    rope_scaling_factor
        Factor of Llama 3.1's scaling of frequencies; ``None`` without scaling. The other three numbers are Megatron's
        constants: 1, 4 and 8,192 tokens.
    yarn
        Parameters of ``yarn`` positions.
    no_rope_freq
        Layers without rotary positions: the last of every N, or layers marked 1.
    window_size
        Tokens before and after a token to which it attends, -1 for all; ``None`` for no window.
    window_attn_skip_freq
        Layers without a window: the last of every N, or layers marked 0; ``None`` if every layer has a window.
    attention_chunk_size
        Tokens of a chunk; attention with rotary positions sees its own chunk only (Llama 4). ``None`` for no chunks.
        Megatron-LM has no argument for this.
    softmax_type
        Softmax of attention: ``off-by-one`` adds 1 to the denominator, ``learnable`` adds a parameter per head.
    pre_norms
        The input of each branch is normalised. Otherwise only the output is (OLMo 2 and 3), which needs ``post_norms``.
    post_norms
        The output of each branch is normalised (Gemma). Megatron-LM has no argument for this.
    local_rotary_base
        Rotary base of windowed layers, if different (Gemma 3); Megatron-LM has no argument for this.
    parallel_residual
        Attention and MLP of a layer read the same input, as in GPT-NeoX. Megatron-Core has no such layer.
    multipliers
        Constant factors of embeddings, residuals, attention scores and logits, each with its name in Hugging Face's
        config (Granite); ``None`` without factors. No estimate depends on them, and Megatron-LM has no arguments for
        them.
    init_method_std
        Standard deviation of a new model's weights.
    other_arguments
        Further model arguments of Megatron-LM with their values, as the user gave them, such as the router's formula;
        no estimate depends on them. ``None`` if there are none.
    adapters
        Low-rank adapters that are trained while all other parameters are frozen; ``None``: everything is trained.
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
    sparse_attention: SparseAttention | None = None
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
    adapters: Adapters | None = None

    def __post_init__(self) -> None:
        check_model(self)
        check_targets(self)

    @property
    def expert_hidden_size(self) -> int:
        """Width of the tokens that routed experts read and write."""
        return self.hidden_size if self.moe_latent_size is None else self.moe_latent_size

    @property
    def expert_ffn_size(self) -> int:
        """Width of one expert."""
        return self.ffn_hidden_size if self.moe_ffn_hidden_size is None else self.moe_ffn_hidden_size

    @property
    def layers(self) -> Layers:
        """Kind of each layer, first to last."""
        if self.hybrid_layer_pattern is not None:
            return layers_of_pattern(self.hybrid_layer_pattern, self.has_rotary_positions)
        return layers_of(
            self.num_layers,
            self.has_rotary_positions,
            self.no_rope_freq,
            None if self.window_size is None or self.window_size[0] < 0 else self.window_attn_skip_freq or 0,
            None if self.num_experts is None else self.moe_layer_freq or 1,
            self.num_dense_layers,
            self._attention,
            self.attention_chunk_size is not None,
            self.linear_attention_freq,
        )

    @property
    def _attention(self) -> str:
        """Name of the attention of layers without a window."""
        if self.sparse_attention is not None:
            return "sparse_attention"
        return "attention" if self.multi_latent_attention is None else "latent_attention"

    @property
    def wide_share(self) -> float:
        """Share of the layers whose products stay in 16 bits even if the training uses fp8 or fp4."""
        return (self.num_layers_at_start_in_bf16 + self.num_layers_at_end_in_bf16) / self.num_layers

    @property
    def mtp_layers(self) -> Layers:
        """Kinds of the layers in one depth of multi-token prediction."""
        if self.mtp_layer_pattern is not None:
            return layers_of_pattern(self.mtp_layer_pattern, self.has_rotary_positions)
        return self.layers[-1:]

    @property
    def num_own_mtp_layers(self) -> int:
        """Number of multi-token-prediction depths that have their own weights."""
        return min(self.mtp_num_layers, 1) if self.mtp_use_repeated_layer else self.mtp_num_layers

    @property
    def num_moe_layers(self) -> int:
        """Number of layers with experts."""
        return sum(kind.has_experts for kind in self.layers)

    @property
    def has_rotary_positions(self) -> bool:
        """Return whether queries and keys have rotary positions."""
        return self.position_embedding_type in ("rope", "yarn")

    @property
    def num_windowed_layers(self) -> int:
        """Number of layers whose attention has a window or is chunked."""
        if self.window_size is None and self.attention_chunk_size is None:
            return 0
        return sum(kind.mixer == "windowed_attention" for kind in self.layers)

    @property
    def num_recurrent_layers(self) -> int:
        """Number of layers that mix tokens by a state (Mamba-2, gated delta net)."""
        return sum(kind.mixer in RECURRENT_MIXERS for kind in self.layers)

    @property
    def attention_window(self) -> int:
        """Tokens to which a token of a windowed layer attends, itself included."""
        assert self.window_size is not None
        return self.window_size[0] + 1

    @property
    def key_head_size(self) -> int:
        """Channels per head of a query or key."""
        latent = self.multi_latent_attention
        return self.kv_channels if latent is None else latent.key_head_size

    @property
    def value_head_size(self) -> int:
        """Channels per head of a value, and of the attention's output."""
        latent = self.multi_latent_attention
        return self.kv_channels if latent is None else latent.v_head_dim

    @property
    def kv_head_size(self) -> int:
        """Mean channels per head of a key and a value, which differ in latent attention only."""
        return (self.key_head_size + self.value_head_size) // 2

    @property
    def query_projection_size(self) -> int:
        """Width of all query heads together."""
        return self.key_head_size * self.num_attention_heads

    @property
    def attention_output_size(self) -> int:
        """Width of the attention output that enters the output projection."""
        return self.value_head_size * self.num_attention_heads

    @property
    def kv_projection_size(self) -> int:
        """Width of all key heads, or of all value heads, together; the mean of both widths where they differ."""
        return self.kv_head_size * self.num_query_groups

    @property
    def more_norms(self) -> int:
        """Norms per branch beyond the first: 1 if both input and output of each branch are normalised, else 0."""
        return self.pre_norms + self.post_norms - 1

    @property
    def norm_parameters(self) -> int:
        """Parameters of one normalisation layer."""
        return self.hidden_size * (2 if self.normalization == "LayerNorm" else 1)

    def branches(self, kind: LayerKind) -> tuple[Branch, ...]:
        """Return the branches of a kind of layer: what mixes tokens, then the MLP; some layers have only one."""
        return branches_of(self, kind)

    def mixer(self, kind: LayerKind) -> Branch | None:
        """Return the branch of a kind of layer that mixes tokens; ``None`` if the layer is an MLP only."""
        return next((branch for branch in self.branches(kind) if branch.core), None)

    def padded_vocab_size(self, tensor_model_parallel_size: int) -> int:
        """Return the vocabulary size as Megatron pads it: to a multiple of ``make_vocab_size_divisible_by * tp``."""
        multiple = self.make_vocab_size_divisible_by * tensor_model_parallel_size
        return ceil_div(self.vocab_size, multiple) * multiple

    @property
    def num_parameters(self) -> int:
        """Number of all parameters, including multi-token prediction, with the vocabulary unpadded."""
        padding = self.padded_vocab_size(1) - self.vocab_size
        tables = 1 + self.untie_embeddings_and_output_weights
        ends = embedding_parameters(self, 1).total + head_parameters(self, 1, 1).total
        layers = (*self.layers, *self.num_own_mtp_layers * self.mtp_layers)
        of_layers = sum(count * layer_parameters(self, kind).total for kind, count in Counter(layers).items())
        return of_layers + ends - tables * padding * self.hidden_size

    @property
    def num_mtp_parameters(self) -> int:
        """Number of parameters of multi-token prediction, which published counts often leave out."""
        without = replace(self, mtp_num_layers=0, mtp_layer_pattern=None, mtp_use_repeated_layer=False)
        return self.num_parameters - without.num_parameters

    @property
    def counted_layers(self) -> Mapping[LayerKind, int]:
        """Number of layers of each kind, with those of multi-token prediction."""
        return Counter((*self.layers, *self.mtp_layers * self.mtp_num_layers))

    @property
    def flops_outside_layers(self) -> float:
        """FLOPs of one token, both ways, in the output heads and the projections of multi-token prediction."""
        depths = self.mtp_num_layers
        each = 6.0 if self.adapters is None else 4.0
        return each * self.hidden_size * (self.vocab_size * (1 + depths) + 2 * self.hidden_size * depths)

    def flops_per_token(self, seq_length: float) -> float:
        """
        Return the FLOPs of one token, forward and backward.

        Each matrix parameter costs six FLOPs per token. The output head counts, the embedding look-up does not. Of the
        routed experts only those that the token is sent to count. Attention scores and their product with the values
        add ``12 * num_layers * query_width * seq_length`` (Narayanan et al., arXiv 2104.04473, equation 3; the mean of
        key and value width where they differ), times the fraction of the sequence that a token sees: half of it on
        average, or less with a window. Each depth of multi-token prediction adds a layer, a projection and the head.
        Frozen parameters cost four FLOPs: they have no gradients. Those of adapters are not counted.
        """
        of_heads = (self.query_projection_size + self.attention_output_size) / 2
        total, each = self.flops_outside_layers, 6.0 if self.adapters is None else 4.0
        for kind, count in self.counted_layers.items():
            for branch in self.branches(kind):
                total += count * (each * branch.multiplications + 12.0 * of_heads * branch.tokens_seen(seq_length))
        return total

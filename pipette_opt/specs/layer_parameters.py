"""Parameters of each part of a model (layers, embeddings, head), and FLOPs of a layer per token."""

from typing import TYPE_CHECKING, Any, NamedTuple

from pipette_opt.specs.layer_kinds import LayerKind

if TYPE_CHECKING:
    from pipette_opt.specs.model import ModelSpec


class Parameters(NamedTuple):
    """
    Parameters of a part of a model.

    Parameters
    ----------
    sharded
        Parameters that tensor ranks split.
    replicated
        Parameters that every tensor rank holds whole.
    experts
        Parameters of routed experts, split over the ranks of experts and of their tensor parallelism.
    """

    sharded: int = 0
    replicated: int = 0
    experts: int = 0

    @property
    def total(self) -> int:
        """Number of all parameters."""
        return sum(self)

    def on_rank(self, tp: Any) -> Any:
        """Return the parameters of one tensor rank without routed experts; ``tp`` is a number or an array of them."""
        return self.sharded / tp + self.replicated


def norm_parameters(model: "ModelSpec") -> int:
    """Return the number of parameters of one normalisation layer."""
    return model.hidden_size * (2 if model.normalization == "LayerNorm" else 1)


def layer_parameters(model: "ModelSpec", kind: LayerKind) -> Parameters:
    """Return the parameters of one layer of a kind; experts have no biases."""
    matrices = 3 if model.gated_linear_unit else 2
    routed = (model.num_experts or 0) * matrices * model.expert_hidden_size * model.expert_ffn_size
    return Parameters(
        sharded=mixer_parameters(model, kind) + mlp_parameters(model, mlp_width(model, kind)),
        replicated=_replicated_parameters(model, kind),
        experts=routed * kind.has_experts,
    )


def embedding_parameters(model: "ModelSpec", tp: Any) -> Parameters:
    """
    Return the parameters of the word embeddings, padded for ``tp`` tensor ranks, and of learned positions.

    ``tp`` is a number or an array of them.
    """
    learned = model.position_embedding_type == "learned_absolute"
    return Parameters(
        sharded=model.padded_vocab_size(tp) * model.hidden_size,
        replicated=learned * model.max_position_embeddings * model.hidden_size,
    )


def head_parameters(model: "ModelSpec", tp: Any, pp: Any) -> Parameters:
    """
    Return the parameters of the last of ``pp`` stages beside its layers: final norm, output head, token prediction.

    On one stage the head may share the table of the embeddings. On several, multi-token prediction has a second copy of
    the embeddings. Each depth of it has a projection of the last hidden state and of the next token's embedding, and
    norms of both inputs and of the result (``MultiTokenPredictionLayer`` in megatron-core). ``tp`` and ``pp`` are
    numbers or arrays of them.
    """
    tables = 1 * (model.untie_embeddings_and_output_weights | (pp > 1)) + (model.mtp_num_layers > 0) * (pp > 1)
    depths, norm = model.num_own_mtp_layers, norm_parameters(model)
    return Parameters(
        sharded=tables * model.padded_vocab_size(tp) * model.hidden_size + depths * 2 * model.hidden_size**2,
        replicated=norm + depths * 3 * norm,
    )


def _replicated_parameters(model: "ModelSpec", kind: LayerKind) -> int:
    """
    Return the parameters of one layer that every tensor rank holds whole:
    norms, row-parallel biases, router, latents.
    """
    hidden, bias = model.hidden_size, model.hidden_size if model.add_bias_linear else 0
    total = 0
    norms = norm_parameters(model) * (1 + model.more_norms)
    if kind.mixer != "none":
        total += norms
    if kind.has_attention:
        latent = model.multi_latent_attention
        heads = (model.num_attention_heads, model.num_query_groups) if model.qk_layernorm_across_heads else (1, 1)
        qk_norms = sum(heads) * model.kv_channels
        if latent is not None:
            qk_norms = norm_parameters(model) // hidden * latent.latent_size
        total += bias + model.qk_layernorm * qk_norms + model.replicated_attention_matrices
    recurrent = model.recurrent_mixer(kind)
    if recurrent is not None:
        total += bias + recurrent.whole_vectors
    if kind.mlp != "none":
        total += norms + (bias if mlp_width(model, kind) else 0)
    return total + (hidden * ((model.num_experts or 0) + 2 * (model.moe_latent_size or 0)) if kind.has_experts else 0)


def mixer_parameters(model: "ModelSpec", kind: LayerKind) -> int:
    """
    Return the parameters of the token-mixing branch (attention, Mamba-2, gated delta net) that tensor parallelism
    splits.
    """
    recurrent = model.recurrent_mixer(kind)
    if recurrent is not None:
        bias = recurrent.in_size if model.add_bias_linear else 0
        return model.hidden_size * (recurrent.in_size + recurrent.out_size) + recurrent.split_vectors + bias
    if not kind.has_attention:
        return 0
    sinks = model.num_attention_heads if model.softmax_type == "learnable" else 0
    bias = 0
    if model.add_qkv_bias and model.multi_latent_attention is None:
        bias = model.attention_shapes[0][0]
    return sum(n * k for n, k in model.attention_shapes) + bias + sinks


def mixer_shapes(
    model: "ModelSpec", kind: LayerKind
) -> tuple[tuple[tuple[int, int], ...], int, tuple[tuple[int, int], ...]]:
    """
    Return the matrix products of the token-mixing branch (attention, Mamba-2, gated delta net).

    Three parts: (outputs, inputs) of the input products that tensor ranks split; the input width of the output product;
    (outputs, inputs) of the products that every tensor rank computes whole.
    """
    recurrent = model.recurrent_mixer(kind)
    if recurrent is not None:
        return ((recurrent.in_size, model.hidden_size),), recurrent.out_size, ()
    if not kind.has_attention:
        return (), 0, ()
    *into, (_, attended) = model.attention_shapes
    return tuple(into), attended, model.replicated_attention_shapes


def mlp_width(model: "ModelSpec", kind: LayerKind) -> int:
    """
    Return the width of the MLP that every token passes: the dense MLP, or the shared experts;
    0 without such an MLP.
    """
    if kind.mlp == "none":
        return 0
    return model.moe_shared_expert_intermediate_size if kind.has_experts else model.ffn_hidden_size


def mlp_parameters(model: "ModelSpec", width: int) -> int:
    """Return the parameters of a gated or plain MLP of this width, without its row-parallel bias; 0 for width 0."""
    up = 2 * width if model.gated_linear_unit else width
    return model.hidden_size * (up + width) + (up if model.add_bias_linear else 0)


def matrix_flops(model: "ModelSpec", kind: LayerKind) -> float:
    """
    Return the multiplications of one token with a layer's matrices;
    of the routed experts only those it is sent to.
    """
    h, width, found = model.hidden_size, mlp_width(model, kind), 0.0
    if kind.has_attention:
        found += sum(n * k for n, k in model.attention_shapes) + model.replicated_attention_matrices
    recurrent = model.recurrent_mixer(kind)
    if recurrent is not None:
        found += h * (recurrent.in_size + recurrent.out_size) + recurrent.conv_size * recurrent.conv_kernel_dim
        found += recurrent.model_flops
    matrices = 3 if model.gated_linear_unit else 2
    if kind.has_experts:
        found += model.moe_router_topk * model.expert_ffn_size * model.expert_hidden_size * matrices
        found += h * ((model.num_experts or 0) + 2 * (model.moe_latent_size or 0))
    return float(found + h * width * matrices)


def tokens_seen(model: "ModelSpec", kind: LayerKind, seq_length: int) -> float:
    """
    Return the mean number of tokens that causal attention of one token sees, itself included.

    With a window of ``w`` tokens, the first ``w`` tokens see half of it on average, and all later ones see ``w``. With
    chunks, a token sees the earlier tokens of its chunk.
    """
    if not kind.has_attention:
        return 0.0
    if kind.mixer != "windowed_attention":
        return seq_length / 2
    if model.attention_chunk_size is not None:
        whole, rest = divmod(seq_length, model.attention_chunk_size)
        return (whole * model.attention_chunk_size**2 + rest**2) / (2 * seq_length)
    window = min(model.attention_window, seq_length)
    return window * (1 - window / (2 * seq_length))

"""Readers of fields that many families of Hugging Face's ``config.json`` share."""

from typing import Any

from pipette_opt.base.errors import InputError
from pipette_opt.read.hugging_face_keys import Keys
from pipette_opt.read.hugging_face_positions import rotary_fields

SILU = ("silu", "swish")
"""Names in transformers of the activation of SwiGLU."""

GELU = ("gelu", "gelu_fast", "gelu_new", "gelu_pytorch_tanh")
"""Names of GELU. Megatron's fused kernel uses the tanh form for all; ``--no-bias-gelu-fusion`` uses the exact form."""


def llama_like(
    keys: Keys,
    act: tuple[str, str, tuple[str, ...]] = ("hidden_act", "silu", SILU),
    positions: dict[str, Any] | None = None,
) -> dict[str, Any]:
    """
    Return the fields of Llama-like models: RMSNorm, rotary positions, gated activation, no biases.

    Parameters
    ----------
    act
        Key of the activation, its default, and the names that Megatron-LM has for this family.
    positions
        Fields of the positions; ``None`` to read rotary positions from their usual keys.
    """
    activation(keys, *act)
    return (
        common(keys)
        | (rotary_fields(keys) if positions is None else positions)
        | {
            "gated_linear_unit": True,
            "add_bias_linear": False,
            "add_qkv_bias": False,
            "normalization": "RMSNorm",
            "norm_epsilon": keys.positive("rms_norm_eps", 1e-6),
        }
    )


def common(keys: Keys) -> dict[str, Any]:
    """Return sizes, tied embeddings and initialisation of a model from their usual keys."""
    heads, hidden = keys.whole("num_attention_heads"), keys.whole("hidden_size")
    return {
        "num_layers": keys.whole("num_hidden_layers"),
        "hidden_size": hidden,
        "ffn_hidden_size": keys.whole("intermediate_size"),
        "num_attention_heads": heads,
        "num_query_groups": keys.whole("num_key_value_heads", heads),
        "kv_channels": keys.whole("head_dim", per_head(keys, hidden, heads)),
        "vocab_size": keys.whole("vocab_size"),
        "max_position_embeddings": keys.whole("max_position_embeddings"),
        "untie_embeddings_and_output_weights": not keys.flag("tie_word_embeddings", False),
        "attention_dropout": keys.not_negative("attention_dropout", 0.0),
        "init_method_std": keys.positive("initializer_range", 0.02),
    }


def experts(keys: Keys, number: str = "num_experts", width: str | None = "moe_intermediate_size") -> dict[str, Any]:
    """
    Return number, choice and width of experts.

    Parameters
    ----------
    number, width
        Keys of the family for the number of experts and for the hidden size of each; ``None``: that of a dense MLP.
    """
    return {
        "num_experts": keys.whole(number),
        "moe_router_topk": keys.whole("num_experts_per_tok"),
        "moe_ffn_hidden_size": None if width is None else keys.whole(width),
    }


def biases(keys: Keys) -> dict[str, Any]:
    """
    Return the bias flags of attention and MLP.

    ``InputError`` if only one of the two has biases, as Megatron-LM cannot build such a model.
    """
    attention, mlp = keys.flag("attention_bias", False), keys.flag("mlp_bias", False)
    if attention is not mlp:
        raise InputError(
            keys.where,
            f"attention_bias: {str(attention).lower()} and mlp_bias: {str(mlp).lower()} are not supported; "
            "Megatron-LM has biases in all of these layers, in none, or in query, key and value only.",
        )
    return {"add_bias_linear": attention, "add_qkv_bias": attention}


def no_attention_bias(keys: Keys) -> None:
    """Raise ``InputError`` if only the attention projections have biases, which Megatron-LM cannot build."""
    if keys.flag("attention_bias", False):
        why = "Megatron-LM has no bias of the output projection without those of the MLP"
        raise keys.wrong("attention_bias", why)


def activation(keys: Keys, name: str, default: str, known: tuple[str, ...]) -> None:
    """Raise ``InputError`` unless the activation is among those that Megatron-LM has for this family."""
    if keys.text(name, default) not in known:
        raise keys.wrong(name, f"of this family Megatron-LM has {' or '.join(known)}")


def one_dropout(keys: Keys, name: str, embedding: str, default: float) -> float:
    """Return the dropout of embeddings and residuals. ``InputError`` if they differ: Megatron-LM has a single value."""
    found, first = keys.not_negative(name, default), keys.not_negative(embedding, default)
    if found != first:
        raise keys.wrong(embedding, f"it must be {name}, {found}, since Megatron-LM has one dropout for both")
    return found


def count(keys: Keys, name: str) -> int:
    """Return a whole number >= 0; 0 if the key is absent."""
    return keys.whole(name) if keys.value(name) else 0


def per_head(keys: Keys, hidden: int, heads: int) -> int:
    """
    Return the channels of an attention head.

    ``InputError`` if the heads do not divide the hidden size, unless ``head_dim`` or latent attention sets its own
    size.
    """
    if hidden % heads and not keys.has("head_dim") and not keys.has("kv_lora_rank"):
        raise InputError(keys.where, f"{heads} heads must divide the hidden size {hidden}, or head_dim be given.")
    return max(1, hidden // heads)

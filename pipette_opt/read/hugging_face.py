"""Hugging Face ``config.json`` of decoder-only transformers, dense or with experts."""

from collections.abc import Callable
from typing import Any

from pipette_opt.errors import InputError, shown
from pipette_opt.read.fields import Fields
from pipette_opt.specs import ModelSpec

_EXPERT_KEYS = ("num_local_experts", "num_experts", "n_routed_experts", "moe_num_experts")


def model_from_hugging_face(config: object, where: str, name: str) -> ModelSpec:
    """
    Turn a ``config.json`` into a model; ``model_type`` decides how it is read.

    Defaults of absent optional fields are those of the ``transformers`` configuration classes.
    """
    if not isinstance(config, dict):
        raise InputError(where, f"must be an object, as Hugging Face writes it, got {shown(config)}.")
    model_type = config.get("model_type")
    if not isinstance(model_type, str):
        raise InputError(where, f"model_type is missing; it says how to read the rest, one of {', '.join(_READERS)}.")
    experts = [key for key in _EXPERT_KEYS if isinstance(config.get(key), int) and config[key] > 1]
    if model_type not in _WITH_EXPERTS and (experts or "moe" in model_type or model_type in _OTHER_EXPERTS):
        supported = ", ".join(_WITH_EXPERTS)
        raise InputError(
            where, f"model_type {model_type!r} is a mixture of experts that is not supported; supported: {supported}."
        )
    reader = _READERS.get(model_type)
    if reader is None:
        raise InputError(where, f"model_type {model_type!r} is not supported; supported: {', '.join(_READERS)}.")
    try:
        return ModelSpec(name=name, **reader(Fields(where, config, config.keys())))
    except InputError:
        raise
    except ValueError as error:
        raise InputError(where, str(error)) from None


def _llama_like(fields: Fields) -> dict[str, Any]:
    """What llama, mistral, qwen2 and qwen3 share: RMSNorm, rotary positions, SwiGLU, no biases."""
    heads = fields.whole("num_attention_heads")
    hidden = fields.whole("hidden_size")
    return {
        "num_layers": fields.whole("num_hidden_layers"),
        "hidden_size": hidden,
        "ffn_hidden_size": fields.whole("intermediate_size"),
        "num_attention_heads": heads,
        "num_query_groups": fields.whole("num_key_value_heads", heads),
        "kv_channels": fields.whole("head_dim", _per_head(fields, hidden, heads)),
        "vocab_size": fields.whole("vocab_size"),
        "max_position_embeddings": fields.whole("max_position_embeddings"),
        "gated_linear_unit": True,
        "untie_embeddings_and_output_weights": not fields.flag("tie_word_embeddings", False),
        "add_bias_linear": fields.flag("mlp_bias", False),
        "add_qkv_bias": fields.flag("attention_bias", False),
        "normalization": "RMSNorm",
        "position_embedding_type": "rope",
        "attention_dropout": fields.not_negative("attention_dropout", 0.0),
    }


def _mistral(fields: Fields) -> dict[str, Any]:
    # MistralConfig has 8 key-value heads unless told otherwise.
    return _llama_like(fields) | {"num_query_groups": fields.whole("num_key_value_heads", 8)}


def _qwen2(fields: Fields) -> dict[str, Any]:
    # Qwen2 has biases on query, key and value, and nowhere else, without a field that says so.
    return _llama_like(fields) | {"add_qkv_bias": True, "num_query_groups": fields.whole("num_key_value_heads", 32)}


def _qwen3(fields: Fields) -> dict[str, Any]:
    # Qwen3Config: heads of 128 channels unless told otherwise, normalised queries and keys.
    return _llama_like(fields) | {
        "kv_channels": fields.whole("head_dim", 128),
        "num_query_groups": fields.whole("num_key_value_heads", 32),
        "qk_layernorm": True,
    }


def _mixtral(fields: Fields) -> dict[str, Any]:
    # MixtralConfig: 8 experts, 2 of them for each token, each as wide as intermediate_size.
    return _mistral(fields) | {
        "num_experts": fields.whole("num_local_experts", 8),
        "moe_router_topk": fields.whole("num_experts_per_tok", 2),
    }


def _qwen3_moe(fields: Fields) -> dict[str, Any]:
    # Qwen3MoeConfig: every layer has experts unless told otherwise.
    if fields.data.get("mlp_only_layers") or fields.whole("decoder_sparse_step", 1) != 1:
        problem = "mlp_only_layers must be empty and decoder_sparse_step 1: dense layers between others"
        raise InputError(fields.where, f"{problem} are not supported.")
    heads = fields.whole("num_attention_heads")
    return _llama_like(fields) | {
        "num_query_groups": fields.whole("num_key_value_heads", 4),
        "kv_channels": fields.whole("head_dim", _per_head(fields, fields.whole("hidden_size"), heads)),
        "qk_layernorm": True,
        "num_experts": fields.whole("num_experts", 128),
        "moe_router_topk": fields.whole("num_experts_per_tok", 8),
        "moe_ffn_hidden_size": fields.whole("moe_intermediate_size", 768),
    }


def _deepseek(fields: Fields) -> dict[str, Any]:
    # DeepSeek-MoE (the first, with ordinary attention): shared experts, and dense layers before the others.
    if fields.has("kv_lora_rank"):
        raise InputError(fields.where, "kv_lora_rank: multi-head latent attention is not supported.")
    if fields.whole("moe_layer_freq", 1) != 1:
        raise InputError(fields.where, "moe_layer_freq must be 1: dense layers between others are not supported.")
    width = fields.whole("moe_intermediate_size")
    return _llama_like(fields) | {
        "num_experts": fields.whole("n_routed_experts"),
        "moe_router_topk": fields.whole("num_experts_per_tok"),
        "moe_ffn_hidden_size": width,
        "moe_shared_expert_intermediate_size": width * _count(fields, "n_shared_experts"),
        "num_dense_layers": _count(fields, "first_k_dense_replace"),
    }


def _count(fields: Fields, name: str) -> int:
    """A whole number, 0 if absent or 0."""
    return fields.whole(name) if fields.data.get(name) else 0


def _gpt2(fields: Fields) -> dict[str, Any]:
    hidden, heads = fields.whole("n_embd"), fields.whole("n_head")
    return {
        "num_layers": fields.whole("n_layer"),
        "hidden_size": hidden,
        "ffn_hidden_size": fields.whole("n_inner", 4 * hidden),
        "num_attention_heads": heads,
        "num_query_groups": heads,
        "kv_channels": _per_head(fields, hidden, heads),
        "vocab_size": fields.whole("vocab_size"),
        "max_position_embeddings": fields.whole("n_positions"),
        "untie_embeddings_and_output_weights": not fields.flag("tie_word_embeddings", True),
        "hidden_dropout": fields.not_negative("resid_pdrop", 0.1),
        "attention_dropout": fields.not_negative("attn_pdrop", 0.1),
    }


def _gpt_neox(fields: Fields) -> dict[str, Any]:
    hidden, heads = fields.whole("hidden_size"), fields.whole("num_attention_heads")
    return {
        "num_layers": fields.whole("num_hidden_layers"),
        "hidden_size": hidden,
        "ffn_hidden_size": fields.whole("intermediate_size"),
        "num_attention_heads": heads,
        "num_query_groups": heads,
        "kv_channels": _per_head(fields, hidden, heads),
        "vocab_size": fields.whole("vocab_size"),
        "max_position_embeddings": fields.whole("max_position_embeddings"),
        "untie_embeddings_and_output_weights": not fields.flag("tie_word_embeddings", False),
        "add_qkv_bias": fields.flag("attention_bias", True),
        "position_embedding_type": "rope",
        "hidden_dropout": fields.not_negative("hidden_dropout", 0.0),
        "attention_dropout": fields.not_negative("attention_dropout", 0.0),
    }


def _per_head(fields: Fields, hidden: int, heads: int) -> int:
    """Channels of one head; must come out whole unless ``head_dim`` says otherwise."""
    if hidden % heads and not fields.has("head_dim"):
        raise InputError(fields.where, f"{heads} heads must divide the hidden size {hidden}, or head_dim be given.")
    return max(1, hidden // heads)


_READERS: dict[str, Callable[[Fields], dict[str, Any]]] = {
    "llama": _llama_like,
    "mistral": _mistral,
    "qwen2": _qwen2,
    "qwen3": _qwen3,
    "gpt2": _gpt2,
    "gpt_neox": _gpt_neox,
    "mixtral": _mixtral,
    "qwen3_moe": _qwen3_moe,
    "deepseek": _deepseek,
}
_WITH_EXPERTS = ("mixtral", "qwen3_moe", "deepseek")
_OTHER_EXPERTS = ("dbrx", "jamba")

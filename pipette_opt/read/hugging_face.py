"""Hugging Face ``config.json`` of decoder-only transformers, dense or with experts."""

from collections.abc import Callable
from typing import Any

from pipette_opt.base.errors import InputError, shown
from pipette_opt.read.hugging_face_common import (
    GELU,
    activation,
    biases,
    common,
    count,
    llama_like,
    no_attention_bias,
    one_dropout,
    per_head,
)
from pipette_opt.read.hugging_face_keys import Keys
from pipette_opt.read.hugging_face_lists import gemma3_text, gpt_oss, llama4_text, nemotron_h, qwen3_next
from pipette_opt.read.hugging_face_positions import layer_frequency_of, rotary_fields, window_fields, windowed_layers
from pipette_opt.specs import LatentAttention, ModelSpec

_EXPERT_KEYS = ("num_local_experts", "num_experts", "n_routed_experts", "moe_num_experts")


def model_from_hugging_face(config: object, where: str, name: str) -> ModelSpec:
    """
    Turn a ``config.json`` into a model; ``model_type`` decides how it is read.

    Defaults of absent optional fields are those of the ``transformers`` configuration classes. Every key is used,
    known to change nothing, or refused (:mod:`pipette_opt.read.hugging_face_keys`).
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
    keys = Keys(where, config)
    try:
        model = ModelSpec(name=name, **reader(keys))
    except InputError:
        raise
    except ValueError as error:
        raise InputError(where, str(error)) from None
    keys.refuse_others()
    return model


def _llama(keys: Keys) -> dict[str, Any]:
    return llama_like(keys) | biases(keys)


def _mistral(keys: Keys) -> dict[str, Any]:
    # MistralConfig: 8 key-value heads and a window of 4,096 tokens unless told otherwise.
    window = keys.value("sliding_window") if keys.given("sliding_window") else 4096
    return (
        llama_like(keys)
        | {"num_query_groups": keys.whole("num_key_value_heads", 8)}
        | window_fields(keys, window, [True] * keys.whole("num_hidden_layers"))
    )


def _qwen2(keys: Keys) -> dict[str, Any]:
    # Qwen2 has biases on query, key and value, and nowhere else, without a field that says so.
    return _qwen(keys) | {"add_qkv_bias": True}


def _qwen3(keys: Keys) -> dict[str, Any]:
    # Qwen3Config: heads of 128 channels unless told otherwise, normalised queries and keys.
    no_attention_bias(keys)
    return _qwen(keys) | {"kv_channels": keys.whole("head_dim", 128), "qk_layernorm": True}


def _qwen(keys: Keys) -> dict[str, Any]:
    """Qwen 2 and 3: windows, if there are any, in the layers after the first ``max_window_layers``."""
    layers = keys.whole("num_hidden_layers")
    window = keys.value("sliding_window") if keys.given("sliding_window") else 4096
    first = count(keys, "max_window_layers") if keys.has("max_window_layers") else 28
    windowed = windowed_layers(keys, layers, [layer >= first for layer in range(layers)])
    return (
        llama_like(keys)
        | {"num_query_groups": keys.whole("num_key_value_heads", 32)}
        | window_fields(keys, window if keys.flag("use_sliding_window", False) else None, windowed)
    )


def _smollm3(keys: Keys) -> dict[str, Any]:
    # SmolLM3Config: 4 key-value heads, tied embeddings, base 2,000,000, no positions in every fourth layer.
    layers, interval = keys.whole("num_hidden_layers"), keys.whole("no_rope_layer_interval", 4)
    rotated = keys.value("no_rope_layers")  # 1 is a layer *with* rotary positions
    if rotated is None:
        rotated = [int((layer + 1) % interval != 0) for layer in range(layers)]
    if not isinstance(rotated, list) or len(rotated) != layers or any(one not in (0, 1) for one in rotated):
        raise keys.wrong("no_rope_layers", f"it must say 0 or 1 for each of the {layers} layers")
    keys.value("max_window_layers")  # written by older versions, read by none
    windowed = windowed_layers(keys, layers, [not one for one in rotated])
    window = keys.value("sliding_window") if keys.flag("use_sliding_window", False) else None
    return (
        llama_like(keys, theta=2e6)
        | biases(keys)
        | {
            "num_query_groups": keys.whole("num_key_value_heads", 4),
            "untie_embeddings_and_output_weights": not keys.flag("tie_word_embeddings", True),
            "no_rope_freq": layer_frequency_of([not one for one in rotated]),
        }
        | window_fields(keys, window, windowed)
    )


def _phi3(keys: Keys) -> dict[str, Any]:
    # Phi3Config: one dropout for both; its "yarn" of old files is longrope, which Megatron does not have.
    keys.value("original_max_position_embeddings")  # of longrope
    fields = llama_like(keys, norm=1e-5)
    if fields["position_embedding_type"] == "yarn":
        raise keys.wrong("rope_scaling", "Phi-3's is longrope, which Megatron does not have")
    window = keys.value("sliding_window")
    return (
        fields
        | {"hidden_dropout": one_dropout(keys, "resid_pdrop", "embd_pdrop", 0.0)}
        | window_fields(keys, window, [True] * keys.whole("num_hidden_layers"))
    )


def _mixtral(keys: Keys) -> dict[str, Any]:
    # MixtralConfig: 8 experts, 2 of them for each token, each as wide as intermediate_size; no window.
    return (
        llama_like(keys, theta=1e6, norm=1e-5)
        | {
            "num_query_groups": keys.whole("num_key_value_heads", 8),
            "num_experts": keys.whole("num_local_experts", 8),
            "moe_router_topk": keys.whole("num_experts_per_tok", 2),
        }
        | window_fields(keys, keys.value("sliding_window"), [True] * keys.whole("num_hidden_layers"))
    )


def _qwen3_moe(keys: Keys) -> dict[str, Any]:
    # Qwen3MoeConfig: every layer has experts unless told otherwise.
    if keys.value("mlp_only_layers") or keys.whole("decoder_sparse_step", 1) != 1:
        problem = "mlp_only_layers must be empty and decoder_sparse_step 1: dense layers between others"
        raise InputError(keys.where, f"{problem} are not supported.")
    if keys.flag("use_sliding_window", False):
        raise keys.wrong("use_sliding_window", "versions of transformers disagree which layers have a window")
    for name in ("sliding_window", "max_window_layers"):
        keys.value(name)  # without use_sliding_window they say nothing
    no_attention_bias(keys)
    heads = keys.whole("num_attention_heads")
    return llama_like(keys) | {
        "num_query_groups": keys.whole("num_key_value_heads", 4),
        "kv_channels": keys.whole("head_dim", per_head(keys, keys.whole("hidden_size"), heads)),
        "qk_layernorm": True,
        "num_experts": keys.whole("num_experts", 128),
        "moe_router_topk": keys.whole("num_experts_per_tok", 8),
        "moe_ffn_hidden_size": keys.whole("moe_intermediate_size", 768),
        "moe_router_pre_softmax": not keys.flag("norm_topk_prob", False),
    }


def _deepseek(keys: Keys) -> dict[str, Any]:
    # DeepSeek-MoE (the first, with ordinary attention): shared experts, and dense layers before the others.
    if keys.has("kv_lora_rank"):
        raise InputError(keys.where, "kv_lora_rank: model_type deepseek has none; DeepSeek-V2's is deepseek_v2.")
    if keys.whole("moe_layer_freq", 1) != 1:
        raise InputError(keys.where, "moe_layer_freq must be 1: dense layers between others are not supported.")
    no_attention_bias(keys)
    return (
        llama_like(keys) | _shared_and_dense(keys) | {"moe_router_pre_softmax": not keys.flag("norm_topk_prob", False)}
    )


def _deepseek_v3(keys: Keys) -> dict[str, Any]:
    """
    DeepSeek-V2, -V3 and Kimi-K2: latent attention, experts in groups, and a router of softmax or sigmoid.

    ``quantization_config`` of V3 says in which format its weights are stored, as ``torch_dtype`` does.
    """
    if keys.whole("moe_layer_freq", 1) != 1:
        raise InputError(keys.where, "moe_layer_freq must be 1: dense layers between others are not supported.")
    no_attention_bias(keys)
    for name in ("quantization_config", "qk_head_dim", "rope_interleave"):
        keys.value(name)  # stored weights; a sum; which channels are a pair
    sizes = {name: keys.whole(key) for name, key in _LATENT_KEYS.items() if name != "q_lora_rank" or keys.has(key)}
    found, heads = llama_like(keys) | _shared_and_dense(keys), keys.whole("num_attention_heads")
    if keys.whole("num_key_value_heads", heads) != heads:
        raise keys.wrong("num_key_value_heads", f"latent attention has as many as num_attention_heads, {heads}")
    scaling = found.pop("yarn", None)
    return (
        found
        | _router(keys)
        | {
            "mtp_num_layers": count(keys, "num_nextn_predict_layers"),
            "kv_channels": sizes["v_head_dim"],
            "num_query_groups": heads,
            "qk_layernorm": True,
            "position_embedding_type": "rope",
            "multi_latent_attention": LatentAttention(**sizes, yarn=scaling),
        }
    )


def _glm4_moe(keys: Keys) -> dict[str, Any]:
    """GLM-4.5: grouped queries, half of a head rotated, biases of queries, keys and values, DeepSeek-V3's experts."""
    found = llama_like(keys, norm=1e-5, percent=0.5)
    return (
        found
        | _shared_and_dense(keys)
        | _router(keys)
        | {
            "mtp_num_layers": count(keys, "num_nextn_predict_layers"),
            "num_query_groups": keys.whole("num_key_value_heads", 8),
            "qk_layernorm": keys.flag("use_qk_norm", False),
            "add_qkv_bias": keys.flag("attention_bias", False),
        }
    )


_LATENT_KEYS = {
    "q_lora_rank": "q_lora_rank",
    "kv_lora_rank": "kv_lora_rank",
    "qk_head_dim": "qk_nope_head_dim",
    "qk_pos_emb_head_dim": "qk_rope_head_dim",
    "v_head_dim": "v_head_dim",
}
"""Keys of the sizes of latent attention, by megatron-core's names."""


def _shared_and_dense(keys: Keys) -> dict[str, Any]:
    """Experts as DeepSeek names them: routed and shared ones of one width, dense layers before the others."""
    width = keys.whole("moe_intermediate_size")
    return {
        "num_experts": keys.whole("n_routed_experts"),
        "moe_router_topk": keys.whole("num_experts_per_tok"),
        "moe_ffn_hidden_size": width,
        "moe_shared_expert_intermediate_size": width * count(keys, "n_shared_experts"),
        "num_dense_layers": count(keys, "first_k_dense_replace"),
    }


def _router(keys: Keys) -> dict[str, Any]:
    """
    Scores and groups of DeepSeek-V2 (softmax) and V3 (sigmoid, with a bias of each expert that balances loads).

    V3's scores of the chosen experts are divided by their sum, which megatron-core does with every sigmoid.
    """
    method = keys.text("topk_method", "noaux_tc")
    if method not in ("greedy", "group_limited_greedy", "noaux_tc"):
        raise keys.wrong("topk_method", "it must be greedy, group_limited_greedy or noaux_tc")
    sigmoid = keys.text("scoring_func", "sigmoid" if method == "noaux_tc" else "softmax") == "sigmoid"
    if not sigmoid and keys.text("scoring_func", "softmax") != "softmax":
        raise keys.wrong("scoring_func", "it must be softmax or sigmoid")
    normed = keys.flag("norm_topk_prob", sigmoid)
    if sigmoid and not normed:
        raise keys.wrong("norm_topk_prob", "Megatron-Core divides sigmoid scores by their sum")
    scale, groups = keys.positive("routed_scaling_factor", 1.0), keys.whole("n_group", 1)
    if groups > 1 and method == "greedy":
        raise keys.wrong("n_group", "with topk_method greedy it must be 1")
    said: list[tuple[str, ...]] = [("--moe-router-enable-expert-bias",)] if method == "noaux_tc" else []
    said += [("--moe-router-score-function", "sigmoid")] if sigmoid else []
    said += [("--moe-router-topk-scaling-factor", f"{scale:g}")] if scale != 1.0 else []
    chosen = keys.whole("topk_group", 1)
    if chosen > groups:
        raise keys.wrong("topk_group", f"it must be <= n_group, {groups}")
    return {
        "moe_router_num_groups": groups if groups > 1 else None,
        "moe_router_group_topk": chosen if groups > 1 else None,
        "moe_router_pre_softmax": sigmoid or not normed,
        "other_arguments": tuple(said) or None,
    }


def _gpt2(keys: Keys) -> dict[str, Any]:
    hidden, heads = keys.whole("n_embd"), keys.whole("n_head")
    activation(keys, "activation_function", "gelu_new", GELU)
    keys.value("n_ctx")  # n_positions again, in old files
    return {
        "num_layers": keys.whole("n_layer"),
        "hidden_size": hidden,
        "ffn_hidden_size": keys.whole("n_inner", 4 * hidden),
        "num_attention_heads": heads,
        "num_query_groups": heads,
        "kv_channels": per_head(keys, hidden, heads),
        "vocab_size": keys.whole("vocab_size"),
        "max_position_embeddings": keys.whole("n_positions"),
        "untie_embeddings_and_output_weights": not keys.flag("tie_word_embeddings", True),
        "norm_epsilon": keys.positive("layer_norm_epsilon", 1e-5),
        "hidden_dropout": one_dropout(keys, "resid_pdrop", "embd_pdrop", 0.1),
        "attention_dropout": keys.not_negative("attn_pdrop", 0.1),
        "init_method_std": keys.positive("initializer_range", 0.02),
    }


def _gpt_neox(keys: Keys) -> dict[str, Any]:
    if not keys.flag("attention_bias", True):
        raise keys.wrong("attention_bias", "Megatron-LM has no biases in all linear layers but those of attention")
    for name in ("attention_probs_dropout_prob", "hidden_dropout_prob"):
        keys.value(name)  # of old files; GPTNeoXConfig does not read them
    activation(keys, "hidden_act", "gelu", GELU)
    return (
        common(keys)
        | rotary_fields(keys, percent=0.25, names=("rotary_emb_base", "rotary_pct"))
        | {
            "num_query_groups": keys.whole("num_attention_heads"),
            "untie_embeddings_and_output_weights": not keys.flag("tie_word_embeddings", False),
            "norm_epsilon": keys.positive("layer_norm_eps", 1e-5),
            "hidden_dropout": keys.not_negative("hidden_dropout", 0.0),
            "parallel_residual": keys.flag("use_parallel_residual", True),
        }
    )


def _starcoder2(keys: Keys) -> dict[str, Any]:
    # Starcoder2Config: LayerNorm, GELU, biases everywhere, 2 key-value heads, tied embeddings.
    bias = keys.flag("use_bias", True)
    activation(keys, "hidden_act", "gelu_pytorch_tanh", GELU)
    return (
        common(keys)
        | rotary_fields(keys)
        | {
            "num_query_groups": keys.whole("num_key_value_heads", 2),
            "untie_embeddings_and_output_weights": not keys.flag("tie_word_embeddings", True),
            "add_bias_linear": bias,
            "add_qkv_bias": bias,
            "norm_epsilon": keys.positive("norm_epsilon", 1e-5),
            "hidden_dropout": one_dropout(keys, "residual_dropout", "embedding_dropout", 0.0),
            "init_method_std": keys.positive("initializer_range", 0.018042),
        }
        | window_fields(keys, keys.value("sliding_window"), [True] * keys.whole("num_hidden_layers"))
    )


def _nemotron(keys: Keys) -> dict[str, Any]:
    # NemotronConfig: LayerNorm around 1, squared ReLU without a gate, half of each head rotated, no biases.
    activation(keys, "hidden_act", "relu2", ("relu2",))
    found = (
        common(keys)
        | rotary_fields(keys, percent=0.5, names=("rope_theta", "rope_percent"))
        | biases(keys)
        | {
            "num_query_groups": keys.whole("num_key_value_heads", keys.whole("num_attention_heads")),
            "untie_embeddings_and_output_weights": not keys.flag("tie_word_embeddings", False),
            "activation_func": "squared_relu",
            "norm_epsilon": keys.positive("norm_eps", 1e-5),
            "layernorm_zero_centered_gamma": True,
            "init_method_std": keys.positive("initializer_range", 0.0134),
        }
    )
    if keys.has("kv_channels") and keys.value("kv_channels") != found["kv_channels"]:
        raise keys.wrong("kv_channels", f"head_dim is {found['kv_channels']}")
    return found


_READERS: dict[str, Callable[[Keys], dict[str, Any]]] = {
    "llama": _llama,
    "mistral": _mistral,
    "qwen2": _qwen2,
    "qwen3": _qwen3,
    "phi3": _phi3,
    "smollm3": _smollm3,
    "starcoder2": _starcoder2,
    "nemotron": _nemotron,
    "gpt2": _gpt2,
    "gpt_neox": _gpt_neox,
    "mixtral": _mixtral,
    "qwen3_moe": _qwen3_moe,
    "deepseek": _deepseek,
    "gemma3_text": gemma3_text,
    "gpt_oss": gpt_oss,
    "llama4_text": llama4_text,
    "nemotron_h": nemotron_h,
    "qwen3_next": qwen3_next,
    "deepseek_v2": _deepseek_v3,
    "deepseek_v3": _deepseek_v3,
    "kimi_k2": _deepseek_v3,
    "glm4_moe": _glm4_moe,
}
_WITH_EXPERTS = (
    "mixtral",
    "qwen3_moe",
    "deepseek",
    "deepseek_v2",
    "deepseek_v3",
    "kimi_k2",
    "glm4_moe",
    "gpt_oss",
    "llama4_text",
    "nemotron_h",
    "qwen3_next",
)
_OTHER_EXPERTS = ("dbrx", "jamba")

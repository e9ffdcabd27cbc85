"""Readers of families of Hugging Face's ``config.json`` without experts."""

from typing import Any

from pipette_opt.read.family import family
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
from pipette_opt.read.hugging_face_positions import (
    layer_frequency_of,
    local_rotary_base,
    rotary_fields,
    window_fields,
    windowed_layers,
)


@family("llama")
def _llama(keys: Keys) -> dict[str, Any]:
    return llama_like(keys) | biases(keys)


@family("mistral", num_key_value_heads=8)
def _mistral(keys: Keys) -> dict[str, Any]:
    # MistralConfig: a window of 4,096 tokens by default.
    window = keys.value("sliding_window", 4096)
    return llama_like(keys) | window_fields(keys, window, [True] * keys.whole("num_hidden_layers"))


@family(
    "qwen2",
    text_parts=(
        "qwen2_vl",
        "qwen2_5_vl",
        "qwen2_5_vl_text",
        "qwen2_vl_text",
    ),
    num_key_value_heads=32,
)
def _qwen2(keys: Keys) -> dict[str, Any]:
    # Qwen2 has biases on query, key and value only, and no field for them.
    return _qwen(keys) | {"add_qkv_bias": True}


@family("qwen3", text_parts=("qwen3_vl_text",), num_key_value_heads=32, head_dim=128)
def _qwen3(keys: Keys) -> dict[str, Any]:
    # Qwen3Config: normalised queries and keys.
    no_attention_bias(keys)
    return _qwen(keys) | {"qk_layernorm": True}


def _qwen(keys: Keys) -> dict[str, Any]:
    """Return the fields of Qwen 2 and 3; sliding windows, if any, are in the layers after ``max_window_layers``."""
    layers = keys.whole("num_hidden_layers")
    window = keys.value("sliding_window", 4096)
    first = count(keys, "max_window_layers") if keys.has("max_window_layers") else 28
    windowed = windowed_layers(keys, layers, [layer >= first for layer in range(layers)])
    window = window if keys.flag("use_sliding_window", False) else None
    return llama_like(keys) | window_fields(keys, window, windowed)


@family("seed_oss")
def _seed_oss(keys: Keys) -> dict[str, Any]:
    # SeedOssConfig: separate flags for biases of query, key and value, of the output projection, and of the MLP.
    out, mlp = keys.flag("attention_out_bias", False), keys.flag("mlp_bias", False)
    if out is not mlp:
        raise keys.wrong("attention_out_bias", "Megatron-LM has that bias only together with those of the MLP")
    return llama_like(keys) | {
        "add_bias_linear": out,
        "add_qkv_bias": keys.flag("attention_bias", True),
        "hidden_dropout": keys.not_negative("residual_dropout", 0.0),
    }


@family("olmo2", rms_norm_eps=1e-05)
def _olmo2(keys: Keys) -> dict[str, Any]:
    # Olmo2Config: the output of each branch is normalised, its input is not; queries and keys over all heads.
    no_attention_bias(keys)
    return llama_like(keys) | {
        "pre_norms": False,
        "post_norms": True,
        "qk_layernorm": True,
        "qk_layernorm_across_heads": True,
    }


@family("olmo3", rms_norm_eps=1e-05)
def _olmo3(keys: Keys) -> dict[str, Any]:
    # Olmo3Config: three layers with a window, then one without; only the latter has scaled positions.
    keys.has_local_positions = True
    layers = keys.whole("num_hidden_layers")
    windowed = windowed_layers(keys, layers, [(layer + 1) % 4 != 0 for layer in range(layers)])
    window = keys.value("sliding_window", 4096)
    found = _olmo2(keys) | window_fields(keys, window, windowed)
    base = local_rotary_base(keys, float(found["rotary_base"]))
    scaled = found["position_embedding_type"] == "yarn" or base != found["rotary_base"]
    return found | {"local_rotary_base": base if scaled and "window_size" in found else None}


@family("glm4", num_key_value_heads=2, head_dim=128, rms_norm_eps=1.5625e-07, partial_rotary_factor=0.5)
def _glm4(keys: Keys) -> dict[str, Any]:
    # Glm4Config: norms before and after each branch.
    return _glm(keys) | {"post_norms": True}


@family("glm", num_key_value_heads=2, head_dim=128, rms_norm_eps=1.5625e-07, partial_rotary_factor=0.5)
def _glm(keys: Keys) -> dict[str, Any]:
    # GlmConfig: neighbouring channels are pairs.
    return llama_like(keys) | {"add_qkv_bias": keys.flag("attention_bias", False), "rotary_interleaved": True}


@family(
    "ernie4_5", num_key_value_heads=2, head_dim=128, rope_theta=500000.0, rms_norm_eps=1e-05, tie_word_embeddings=True
)
def _ernie(keys: Keys) -> dict[str, Any]:
    # Ernie4_5Config: neighbouring channels are pairs, no biases by default.
    bias = keys.flag("use_bias", False)
    return llama_like(keys) | {"add_bias_linear": bias, "add_qkv_bias": bias, "rotary_interleaved": True}


@family("smollm3", num_key_value_heads=4, rope_theta=2000000.0, tie_word_embeddings=True)
def _smollm3(keys: Keys) -> dict[str, Any]:
    # SmolLM3Config: no positions in every fourth layer.
    layers, interval = keys.whole("num_hidden_layers"), keys.whole("no_rope_layer_interval", 4)
    rotated = keys.value("no_rope_layers")  # 1 is a layer *with* rotary positions
    if rotated is None:
        rotated = [int((layer + 1) % interval != 0) for layer in range(layers)]
    if not isinstance(rotated, list) or len(rotated) != layers or any(flag not in (0, 1) for flag in rotated):
        raise keys.wrong("no_rope_layers", f"it must have 0 or 1 for each of the {layers} layers")
    keys.ignore("max_window_layers")  # written by older versions, read by none
    windowed = windowed_layers(keys, layers, [not flag for flag in rotated])
    window = keys.value("sliding_window") if keys.flag("use_sliding_window", False) else None
    return (
        llama_like(keys)
        | biases(keys)
        | {"no_rope_freq": layer_frequency_of([not flag for flag in rotated])}
        | window_fields(keys, window, windowed)
    )


@family("phi3", rms_norm_eps=1e-05)
def _phi3(keys: Keys) -> dict[str, Any]:
    # Phi3Config: one dropout for both; its "yarn" of old files is longrope, which Megatron does not have.
    keys.ignore("original_max_position_embeddings")  # of longrope
    fields = llama_like(keys)
    if fields["position_embedding_type"] == "yarn":
        raise keys.wrong("rope_scaling", "Phi-3's is longrope, which Megatron does not have")
    window = keys.value("sliding_window")
    return (
        fields
        | {"hidden_dropout": one_dropout(keys, "resid_pdrop", "embd_pdrop", 0.0)}
        | window_fields(keys, window, [True] * keys.whole("num_hidden_layers"))
    )


@family("gpt2")
def _gpt2(keys: Keys) -> dict[str, Any]:
    hidden, heads = keys.whole("n_embd"), keys.whole("n_head")
    activation(keys, "activation_function", "gelu_new", GELU)
    keys.ignore("n_ctx")  # n_positions again, in old files
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


@family("gpt_neox", partial_rotary_factor=0.25)
def _gpt_neox(keys: Keys) -> dict[str, Any]:
    if not keys.flag("attention_bias", True):
        raise keys.wrong("attention_bias", "Megatron-LM has no biases in all linear layers except attention")
    keys.ignore("attention_probs_dropout_prob", "hidden_dropout_prob")  # of old files; GPTNeoXConfig does not read them
    activation(keys, "hidden_act", "gelu", GELU)
    return (
        common(keys)
        | rotary_fields(keys, ("rotary_emb_base", "rotary_pct"))
        | {
            "norm_epsilon": keys.positive("layer_norm_eps", 1e-5),
            "hidden_dropout": keys.not_negative("hidden_dropout", 0.0),
            "parallel_residual": keys.flag("use_parallel_residual", True),
        }
    )


@family("starcoder2", num_key_value_heads=2, tie_word_embeddings=True)
def _starcoder2(keys: Keys) -> dict[str, Any]:
    # Starcoder2Config: LayerNorm, GELU, biases everywhere.
    bias = keys.flag("use_bias", True)
    activation(keys, "hidden_act", "gelu_pytorch_tanh", GELU)
    return (
        common(keys)
        | rotary_fields(keys)
        | {
            "add_bias_linear": bias,
            "add_qkv_bias": bias,
            "norm_epsilon": keys.positive("norm_epsilon", 1e-5),
            "hidden_dropout": one_dropout(keys, "residual_dropout", "embedding_dropout", 0.0),
            "init_method_std": keys.positive("initializer_range", 0.018042),
        }
        | window_fields(keys, keys.value("sliding_window"), [True] * keys.whole("num_hidden_layers"))
    )


@family("nemotron", partial_rotary_factor=0.5)
def _nemotron(keys: Keys) -> dict[str, Any]:
    # NemotronConfig: LayerNorm around 1, squared ReLU without a gate, no biases.
    activation(keys, "hidden_act", "relu2", ("relu2",))
    found = (
        common(keys)
        | rotary_fields(keys, ("rope_theta", "rope_percent"))
        | biases(keys)
        | {
            "activation_func": "squared_relu",
            "norm_epsilon": keys.positive("norm_eps", 1e-5),
            "layernorm_zero_centered_gamma": True,
            "init_method_std": keys.positive("initializer_range", 0.0134),
        }
    )
    if keys.has("kv_channels") and keys.value("kv_channels") != found["kv_channels"]:
        raise keys.wrong("kv_channels", f"head_dim is {found['kv_channels']}")
    return found

"""Reader of Hugging Face's ``config.json`` for decoder-only transformers, dense or with experts."""

import logging
from collections.abc import Callable, Mapping
from functools import cache
from types import MappingProxyType
from typing import Any

from pipette_opt.base.errors import InputError, shown
from pipette_opt.base.shipped import shipped_path
from pipette_opt.read.files import read_yaml
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
from pipette_opt.read.hugging_face_experts import (
    bailing_moe,
    deepseek,
    deepseek_v3,
    dots1,
    ernie_moe,
    glm4_moe,
    minimax_m2,
    mixtral,
    olmoe,
    qwen2_moe,
    qwen3_moe,
)
from pipette_opt.read.hugging_face_granite import granite, granite_hybrid, granite_moe
from pipette_opt.read.hugging_face_keys import Keys
from pipette_opt.read.hugging_face_lists import (
    gemma3_text,
    gpt_oss,
    llama4_text,
    nemotron_h,
    qwen3_5,
    qwen3_5_moe,
    qwen3_next,
)
from pipette_opt.read.hugging_face_positions import (
    layer_frequency_of,
    local_rotary_base,
    rotary_fields,
    window_fields,
    windowed_layers,
)
from pipette_opt.specs import ModelSpec

logger = logging.getLogger(__name__)

Reader = Callable[[Keys], dict[str, Any]]
"""Function that returns the :class:`ModelSpec` fields for the keys of a ``config.json``."""

_EXPERT_KEYS = ("num_local_experts", "num_experts", "n_routed_experts", "moe_num_experts")

_TEXT_PARTS = ("text_config", "llm_config", "language_config")
"""Keys that hold the text part of models with images or sound."""


def model_from_hugging_face(config: object, where: str, name: str) -> ModelSpec:
    """
    Return the model that a ``config.json`` describes; ``model_type`` selects the reader.

    Absent optional keys have the defaults of the ``transformers`` configuration classes. Every key is used, known to
    change nothing, named in a warning, or refused (:mod:`pipette_opt.read.hugging_face_keys`). Of a model with images,
    only the text part is read.
    """
    if not isinstance(config, dict):
        raise InputError(where, f"must be a JSON object, as in Hugging Face's config.json, got {shown(config)}.")
    if "model_type" in config:
        config = _text_part(config, where)
    keys = Keys(where, config)
    family = _family(keys)
    keys.assume(_defaults().get(family, {}))
    try:
        model = ModelSpec(name=name, **_READERS[family](keys))
    except InputError:
        raise
    except ValueError as error:
        raise InputError(where, str(error)) from None
    keys.refuse_others()
    return model


def _text_part(config: dict[str, Any], where: str) -> dict[str, Any]:
    """
    Return the text part of a model with images or sound, and warn of its other parts; return other configs
    unchanged.
    """
    held = next((key for key in _TEXT_PARTS if isinstance(config.get(key), dict)), None)
    if held is None:
        return config
    text: dict[str, Any] = config[held]
    others = sorted(key for key, value in config.items() if isinstance(value, dict) and key.endswith("_config"))
    left = [key for key in others if key not in (held, "quantization_config")]
    if left:
        logger.warning("%s: only the text part, %s, is read; left out: %s.", where, held, ", ".join(left))
    inherited = {key: config[key] for key in ("tie_word_embeddings", "vocab_size") if key in config}
    return inherited | text


@cache
def _defaults() -> Mapping[str, Mapping[str, Any]]:
    """Return the values of absent keys by family, from ``data/hugging_face.yaml``; readers have the usual defaults."""
    found: Mapping[str, Mapping[str, Any]] = read_yaml(shipped_path("data", "hugging_face.yaml"))
    return found


def _family(keys: Keys) -> str:
    """
    Return the family that reads the ``model_type`` of a ``config.json``. ``InputError`` for a model that is not
    supported.
    """
    config, where = keys.data, keys.where
    model_type = config.get("model_type")
    if not isinstance(model_type, str):
        raise InputError(where, f"the field model_type is missing; it must be one of {', '.join(_READERS)}.")
    model_type = _ALIKE.get(model_type, model_type)
    if keys.has("index_topk"):
        problem = f"model_type {model_type!r} has sparse attention (DSA, index_topk {shown(config['index_topk'])})"
        raise InputError(where, f"{problem}, which cannot be timed yet.")
    experts = [key for key in _EXPERT_KEYS if isinstance(config.get(key), int) and config[key] > 1]
    if model_type not in _WITH_EXPERTS and (experts or "moe" in model_type or model_type in _OTHER_EXPERTS):
        supported = ", ".join(_WITH_EXPERTS)
        problem = f"model_type {model_type!r} is a mixture of experts that is not supported"
        raise InputError(where, f"{problem}; supported: {supported}.")
    if model_type not in _READERS:
        raise InputError(where, f"model_type {model_type!r} is not supported; supported: {', '.join(_READERS)}.")
    return model_type


def _llama(keys: Keys) -> dict[str, Any]:
    return llama_like(keys) | biases(keys)


def _mistral(keys: Keys) -> dict[str, Any]:
    # MistralConfig: a window of 4,096 tokens by default.
    window = keys.value("sliding_window") if keys.given("sliding_window") else 4096
    return llama_like(keys) | window_fields(keys, window, [True] * keys.whole("num_hidden_layers"))


def _qwen2(keys: Keys) -> dict[str, Any]:
    # Qwen2 has biases on query, key and value only, and no field for them.
    return _qwen(keys) | {"add_qkv_bias": True}


def _qwen3(keys: Keys) -> dict[str, Any]:
    # Qwen3Config: normalised queries and keys.
    no_attention_bias(keys)
    return _qwen(keys) | {"qk_layernorm": True}


def _qwen(keys: Keys) -> dict[str, Any]:
    """Return the fields of Qwen 2 and 3; sliding windows, if any, are in the layers after ``max_window_layers``."""
    layers = keys.whole("num_hidden_layers")
    window = keys.value("sliding_window") if keys.given("sliding_window") else 4096
    first = count(keys, "max_window_layers") if keys.has("max_window_layers") else 28
    windowed = windowed_layers(keys, layers, [layer >= first for layer in range(layers)])
    window = window if keys.flag("use_sliding_window", False) else None
    return llama_like(keys) | window_fields(keys, window, windowed)


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


def _olmo2(keys: Keys) -> dict[str, Any]:
    # Olmo2Config: the output of each branch is normalised, its input is not; queries and keys over all heads.
    no_attention_bias(keys)
    return llama_like(keys) | {
        "pre_norms": False,
        "post_norms": True,
        "qk_layernorm": True,
        "qk_layernorm_across_heads": True,
    }


def _olmo3(keys: Keys) -> dict[str, Any]:
    # Olmo3Config: three layers with a window, then one without; only the latter has scaled positions.
    keys.has_local_positions = True
    layers = keys.whole("num_hidden_layers")
    windowed = windowed_layers(keys, layers, [(layer + 1) % 4 != 0 for layer in range(layers)])
    window = keys.value("sliding_window") if keys.given("sliding_window") else 4096
    found = _olmo2(keys) | window_fields(keys, window, windowed)
    base = local_rotary_base(keys, float(found["rotary_base"]))
    scaled = found["position_embedding_type"] == "yarn" or base != found["rotary_base"]
    return found | {"local_rotary_base": base if scaled and "window_size" in found else None}


def _glm4(keys: Keys) -> dict[str, Any]:
    # Glm4Config: norms before and after each branch.
    return _glm(keys) | {"post_norms": True}


def _glm(keys: Keys) -> dict[str, Any]:
    # GlmConfig: neighbouring channels are pairs.
    return llama_like(keys) | {"add_qkv_bias": keys.flag("attention_bias", False), "rotary_interleaved": True}


def _ernie(keys: Keys) -> dict[str, Any]:
    # Ernie4_5Config: neighbouring channels are pairs, no biases by default.
    bias = keys.flag("use_bias", False)
    return llama_like(keys) | {"add_bias_linear": bias, "add_qkv_bias": bias, "rotary_interleaved": True}


def _smollm3(keys: Keys) -> dict[str, Any]:
    # SmolLM3Config: no positions in every fourth layer.
    layers, interval = keys.whole("num_hidden_layers"), keys.whole("no_rope_layer_interval", 4)
    rotated = keys.value("no_rope_layers")  # 1 is a layer *with* rotary positions
    if rotated is None:
        rotated = [int((layer + 1) % interval != 0) for layer in range(layers)]
    if not isinstance(rotated, list) or len(rotated) != layers or any(flag not in (0, 1) for flag in rotated):
        raise keys.wrong("no_rope_layers", f"it must have 0 or 1 for each of the {layers} layers")
    keys.value("max_window_layers")  # written by older versions, read by none
    windowed = windowed_layers(keys, layers, [not flag for flag in rotated])
    window = keys.value("sliding_window") if keys.flag("use_sliding_window", False) else None
    return (
        llama_like(keys)
        | biases(keys)
        | {"no_rope_freq": layer_frequency_of([not flag for flag in rotated])}
        | window_fields(keys, window, windowed)
    )


def _phi3(keys: Keys) -> dict[str, Any]:
    # Phi3Config: one dropout for both; its "yarn" of old files is longrope, which Megatron does not have.
    keys.value("original_max_position_embeddings")  # of longrope
    fields = llama_like(keys)
    if fields["position_embedding_type"] == "yarn":
        raise keys.wrong("rope_scaling", "Phi-3's is longrope, which Megatron does not have")
    window = keys.value("sliding_window")
    return (
        fields
        | {"hidden_dropout": one_dropout(keys, "resid_pdrop", "embd_pdrop", 0.0)}
        | window_fields(keys, window, [True] * keys.whole("num_hidden_layers"))
    )


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
        raise keys.wrong("attention_bias", "Megatron-LM has no biases in all linear layers except attention")
    for name in ("attention_probs_dropout_prob", "hidden_dropout_prob"):
        keys.value(name)  # of old files; GPTNeoXConfig does not read them
    activation(keys, "hidden_act", "gelu", GELU)
    return (
        common(keys)
        | rotary_fields(keys, ("rotary_emb_base", "rotary_pct"))
        | {
            "num_query_groups": keys.whole("num_attention_heads"),
            "untie_embeddings_and_output_weights": not keys.flag("tie_word_embeddings", False),
            "norm_epsilon": keys.positive("layer_norm_eps", 1e-5),
            "hidden_dropout": keys.not_negative("hidden_dropout", 0.0),
            "parallel_residual": keys.flag("use_parallel_residual", True),
        }
    )


def _starcoder2(keys: Keys) -> dict[str, Any]:
    # Starcoder2Config: LayerNorm, GELU, biases everywhere.
    bias = keys.flag("use_bias", True)
    activation(keys, "hidden_act", "gelu_pytorch_tanh", GELU)
    return (
        common(keys)
        | rotary_fields(keys)
        | {
            "num_query_groups": keys.whole("num_key_value_heads"),
            "untie_embeddings_and_output_weights": not keys.flag("tie_word_embeddings", False),
            "add_bias_linear": bias,
            "add_qkv_bias": bias,
            "norm_epsilon": keys.positive("norm_epsilon", 1e-5),
            "hidden_dropout": one_dropout(keys, "residual_dropout", "embedding_dropout", 0.0),
            "init_method_std": keys.positive("initializer_range", 0.018042),
        }
        | window_fields(keys, keys.value("sliding_window"), [True] * keys.whole("num_hidden_layers"))
    )


def _nemotron(keys: Keys) -> dict[str, Any]:
    # NemotronConfig: LayerNorm around 1, squared ReLU without a gate, no biases.
    activation(keys, "hidden_act", "relu2", ("relu2",))
    found = (
        common(keys)
        | rotary_fields(keys, ("rope_theta", "rope_percent"))
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


_DENSE: Mapping[str, Reader] = MappingProxyType(
    {
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
        "seed_oss": _seed_oss,
        "olmo2": _olmo2,
        "olmo3": _olmo3,
        "glm": _glm,
        "glm4": _glm4,
        "ernie4_5": _ernie,
        "granite": granite,
        "gemma3_text": gemma3_text,
        "qwen3_5_text": qwen3_5,
    }
)
"""Readers of families without experts, by ``model_type``."""

_WITH_EXPERTS: Mapping[str, Reader] = MappingProxyType(
    {
        "mixtral": mixtral,
        "qwen2_moe": qwen2_moe,
        "qwen3_moe": qwen3_moe,
        "olmoe": olmoe,
        "deepseek": deepseek,
        "deepseek_v2": deepseek_v3,
        "deepseek_v3": deepseek_v3,
        "kimi_k2": deepseek_v3,
        "glm4_moe": glm4_moe,
        "glm4_moe_lite": deepseek_v3,
        "dots1": dots1,
        "minimax_m2": minimax_m2,
        "bailing_moe": bailing_moe,
        "bailing_moe_v2": bailing_moe,
        "ernie4_5_moe": ernie_moe,
        "granitemoe": granite_moe,
        "granitemoeshared": granite_moe,
        "granitemoehybrid": granite_hybrid,
        "gpt_oss": gpt_oss,
        "llama4_text": llama4_text,
        "nemotron_h": nemotron_h,
        "qwen3_next": qwen3_next,
        "qwen3_5_moe_text": qwen3_5_moe,
    }
)
"""Readers of families with experts in all or some of their models."""

_ALIKE: Mapping[str, str] = MappingProxyType(
    {
        "qwen2_vl": "qwen2",
        "qwen2_5_vl": "qwen2",
        "qwen2_5_vl_text": "qwen2",
        "qwen2_vl_text": "qwen2",
        "qwen3_vl_text": "qwen3",
        "qwen3_vl_moe_text": "qwen3_moe",
        "glm4v_moe_text": "glm4_moe",
    }
)
"""Model types with images, or of their text parts, mapped to the ``model_type`` that describes their text part."""

_READERS: Mapping[str, Reader] = MappingProxyType({**_DENSE, **_WITH_EXPERTS})

_OTHER_EXPERTS = ("dbrx", "jamba")
"""Model families with experts whose ``model_type`` does not contain ``moe``."""

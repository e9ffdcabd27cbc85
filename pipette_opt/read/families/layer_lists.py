"""Readers of families of Hugging Face's ``config.json`` whose layers are of several kinds."""

from typing import Any

from pipette_opt.base.errors import InputError
from pipette_opt.read.family import family
from pipette_opt.read.hugging_face_common import activation, common, count, experts, llama_like, no_attention_bias
from pipette_opt.read.hugging_face_keys import Keys
from pipette_opt.read.hugging_face_positions import (
    layer_frequency_of,
    local_rotary_base,
    window_fields,
    windowed_layers,
)
from pipette_opt.specs import GatedDeltaNet, Mamba


@family(
    "gpt_oss",
    has_experts=True,
    num_key_value_heads=8,
    rope_theta=150000.0,
    rms_norm_eps=1e-05,
    num_local_experts=128,
    num_experts_per_tok=4,
)
def gpt_oss(keys: Keys) -> dict[str, Any]:
    """
    Return the fields of GPT-OSS: window in every other layer, attention sinks, biases, experts with clamped quick
    GEGLU.

    ``quantization_config`` is ignored, as it describes the stored weights.
    """
    layers = keys.whole("num_hidden_layers")
    keys.ignore("quantization_config", "initial_context_length", "experts_per_token", "swiglu_limit")
    if not keys.flag("attention_bias", True):
        raise keys.wrong("attention_bias", "this family has biases in all linear layers")
    windowed = windowed_layers(keys, layers, [layer % 2 == 0 for layer in range(layers)])
    window = keys.value("sliding_window", 128)
    return (
        llama_like(keys)
        | experts(keys, "num_local_experts", None)
        | {
            "add_bias_linear": True,
            "add_qkv_bias": True,
            "softmax_type": "learnable",
            "activation_func": "quick_gelu",
            "glu_linear_offset": 1.0,
            "activation_func_clamp_value": 7.0,
        }
        | window_fields(keys, window, windowed)
    )


@family(
    "gemma3_text",
    vocab_size=262208,
    max_position_embeddings=131072,
    num_attention_heads=8,
    num_key_value_heads=4,
    head_dim=256,
    rope_theta=1000000.0,
    tie_word_embeddings=True,
)
def gemma3_text(keys: Keys) -> dict[str, Any]:
    """Return the fields of Gemma 3: windows in five of six layers, normed queries and keys, post-norms, gated GELU."""
    layers = keys.whole("num_hidden_layers")
    keys.has_local_positions = True
    # Scales of attention, and settings of generation.
    keys.ignore("query_pre_attn_scalar", "cache_implementation", "use_bidirectional_attention", "hidden_act")
    no_attention_bias(keys)
    every = keys.whole("sliding_window_pattern", keys.whole("_sliding_window_pattern", 6))
    windowed = windowed_layers(keys, layers, [(layer + 1) % every != 0 for layer in range(layers)])
    gelu = "gelu_pytorch_tanh"
    return (
        llama_like(keys, ("hidden_activation", gelu, (gelu,)))
        | {
            "activation_func": "gelu",
            "qk_layernorm": True,
            "layernorm_zero_centered_gamma": True,
            "post_norms": True,
            "local_rotary_base": local_rotary_base(keys, keys.positive("rope_local_base_freq", 10000.0)),
        }
        | window_fields(keys, keys.value("sliding_window", 4096), windowed)
    )


@family("llama4_text", has_experts=True, num_key_value_heads=8, rope_theta=500000.0, rms_norm_eps=1e-5)
def llama4_text(keys: Keys) -> dict[str, Any]:
    """Return the fields of Llama 4's text: chunked attention, no rotary positions in every 4th layer, top-1 experts."""
    layers, width = keys.whole("num_hidden_layers"), keys.whole("intermediate_size")
    no_attention_bias(keys)
    if keys.flag("use_qk_norm", False):
        raise keys.wrong("use_qk_norm", "it is a norm without weights, which is not modelled; set it to false")
    # Scales of queries for very long sequences; layer_types repeats no_rope_layers.
    keys.ignore("attn_temperature_tuning", "attn_scale", "floor_scale", "layer_types", "output_router_logits")
    keys.ignore("router_aux_loss_coef", "router_jitter_noise", "for_llm_compressor", "rope_scaling", "no_rope_layers")
    step = keys.whole("interleave_moe_layer_step", 1)
    listed = keys.value("moe_layers")
    with_experts = range(step - 1, layers, step) if listed is None else listed
    if any(not isinstance(layer, int) or not 0 <= layer < layers for layer in with_experts):
        raise keys.wrong("moe_layers", f"it must be a list of layers below {layers}")
    rotated = keys.value("no_rope_layers") or [int((layer + 1) % 4 != 0) for layer in range(layers)]
    if len(rotated) != layers:
        raise keys.wrong("no_rope_layers", f"it must have 0 or 1 for each of the {layers} layers")
    positions = {
        "position_embedding_type": "rope",
        "rotary_base": round(keys.positive("rope_theta")),
        "rotary_interleaved": True,
        "no_rope_freq": layer_frequency_of([not flag for flag in rotated]),
    }
    return llama_like(keys, positions=positions) | {
        "ffn_hidden_size": keys.whole("intermediate_size_mlp", 16384),
        "attention_chunk_size": keys.whole("attention_chunk_size", 8192),
        "num_experts": keys.whole("num_local_experts", 16),
        "moe_router_topk": keys.whole("num_experts_per_tok", 1),
        "moe_ffn_hidden_size": width,
        "moe_shared_expert_intermediate_size": width,
        "moe_layer_freq": tuple(int(layer in set(with_experts)) for layer in range(layers)),
        "other_arguments": (("--moe-apply-probs-on-input",), ("--moe-router-score-function", "sigmoid")),
    }


@family("nemotron_h", has_experts=True, num_key_value_heads=8)
def nemotron_h(keys: Keys) -> dict[str, Any]:
    """Return the fields of Nemotron-H and Nemotron 3: a pattern of Mamba-2, attention, MLP and expert layers."""
    pattern = keys.text("hybrid_override_pattern")
    # Repeats of the pattern, and initial values of steps.
    keys.ignore("num_hidden_layers", "layers_block_type", "expand", "time_step_limit", "time_step_min", "time_step_max")
    keys.ignore("time_step_floor", "time_step_rank", "mamba_dt_init", "mamba_hidden_act", "rescale_prenorm_residual")
    for name in ("num_logits_to_keep", "use_mamba_kernels", "residual_in_fp32", "sliding_window", "moe_latent_size"):
        if keys.value(name) and name in ("sliding_window", "moe_latent_size"):
            raise keys.wrong(name, "for this model_type it must be absent or false")
    for name in ("use_bias", "mlp_bias", "attention_bias", "mamba_proj_bias"):
        if keys.flag(name, False):
            raise keys.wrong(name, "this family has no such biases")
    if not keys.flag("use_conv_bias", True):
        raise keys.wrong("use_conv_bias", "Megatron-Core's convolution has a bias")
    if keys.whole("chunk_size", 128) < 1 or keys.whole("conv_kernel", 4) != 4:
        raise keys.wrong("conv_kernel", "Megatron-Core's convolution sees four tokens")
    activation(keys, "mlp_hidden_act", "relu2", ("relu2",))
    keys.assume({"num_hidden_layers": 1, "head_dim": keys.whole("attention_head_dim", 128)})
    epsilon = keys.positive("layer_norm_epsilon", keys.positive("norm_eps", 1e-5))
    found = common(keys) | {
        "num_layers": len(pattern),
        "add_bias_linear": False,
        "add_qkv_bias": False,
        "normalization": "RMSNorm",
        "norm_epsilon": keys.positive("rms_norm_eps", epsilon),
        "activation_func": "squared_relu",
        "position_embedding_type": "none",
        "hidden_dropout": keys.not_negative("hidden_dropout", 0.0),
        "hybrid_layer_pattern": pattern,
    }
    if "M" in pattern:
        found["mamba"] = _mamba(keys)
    if "E" not in pattern:
        return found
    if keys.whole("n_group", 1) != 1 or keys.whole("topk_group", 1) != 1:
        raise keys.wrong("n_group", "this family is supported without groups of experts only")
    scale = keys.positive("routed_scaling_factor", 1.0)
    keys.ignore("norm_topk_prob")  # Megatron-Core divides sigmoid scores by their sum
    extra = (("--moe-router-enable-expert-bias",), ("--moe-router-score-function", "sigmoid"))
    return (found | experts(keys, "n_routed_experts")) | {
        "moe_shared_expert_intermediate_size": count(keys, "n_shared_experts")
        * keys.whole("moe_shared_expert_intermediate_size", keys.whole("moe_intermediate_size")),
        "other_arguments": (*extra, ("--moe-router-topk-scaling-factor", f"{scale:g}")) if scale != 1.0 else extra,
    }


def _mamba(keys: Keys) -> Mamba:
    return Mamba(
        num_heads=keys.whole("mamba_num_heads"),
        head_dim=keys.whole("mamba_head_dim", 64),
        num_groups=keys.whole("n_groups", 8),
        state_dim=keys.whole("ssm_state_size", 128),
    )


@family(
    "qwen3_next",
    has_experts=True,
    num_experts=512,
    num_experts_per_tok=10,
    num_key_value_heads=2,
    head_dim=256,
    partial_rotary_factor=0.25,
    moe_intermediate_size=512,
    shared_expert_intermediate_size=512,
)
def qwen3_next(keys: Keys) -> dict[str, Any]:
    """Return the fields of Qwen3-Next: gated delta nets, gated attention in every fourth layer, experts in all."""
    keys.ignore("intermediate_size")  # of dense layers, which the model does not have
    return _delta_nets(keys) | _gated_experts(keys)


@family("qwen3_5_text", max_position_embeddings=32768, num_key_value_heads=2, head_dim=256, partial_rotary_factor=0.25)
def qwen3_5(keys: Keys) -> dict[str, Any]:
    """Return the fields of Qwen3.5: Qwen3-Next with dense MLPs and multi-token prediction."""
    return _delta_nets(keys) | _gate_and_mtp(keys)


@family(
    "qwen3_5_moe_text",
    has_experts=True,
    max_position_embeddings=32768,
    num_experts=256,
    num_experts_per_tok=8,
    num_key_value_heads=2,
    head_dim=256,
    partial_rotary_factor=0.25,
    moe_intermediate_size=512,
    shared_expert_intermediate_size=512,
)
def qwen3_5_moe(keys: Keys) -> dict[str, Any]:
    """Return the fields of Qwen3.5 MoE: experts in every layer, no dense MLP."""
    keys.assume({"intermediate_size": keys.whole("moe_intermediate_size")})
    return _delta_nets(keys) | _gated_experts(keys) | _gate_and_mtp(keys)


def _gate_and_mtp(keys: Keys) -> dict[str, Any]:
    if not keys.flag("attn_output_gate", True):
        raise keys.wrong("attn_output_gate", "this family's attention has a gate")
    if keys.flag("mtp_use_dedicated_embeddings", False):
        raise keys.wrong("mtp_use_dedicated_embeddings", "Megatron-Core's prediction depths share the embedding")
    keys.ignore("mamba_ssm_dtype")  # type of the state
    return {"mtp_num_layers": count(keys, "mtp_num_hidden_layers")}


def _gated_experts(keys: Keys) -> dict[str, Any]:
    """Return the fields of routed experts and a gated shared expert."""
    return experts(keys) | {
        "moe_shared_expert_intermediate_size": keys.whole("shared_expert_intermediate_size"),
        "moe_router_pre_softmax": not keys.flag("norm_topk_prob", True),
        "other_arguments": (("--moe-shared-expert-gate",),),
    }


def _delta_nets(keys: Keys) -> dict[str, Any]:
    """Return the fields of Qwen3-Next's attention and gated delta nets, without its MLPs."""
    layers = keys.whole("num_hidden_layers")
    if keys.value("mlp_only_layers") or keys.whole("decoder_sparse_step", 1) != 1:
        raise InputError(
            keys.where,
            "mlp_only_layers must be empty and decoder_sparse_step must be 1; other layouts of experts are not "
            "supported.",
        )
    no_attention_bias(keys)
    interval = keys.whole("full_attention_interval", 4)
    linear = windowed_layers(keys, layers, [(n + 1) % interval != 0 for n in range(layers)], "linear_attention")
    full = layer_frequency_of([not is_linear for is_linear in linear])
    net = GatedDeltaNet(
        conv_kernel_dim=keys.whole("linear_conv_kernel_dim", 4),
        key_head_dim=keys.whole("linear_key_head_dim", 128),
        value_head_dim=keys.whole("linear_value_head_dim", 128),
        num_key_heads=keys.whole("linear_num_key_heads", 16),
        num_value_heads=keys.whole("linear_num_value_heads", 32),
    )
    return llama_like(keys) | {
        "qk_layernorm": True,
        "layernorm_zero_centered_gamma": True,
        "attention_output_gate": True,
        "linear_attention_freq": full if isinstance(full, int) else tuple(map(int, linear)),
        "gated_delta_net": net if any(linear) else None,
    }

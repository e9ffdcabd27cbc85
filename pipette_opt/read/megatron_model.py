"""Model that Megatron-LM's arguments describe, with the defaults of ``megatron/training/arguments.py``."""

from collections.abc import Mapping
from typing import Any

from pipette_opt.base.errors import InputError, shown
from pipette_opt.layers.latent import LATENT_SIZES
from pipette_opt.read.megatron_layers import given_pattern, layer_list_fields
from pipette_opt.read.megatron_numbers import number, option_of, required, whole
from pipette_opt.read.tokenizers import tokenizer_of
from pipette_opt.specs import LatentAttention, ModelSpec, YarnScaling
from pipette_opt.specs.layer_patterns import layer_frequency

PASSED_ON = (
    "apply_query_key_layer_scaling",
    "apply_residual_connection_post_layernorm",
    "embedding_init_method_std",
    "init_method_xavier_uniform",
    "mtp_detach_heads",
    "mup_attn_scale_power",
    "mup_base_head_dim",
    "mup_base_hidden_size",
    "mup_embedding_mult",
    "mup_output_mult",
    "use_mup",
)
"""Options of the model that change neither time nor memory; ``export`` writes them unchanged."""

PASSED_ON_OF_EXPERTS = (
    "moe_apply_probs_on_input",
    "moe_aux_loss_coeff",
    "moe_input_jitter_eps",
    "moe_router_bias_update_rate",
    "moe_router_dtype",
    "moe_router_enable_expert_bias",
    "moe_router_load_balancing_type",
    "moe_router_score_function",
    "moe_router_topk_scaling_factor",
    "moe_shared_expert_gate",
    "moe_z_loss_coeff",
)
"""Options of experts that change neither time nor memory; ``export`` writes them unchanged."""


def _wide_layers(given: Mapping[str, Any], count: str) -> int:
    """
    Return the number of layers in 16 bits at an end of an fp8 or fp4 model.

    The default is 1 with ``first_last_layers_bf16`` of Megatron's ``TransformerConfig``, else 0.
    """
    has_recipe = not {"fp8_format", "fp4_format"}.isdisjoint(given)
    return int(given.get(count, 1)) if has_recipe and given.get("first_last_layers_bf16") else 0


def model_of_options(given: Mapping[str, Any], where: str, name: str) -> ModelSpec:
    """
    Return the model that Megatron-LM options describe.

    Parameters
    ----------
    given
        Values by option, with underscores; ``True`` for flags.
    where
        Start of every error message.
    name
        Name of the model.
    """
    hidden, heads = required(given, "hidden_size", where), required(given, "num_attention_heads", where)
    if "kv_channels" not in given and hidden % heads and not given.get("multi_latent_attention"):
        raise InputError(where, f"--num-attention-heads {heads} must divide --hidden-size {hidden}.")
    positions = given.get("max_position_embeddings") or given.get("seq_length")
    if positions is None:
        raise InputError(where, "--max-position-embeddings is missing.")
    bias = not given.get("disable_bias_linear", False)
    padded = given.get("padded_vocab_size")
    try:
        latent = _latent(given, where)
        return ModelSpec(
            name=name,
            num_layers=required(given, "num_layers", where),
            num_layers_at_start_in_bf16=_wide_layers(given, "num_layers_at_start_in_bf16"),
            num_layers_at_end_in_bf16=_wide_layers(given, "num_layers_at_end_in_bf16"),
            hidden_size=hidden,
            ffn_hidden_size=given.get("ffn_hidden_size") or _default_ffn(hidden, bool(given.get("swiglu"))),
            num_attention_heads=heads,
            num_query_groups=_query_groups(given, heads),
            kv_channels=given.get("kv_channels") or max(1, hidden // heads),
            multi_latent_attention=latent,
            vocab_size=vocab_size_of(given, where),
            max_position_embeddings=positions,
            untie_embeddings_and_output_weights=bool(given.get("untie_embeddings_and_output_weights")),
            add_bias_linear=bias,
            add_qkv_bias=bias or (bool(given.get("add_qkv_bias")) and latent is None),
            qk_layernorm=bool(given.get("qk_layernorm")),
            normalization=given.get("normalization", "LayerNorm"),
            norm_epsilon=number(given, "norm_epsilon", 1e-5, where),
            layernorm_zero_centered_gamma=bool(given.get("apply_layernorm_1p")),
            hidden_dropout=given.get("hidden_dropout", 0.1),
            attention_dropout=given.get("attention_dropout", 0.1),
            softmax_type=given.get("softmax_type", "vanilla"),
            init_method_std=number(given, "init_method_std", 0.02, where),
            other_arguments=_passed_on(given),
            make_vocab_size_divisible_by=1 if padded else given.get("make_vocab_size_divisible_by", 128),
            **_activation(given, where),
            **_positions(given, where),
            **_window(given, where),
            **_experts(given, where),
            **layer_list_fields(given, where),
            **_depths(given, where),
        )
    except InputError:
        raise
    except ValueError as error:
        raise InputError(where, str(error)) from None


def names_vocabulary(given: Mapping[str, Any]) -> bool:
    """Return whether the options give the vocabulary size, or name a tokenizer of known size."""
    return bool(given.get("padded_vocab_size") or given.get("vocab_size") or tokenizer_of(given))


def vocab_size_of(given: Mapping[str, Any], where: str) -> int:
    """Return the number of vocabulary entries, from the options or the tokenizer that they name."""
    size = given.get("padded_vocab_size") or given.get("vocab_size")
    if size:
        return int(size)
    tokenizer = tokenizer_of(given)
    if tokenizer is None:
        problem = "is missing, and no tokenizer of known size is named"
        problem = f"{problem}; give --vocab-size beside the arguments, or name the model with --model"
        raise InputError(where, f"--vocab-size (or --padded-vocab-size) {problem}.")
    return tokenizer.vocab_size


def _latent(given: Mapping[str, Any], where: str) -> LatentAttention | None:
    """
    Return the sizes of latent attention; ``None`` without ``--multi-latent-attention``.

    Positions are scaled by YaRN with its own parameters unless ``--rope-type rope`` is given
    (``MLATransformerConfig``).
    """
    if not given.get("multi_latent_attention"):
        return None
    sizes = {name: whole(given, name, None, where) for name in LATENT_SIZES if name in given}
    kind = given.get("rope_type", "yarn")
    scaling = None
    if kind == "yarn":
        plain = YarnScaling()
        scaling = YarnScaling(
            rotary_scaling_factor=number(given, "rotary_scaling_factor", plain.rotary_scaling_factor, where),
            mscale=number(given, "mscale", plain.mscale, where),
            mscale_all_dim=number(given, "mscale_all_dim", plain.mscale_all_dim, where),
        )
    return LatentAttention(**sizes, yarn=scaling)


def _query_groups(given: Mapping[str, Any], heads: int) -> int:
    return int(given.get("num_query_groups", 1)) if given.get("group_query_attention") else heads


def _passed_on(given: Mapping[str, Any]) -> tuple[tuple[str, ...], ...] | None:
    """Return the given options of ``PASSED_ON``, with values, which ``export`` writes unchanged; or ``None``."""
    names = (*PASSED_ON, *(PASSED_ON_OF_EXPERTS if given.get("num_experts") else ()))
    found: list[tuple[str, ...]] = []
    for name in names:
        value = given.get(name, False)
        if value is True:
            found.append((option_of(name),))
        elif value is not False and value != "":
            found.append((option_of(name), *map(str, value if isinstance(value, list) else [value])))
    return tuple(found) or None


def _activation(given: Mapping[str, Any], where: str) -> dict[str, Any]:
    """Return the fields of the MLP's gate and activation; squared ReLU overrides quick GEGLU, as in Megatron."""
    relu = bool(given.get("squared_relu"))
    geglu = bool(given.get("quick_geglu")) and not relu
    gated = bool(given.get("swiglu")) or geglu
    return {
        "gated_linear_unit": gated,
        "activation_func": "squared_relu" if relu else "quick_gelu" if geglu else None,
        "glu_linear_offset": number(given, "glu_linear_offset", 0.0, where) if gated else 0.0,
        "activation_func_clamp_value": number(given, "activation_func_clamp_value", None, where) if gated else None,
    }


def _positions(given: Mapping[str, Any], where: str) -> dict[str, Any]:
    """Return the fields of positions; options of rotary positions have an effect only with rotary positions."""
    kind = "rope" if given.get("use_rotary_position_embeddings") else given.get("position_embedding_type")
    kind = kind or "learned_absolute"
    if kind in ("mrope", "relative"):
        reason = {"mrope": "positions of images and video", "relative": "positions of encoder-decoder models"}[kind]
        raise InputError(where, f"--position-embedding-type {kind} is not supported: {reason}.")
    if kind not in ("rope", "yarn"):
        return {"position_embedding_type": kind}
    scaled = kind == "rope" and given.get("use_rope_scaling")
    return {
        "position_embedding_type": kind,
        "rotary_base": whole(given, "rotary_base", 10000, where),
        "rotary_percent": number(given, "rotary_percent", 1.0, where),
        "rotary_interleaved": bool(given.get("rotary_interleaved")),
        "rotary_seq_len_interpolation_factor": _interpolation(given, where),
        "rope_scaling_factor": number(given, "rope_scaling_factor", 8.0, where) if scaled else None,
        "no_rope_freq": _frequency(given, "no_rope_freq", where),
        "yarn": _yarn(given, where) if kind == "yarn" else None,
    }


def _interpolation(given: Mapping[str, Any], where: str) -> int | None:
    """Return the interpolation factor of positions; ``None`` for 1, which has no effect."""
    factor = whole(given, "rotary_seq_len_interpolation_factor", 1, where)
    return None if factor == 1 else factor


def _yarn(given: Mapping[str, Any], where: str) -> YarnScaling:
    """Return YaRN scaling without latent attention (``megatron/training/argument_utils.py``, core 0.19)."""
    unset = YarnScaling()
    return YarnScaling(
        rotary_scaling_factor=number(given, "rotary_scaling_factor", unset.rotary_scaling_factor, where),
        original_max_position_embeddings=whole(
            given, "yarn_original_max_position_embeddings", unset.original_max_position_embeddings, where
        ),
        beta_fast=number(given, "yarn_beta_fast", unset.beta_fast, where),
        beta_slow=number(given, "yarn_beta_slow", unset.beta_slow, where),
        mscale=number(given, "mscale", unset.mscale, where),
        mscale_all_dim=number(given, "mscale_all_dim", unset.mscale_all_dim, where),
        correction_range_round_to_int=not given.get("no_yarn_correction_range_round_to_int"),
    )


def _window(given: Mapping[str, Any], where: str) -> dict[str, Any]:
    """Return the fields of the attention window; empty without ``--window-size``."""
    value = given.get("window_size")
    if value is None:
        return {}
    text = value if isinstance(value, str) else ",".join(map(str, value))
    try:
        sides = () if not text.isascii() else tuple(int(side) for side in text.strip("() ").split(","))
    except ValueError:
        sides = ()
    if len(sides) != 2:
        raise InputError(where, f"--window-size must be two whole numbers such as 4095,0, got {shown(text)}.")
    return {"window_size": sides, "window_attn_skip_freq": _frequency(given, "window_attn_skip_freq", where)}


def _depths(given: Mapping[str, Any], where: str) -> dict[str, Any]:
    """Return the fields of multi-token prediction; empty without ``--mtp-num-layers``."""
    if not given.get("mtp_num_layers"):
        return {}
    return {
        "mtp_num_layers": given["mtp_num_layers"],
        "mtp_use_repeated_layer": bool(given.get("mtp_use_repeated_layer")),
        "mtp_loss_scaling_factor": number(given, "mtp_loss_scaling_factor", 0.1, where),
    }


def _experts(given: Mapping[str, Any], where: str) -> dict[str, Any]:
    """Return the fields of experts; empty for a dense model, on which options of experts have no effect."""
    if not given.get("num_experts"):
        return {}
    return {
        "num_experts": given["num_experts"],
        "moe_router_topk": given.get("moe_router_topk", 2),
        "moe_ffn_hidden_size": given.get("moe_ffn_hidden_size"),
        "moe_shared_expert_intermediate_size": given.get("moe_shared_expert_intermediate_size", 0),
        "moe_latent_size": whole(given, "moe_latent_size", None, where),
        "moe_router_num_groups": whole(given, "moe_router_num_groups", None, where),
        "moe_router_group_topk": whole(given, "moe_router_group_topk", None, where),
        "moe_router_pre_softmax": bool(given.get("moe_router_pre_softmax")),
        **({} if given_pattern(given) else _layers_with_experts(given, where)),
    }


def _layers_with_experts(given: Mapping[str, Any], where: str) -> dict[str, Any]:
    """Return the field of ``--moe-layer-freq``: experts in the first of every N layers, or a list of 0 and 1."""
    layers = given["num_layers"]
    pattern = layer_frequency(str(given.get("moe_layer_freq", "1")), "--moe-layer-freq", where)
    if isinstance(pattern, int):
        if pattern < 1:
            raise InputError(where, f"--moe-layer-freq must be >= 1, or a list, got {pattern}.")
    elif len(pattern) != layers or not {0, 1}.issuperset(pattern):
        raise InputError(
            where,
            f"--moe-layer-freq must have 0 or 1 for each of the {layers} layers, as in ([0]*1+[1]*{layers - 1}); "
            f"got {given['moe_layer_freq']!r}.",
        )
    return {"moe_layer_freq": pattern}


def _frequency(given: Mapping[str, Any], field: str, where: str) -> int | tuple[int, ...] | None:
    if field not in given:
        return None
    return layer_frequency(str(given[field]), option_of(field), where)


def _default_ffn(hidden: int, swiglu: bool) -> int:
    """
    Return the default MLP size: four times the hidden size.

    With SwiGLU it is two thirds of that, rounded down to a multiple of 64.
    """
    return int((4 * hidden * 2 / 3) / 64) * 64 if swiglu else 4 * hidden

"""Model that Megatron-LM's arguments describe, with the defaults of ``megatron/training/arguments.py``."""

from collections.abc import Mapping
from typing import Any

from pipette_opt.base.errors import InputError, made_at
from pipette_opt.read.megatron_fields import LATENT, LATENT_YARN, MODEL, WIDE, YARN, read_fields
from pipette_opt.read.megatron_layers import given_pattern, layer_list_fields
from pipette_opt.read.megatron_numbers import required
from pipette_opt.read.model_words import options_of
from pipette_opt.read.tokenizers import tokenizer_of
from pipette_opt.specs import LatentAttention, ModelSpec, YarnScaling
from pipette_opt.specs.layer_patterns import layer_frequency

DROPOUTS = {"hidden_dropout": 0.1, "attention_dropout": 0.1}
"""Megatron's defaults of the fields that have other defaults in a model."""

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
    latent, layers = _latent(given, where), required(given, "num_layers", where)
    vocabulary, bias = vocab_size_of(given, where), not given.get("disable_bias_linear")
    decided = {**_activation(given), **_positions(given, where)}
    needed = {**given, **decided, "has_rotary_positions": decided["position_embedding_type"] in ("rope", "yarn")}
    fields = {
        **DROPOUTS,
        # Four times the hidden size; with SwiGLU two thirds of that, rounded down to a multiple of 64.
        "ffn_hidden_size": int(hidden * 8 / 3 / 64) * 64 if given.get("swiglu") else 4 * hidden,
        "kv_channels": max(1, hidden // heads),
        **read_fields(MODEL, needed, where),
        **decided,
        "name": name,
        "num_layers": layers,
        "num_query_groups": int(given.get("num_query_groups", 1)) if given.get("group_query_attention") else heads,
        "multi_latent_attention": latent,
        "vocab_size": vocabulary,
        "max_position_embeddings": positions,
        "add_qkv_bias": bias or (bool(given.get("add_qkv_bias")) and latent is None),
        "other_arguments": _passed_on(given),
        **({"make_vocab_size_divisible_by": 1} if given.get("padded_vocab_size") else {}),
        **_wide_layers(given),
        **_layers_with_experts(given, where),
        **layer_list_fields(given, where),
    }
    return made_at(where, ModelSpec, **fields)


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
    sizes = read_fields(LATENT, given, where)
    is_scaled = given.get("rope_type", "yarn") == "yarn"
    yarn = made_at(where, YarnScaling, **read_fields(LATENT_YARN, given, where)) if is_scaled else None
    return made_at(where, LatentAttention, **sizes, yarn=yarn)


def _passed_on(given: Mapping[str, Any]) -> tuple[tuple[str, ...], ...] | None:
    """Return the given options of ``PASSED_ON``, with values, which ``export`` writes unchanged; or ``None``."""
    names = (*PASSED_ON, *(PASSED_ON_OF_EXPERTS if given.get("num_experts") else ()))
    values = {name: given[name] for name in names if given.get(name, "") != ""}
    options = options_of(**{name: tuple(value) if isinstance(value, list) else value for name, value in values.items()})
    return tuple(options) or None


def _activation(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of the MLP's gate and activation; squared ReLU overrides quick GEGLU, as in Megatron."""
    relu = bool(given.get("squared_relu"))
    geglu = bool(given.get("quick_geglu")) and not relu
    return {
        "gated_linear_unit": bool(given.get("swiglu")) or geglu,
        "activation_func": "squared_relu" if relu else "quick_gelu" if geglu else None,
    }


def _positions(given: Mapping[str, Any], where: str) -> dict[str, Any]:
    """Return the kind of positions, and their scaling."""
    kind = "rope" if given.get("use_rotary_position_embeddings") else given.get("position_embedding_type")
    kind = kind or "learned_absolute"
    if kind in ("mrope", "relative"):
        reason = {"mrope": "positions of images and video", "relative": "positions of encoder-decoder models"}[kind]
        raise InputError(where, f"--position-embedding-type {kind} is not supported: {reason}.")
    scaled = kind == "rope" and given.get("use_rope_scaling")
    return {
        "position_embedding_type": kind,
        "rope_scaling_factor": given.get("rope_scaling_factor", 8.0) if scaled else None,
        "yarn": made_at(where, YarnScaling, **read_fields(YARN, given, where)) if kind == "yarn" else None,
    }


def _wide_layers(given: Mapping[str, Any]) -> dict[str, int]:
    """
    Return the numbers of layers in 16 bits at the ends of an fp8 or fp4 model.

    The default is 1 with ``first_last_layers_bf16`` of Megatron's ``TransformerConfig``, else 0.
    """
    has_recipe = not {"fp8_format", "fp4_format"}.isdisjoint(given)
    is_wide = has_recipe and given.get("first_last_layers_bf16")
    return {name: int(given.get(name, 1)) if is_wide else 0 for name in WIDE}


def _layers_with_experts(given: Mapping[str, Any], where: str) -> dict[str, Any]:
    """
    Return the field of ``--moe-layer-freq``: experts in the first of every N layers, or a list of 0 and 1.

    Empty for a dense model, and for a hybrid, whose pattern says the layers.
    """
    if not given.get("num_experts") or given_pattern(given):
        return {}
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

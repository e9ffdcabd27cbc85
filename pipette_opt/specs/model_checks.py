"""Checks that the fields of a model are valid and fit together."""

import math
from dataclasses import fields
from typing import TYPE_CHECKING

from pipette_opt.layers.kinds import PATTERN_LETTERS, LayerFrequency, expert_frequency
from pipette_opt.layers.recurrent import RECURRENT_MIXERS

if TYPE_CHECKING:
    from pipette_opt.specs.model import ModelSpec

LARGEST, MAX_LAYERS = 2**31 - 1, 100_000
"""Largest accepted size, and most layers; no model has more. Chosen, so that counts and bytes stay small."""

ROTARY_FIELDS = (
    "rotary_base",
    "rotary_percent",
    "rotary_interleaved",
    "rotary_seq_len_interpolation_factor",
    "rope_scaling_factor",
    "no_rope_freq",
)
"""Fields that are only allowed with rotary positions."""


def check_model(model: "ModelSpec") -> None:
    """Raise ``ValueError`` for a field that is invalid or contradicts another field."""
    for field in (
        "num_layers",
        "hidden_size",
        "ffn_hidden_size",
        "num_attention_heads",
        "num_query_groups",
        "kv_channels",
        "vocab_size",
        "max_position_embeddings",
        "make_vocab_size_divisible_by",
    ):
        value = getattr(model, field)
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise ValueError(f"{field} must be a whole number >= 1, got {value!r}.")
        most = MAX_LAYERS if field == "num_layers" else LARGEST
        if value > most:
            raise ValueError(f"{field} must be at most {most:,}, got {value:,}.")
    ends = [getattr(model, f"num_layers_at_{end}_in_bf16") for end in ("start", "end")]
    if any(not isinstance(count, int) or isinstance(count, bool) or count < 0 for count in ends):
        raise ValueError(f"num_layers_at_start_in_bf16 and num_layers_at_end_in_bf16 must be >= 0, got {ends}.")
    if sum(ends) > model.num_layers:
        raise ValueError(f"num_layers_at_start_in_bf16 and num_layers_at_end_in_bf16, {ends}, exceed num_layers.")
    if model.num_attention_heads % model.num_query_groups:
        raise ValueError(
            f"num_query_groups must divide num_attention_heads={model.num_attention_heads}, "
            f"got {model.num_query_groups}."
        )
    for field in ("linear_attention_freq", "window_attn_skip_freq", "moe_layer_freq", "no_rope_freq"):
        _check_frequency(model, field, divides=field == "no_rope_freq")  # before anything asks for the layers
    if model.multi_latent_attention is not None:
        _check_latent(model)
    if model.sparse_attention is not None and model.multi_latent_attention is None:
        raise ValueError("sparse_attention needs multi_latent_attention, whose latents its tokens are read from.")
    if model.sparse_attention is not None and model.hybrid_layer_pattern is not None:
        raise ValueError("sparse_attention does not go with hybrid_layer_pattern, whose attention sees all tokens.")
    _check_norms(model)
    _check_lists(model)
    _check_experts(model)
    _check_mtp(model)
    for field in ("hidden_dropout", "attention_dropout"):
        if not 0.0 <= getattr(model, field) < 1.0:
            raise ValueError(f"{field} must be in [0, 1), got {getattr(model, field)}.")
    _check_activation(model)
    _check_positions(model)
    _check_window(model)
    for field in ("norm_epsilon", "init_method_std"):
        _check_positive(field, getattr(model, field))
    if model.other_arguments == () or any(not words or words[0][:2] != "--" for words in model.other_arguments or ()):
        raise ValueError(f"other_arguments must be lists that begin with an option, got {model.other_arguments}.")


def _check_lists(model: "ModelSpec") -> None:
    """Raise ``ValueError`` unless layer patterns fit the layers, and sizes of Mamba and delta nets are given."""
    pattern, linear = model.hybrid_layer_pattern, model.linear_attention_freq
    letters = pattern or ""
    if pattern is not None:
        wrong = sorted(set(letters) - set(PATTERN_LETTERS))
        if wrong or len(letters) != model.num_layers:
            raise ValueError(
                f"hybrid_layer_pattern must be {model.num_layers} letters of {' '.join(PATTERN_LETTERS)}, one for "
                f"each layer, got {len(letters)}{f' with {wrong[0]!r}' if wrong else ''}."
            )
        for field in ("linear_attention_freq", "moe_layer_freq", "window_size", "no_rope_freq"):
            if getattr(model, field) is not None:
                raise ValueError(f"{field} does not go with hybrid_layer_pattern, which sets it for each layer.")
        if model.num_dense_layers:
            raise ValueError("num_dense_layers does not go with hybrid_layer_pattern, which sets it for each layer.")
    for field, mixer in RECURRENT_MIXERS.items():
        wanted = mixer.letter in letters or (field == "gated_delta_net" and linear is not None)
        if (getattr(model, field) is not None) is not wanted:
            raise ValueError(f"{field} must be given if and only if some layer is of that kind.")
    if ("E" in letters) is not (model.num_experts is not None) and pattern is not None:
        raise ValueError("num_experts must be given if and only if hybrid_layer_pattern has an E.")


def _check_norms(model: "ModelSpec") -> None:
    """Raise ``ValueError`` unless branches have norms, ``qk_layernorm_across_heads`` and ``multipliers`` are valid."""
    if not (model.pre_norms or model.post_norms):
        raise ValueError("pre_norms=False needs post_norms=True: each branch has a norm.")
    if model.qk_layernorm_across_heads and (not model.qk_layernorm or model.multi_latent_attention is not None):
        raise ValueError("qk_layernorm_across_heads=True needs qk_layernorm=True, and no multi_latent_attention.")
    if model.multipliers == ():
        raise ValueError("multipliers must be None or set at least one factor, got no factor.")


def _check_latent(model: "ModelSpec") -> None:
    """Raise ``ValueError`` for fields that latent attention excludes: grouped queries, QKV biases, ``yarn``."""
    if model.num_query_groups != model.num_attention_heads:
        raise ValueError(
            f"multi_latent_attention has num_query_groups = num_attention_heads = {model.num_attention_heads}, "
            f"got {model.num_query_groups}."
        )
    if model.add_qkv_bias and not model.add_bias_linear:
        raise ValueError("add_qkv_bias=True does not go with multi_latent_attention, whose projections have none.")
    if model.position_embedding_type == "yarn":
        raise ValueError(
            "position_embedding_type: yarn does not go with multi_latent_attention; set its yarn field instead."
        )


def _check_mtp(model: "ModelSpec") -> None:
    """Raise ``ValueError`` unless fields of multi-token prediction are valid, and unset without ``mtp_num_layers``."""
    depths = model.mtp_num_layers
    if not isinstance(depths, int) or isinstance(depths, bool) or not 0 <= depths <= MAX_LAYERS:
        raise ValueError(f"mtp_num_layers must be a whole number from 0 to {MAX_LAYERS:,}, got {depths!r}.")
    if depths and model.position_embedding_type not in ("rope", "none"):
        raise ValueError(
            f"mtp_num_layers={depths} needs position_embedding_type rope or none, as in Megatron-LM, got "
            f"{model.position_embedding_type}."
        )
    wanted = depths > 0 and model.hybrid_layer_pattern is not None
    if (model.mtp_layer_pattern is not None) is not wanted:
        raise ValueError("mtp_layer_pattern must be given if and only if a hybrid has mtp_num_layers.")
    wrong = sorted({*(model.mtp_layer_pattern or "")} - {*(model.hybrid_layer_pattern or "")})
    if wrong or model.mtp_layer_pattern == "":
        problem = f"got {model.mtp_layer_pattern!r}"
        raise ValueError(f"mtp_layer_pattern must be of letters that hybrid_layer_pattern has, {problem}.")
    if model.mtp_use_repeated_layer and not depths:
        raise ValueError("mtp_use_repeated_layer=True needs mtp_num_layers.")
    _check_positive("mtp_loss_scaling_factor", model.mtp_loss_scaling_factor)


def _check_activation(model: "ModelSpec") -> None:
    """Raise ``ValueError`` unless the activation and its parameters fit an MLP with, or without, a gate."""
    wanted = {"squared_relu": False, "quick_gelu": True, "gelu": True, None: model.gated_linear_unit}
    if wanted.get(model.activation_func) is not model.gated_linear_unit:
        raise ValueError(
            f"activation_func={model.activation_func!r} does not go with gated_linear_unit="
            f"{model.gated_linear_unit}: squared_relu has no gate, quick_gelu and gelu have one, None either."
        )
    if not math.isfinite(model.glu_linear_offset):
        raise ValueError(f"glu_linear_offset must be a number, got {model.glu_linear_offset!r}.")
    if model.activation_func_clamp_value is not None:
        _check_positive("activation_func_clamp_value", model.activation_func_clamp_value)
    for field, neutral in (("glu_linear_offset", 0.0), ("activation_func_clamp_value", None)):
        if getattr(model, field) != neutral and not model.gated_linear_unit:
            raise ValueError(f"{field}={getattr(model, field)} needs gated_linear_unit.")


def _check_positions(model: "ModelSpec") -> None:
    """Raise ``ValueError`` unless the fields of rotary positions are valid, and unset for other positions."""
    if not model.has_rotary_positions:
        defaults = {field.name: field.default for field in fields(model)}
        for field in ROTARY_FIELDS:
            if getattr(model, field) != defaults[field]:
                raise ValueError(
                    f"{field}={getattr(model, field)} needs rotary positions, "
                    f"not position_embedding_type: {model.position_embedding_type}."
                )
    if (model.yarn is not None) is not (model.position_embedding_type == "yarn"):
        raise ValueError(
            f"yarn ({'given' if model.yarn else 'missing'}) does not go with "
            f"position_embedding_type: {model.position_embedding_type}."
        )
    if model.position_embedding_type == "yarn" and model.rope_scaling_factor is not None:
        raise ValueError(f"rope_scaling_factor={model.rope_scaling_factor} does not go with yarn.")
    base = model.rotary_base
    if not isinstance(base, int) or isinstance(base, bool) or base < 2:
        raise ValueError(f"rotary_base must be a whole number >= 2, got {base!r}.")
    if not 0.0 < model.rotary_percent <= 1.0:
        raise ValueError(f"rotary_percent must be in (0, 1], got {model.rotary_percent}.")
    factor = model.rotary_seq_len_interpolation_factor
    if factor is not None and (not isinstance(factor, int) or isinstance(factor, bool) or factor < 2):
        raise ValueError(f"rotary_seq_len_interpolation_factor must be a whole number >= 2, got {factor!r}.")
    if model.rope_scaling_factor is not None:
        _check_positive("rope_scaling_factor", model.rope_scaling_factor)


def _check_window(model: "ModelSpec") -> None:
    window = model.window_size
    if window is not None:
        whole = all(isinstance(side, int) and not isinstance(side, bool) and side >= -1 for side in window)
        if len(window) != 2 or not whole or max(window) > LARGEST:
            raise ValueError(f"window_size must be two whole numbers, -1 for no bound, got {list(window)}.")
    elif model.window_attn_skip_freq is not None:
        raise ValueError(f"window_attn_skip_freq={model.window_attn_skip_freq} needs window_size.")
    chunk = model.attention_chunk_size
    if chunk is not None and (not isinstance(chunk, int) or isinstance(chunk, bool) or not 1 <= chunk <= LARGEST):
        raise ValueError(f"attention_chunk_size must be a whole number >= 1, got {chunk!r}.")
    if chunk is not None and (window is not None or not model.has_rotary_positions):
        raise ValueError(f"attention_chunk_size={chunk} needs rotary positions, and no window_size.")


def _check_frequency(model: "ModelSpec", field: str, *, divides: bool) -> None:
    """Raise ``ValueError`` unless a layer selection is ``None``, a whole number >= 1, or 0 or 1 for every layer."""
    value: LayerFrequency = getattr(model, field)
    if isinstance(value, tuple):
        if len(value) != model.num_layers or not {0, 1}.issuperset(value):
            raise ValueError(
                f"{field} must say 0 or 1 for each of the {model.num_layers} layers, got {len(value)} numbers."
            )
    elif value is not None:
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise ValueError(f"{field} must be a whole number >= 1 or a list, got {value!r}.")
        if divides and model.num_layers % value:
            raise ValueError(f"{field}={value} must divide num_layers={model.num_layers}.")


def _check_experts(model: "ModelSpec") -> None:
    """Raise ``ValueError`` unless the fields of experts are valid, and unset without ``num_experts``."""
    for field in ("moe_shared_expert_intermediate_size", "num_dense_layers"):
        value = getattr(model, field)
        if not isinstance(value, int) or isinstance(value, bool) or value < 0:
            raise ValueError(f"{field} must be a whole number >= 0, got {value!r}.")
        if value and model.num_experts is None:
            raise ValueError(f"{field}={value} needs num_experts.")
    if model.num_experts is None:
        if model.moe_router_pre_softmax:
            raise ValueError("moe_router_pre_softmax=True needs num_experts.")
        for field in (
            "moe_ffn_hidden_size",
            "moe_layer_freq",
            "moe_latent_size",
            "moe_router_num_groups",
            "moe_router_group_topk",
        ):
            if getattr(model, field) is not None:
                raise ValueError(f"{field}={getattr(model, field)} needs num_experts.")
        return
    for field in (
        "num_experts",
        "moe_router_topk",
        "moe_ffn_hidden_size",
        "moe_latent_size",
        "moe_router_num_groups",
        "moe_router_group_topk",
    ):
        value = getattr(model, field)
        if value is None:
            continue
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise ValueError(f"{field} must be a whole number >= 1, got {value!r}.")
        if value > LARGEST:
            raise ValueError(f"{field} must be at most {LARGEST:,}, got {value:,}.")
    if model.moe_router_topk > model.num_experts:
        raise ValueError(f"moe_router_topk must be <= num_experts={model.num_experts}, got {model.moe_router_topk}.")
    _check_groups(model, model.num_experts)
    if model.num_dense_layers >= model.num_layers:
        raise ValueError(f"num_dense_layers must be < num_layers={model.num_layers}, got {model.num_dense_layers}.")
    if not model.num_moe_layers:
        raise ValueError(f"moe_layer_freq={model.moe_layer_freq} leaves no layer with experts.")
    if model.hybrid_layer_pattern is not None:
        return
    # Models with the same layers compare equal, whichever option selected the layers with experts.
    dense, freq = expert_frequency([kind.has_experts for kind in model.layers])
    object.__setattr__(model, "num_dense_layers", dense)
    object.__setattr__(model, "moe_layer_freq", freq)


def _check_groups(model: "ModelSpec", num_experts: int) -> None:
    """Raise ``ValueError`` unless expert groups are equal, and the chosen hold enough experts (``moe_utils.py``)."""
    groups, chosen = model.moe_router_num_groups, model.moe_router_group_topk
    if groups is not None and num_experts % groups:
        raise ValueError(f"moe_router_num_groups={groups} must divide num_experts={num_experts}.")
    if chosen is None:
        return
    if groups is None or chosen > groups:
        raise ValueError(f"moe_router_group_topk={chosen} must be <= moe_router_num_groups, got {groups}.")
    if model.moe_router_topk % chosen or model.moe_router_topk > chosen * (num_experts // groups):
        raise ValueError(
            f"moe_router_topk={model.moe_router_topk} must be a multiple of moe_router_group_topk={chosen}, and no "
            f"more than the {chosen * (num_experts // groups)} experts of that many groups."
        )


def _check_positive(field: str, value: float) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value) or value <= 0:
        raise ValueError(f"{field} must be a number > 0, got {value!r}.")

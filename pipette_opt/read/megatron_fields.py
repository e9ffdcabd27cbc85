"""
Table of the fields that options of Megatron-LM set, with the conversions each way.

:mod:`~pipette_opt.read.megatron_model` and :mod:`~pipette_opt.read.megatron_training` read by these rows;
:mod:`~pipette_opt.read.model_words` writes in their order. Kinds of values, and names in megatron-core, are those of
``data/megatron_options.csv``; defaults are those of the dataclasses.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

from pipette_opt.base.errors import InputError, shown
from pipette_opt.layers.latent import LATENT_SIZES
from pipette_opt.read.megatron_numbers import number, option_of, whole
from pipette_opt.specs.layer_patterns import layer_frequency, layer_list


def _window(value: Any, option: str, where: str) -> tuple[int, ...]:
    """Return the tokens before and after a token that its attention sees."""
    text = value if isinstance(value, str) else ",".join(map(str, value))
    try:
        sides = () if not text.isascii() else tuple(int(side) for side in text.strip("() ").split(","))
    except ValueError:
        sides = ()
    if len(sides) != 2:
        raise InputError(where, f"{option} must be two whole numbers such as 4095,0, got {shown(text)}.")
    return sides


class Conversion(NamedTuple):
    """
    Conversion between an option's value and a field's.

    Parameters
    ----------
    read
        Function of the option's value, the option and the place for errors; returns the field's value.
    write
        Function of the field's value, if not ``None``; returns the option's value.
    """

    read: Callable[[Any, str, str], Any] = lambda value, option, where: value
    write: Callable[[Any], Any] = lambda value: value


AS_GIVEN = Conversion()
WHOLE = Conversion(whole)
NUMBER = Conversion(number)
LAYERS = Conversion(lambda value, option, where: layer_frequency(str(value), option, where), layer_list)
WINDOW = Conversion(_window, lambda sides: ",".join(map(str, sides)))
WORDS = Conversion(lambda value, option, where: tuple(dict.fromkeys(value)))
SWITCHED_OFF = Conversion(lambda value, option, where: not value, lambda value: not value)
FACTOR = Conversion(lambda value, option, where: None if value == 1 else value)
"""Factor of which 1 has no effect."""


class Field(NamedTuple):
    """
    Field of a dataclass, and the option of Megatron-LM that sets it.

    Parameters
    ----------
    name
        Field; empty for an option whose value several fields decide.
    option
        Option with underscores; empty if it is called like the field.
    kind
        Conversion of the value.
    needs
        Field without which the option has no effect.
    unwritten
        Value without an option, besides ``None`` and ``False``.
    """

    name: str
    option: str = ""
    kind: Conversion = AS_GIVEN
    needs: str = ""
    unwritten: Any = None


SIZES = (
    Field("num_layers"),
    Field("hidden_size"),
    Field("ffn_hidden_size"),
    Field("num_attention_heads"),
    Field("kv_channels"),
)
"""Sizes of a model."""

YARN = (
    Field("rotary_scaling_factor"),
    Field("original_max_position_embeddings", "yarn_original_max_position_embeddings"),
    Field("beta_fast", "yarn_beta_fast"),
    Field("beta_slow", "yarn_beta_slow"),
    Field("mscale"),
    Field("mscale_all_dim"),
    Field("correction_range_round_to_int", "yarn_correction_range_round_to_int"),
    Field("correction_range_round_to_int", "no_yarn_correction_range_round_to_int", SWITCHED_OFF),
)
"""YaRN scaling of ``yarn`` positions, since megatron-core 0.19 (``megatron/training/argument_utils.py``)."""

LATENT_YARN = tuple(row for row in YARN if row.name in ("rotary_scaling_factor", "mscale", "mscale_all_dim"))
"""YaRN scaling in latent attention; its other fields have no argument up to 0.19 (``arguments.py``)."""

LATENT = tuple(Field(name, kind=WHOLE) for name in LATENT_SIZES)
"""Sizes of latent attention."""

BLOCKS = (
    Field("", "group_query_attention"),
    Field("num_query_groups"),
    Field("vocab_size"),
    Field("make_vocab_size_divisible_by"),
    Field("hidden_dropout"),
    Field("attention_dropout"),
    Field("init_method_std"),
    Field("untie_embeddings_and_output_weights"),
    Field("add_bias_linear", "disable_bias_linear", SWITCHED_OFF),
    Field("add_qkv_bias"),
    Field("normalization"),
    Field("norm_epsilon"),
    Field("layernorm_zero_centered_gamma", "apply_layernorm_1p"),
    Field("qk_layernorm"),
    Field("", "squared_relu"),
    Field("", "quick_geglu"),
    Field("", "swiglu"),
    Field("glu_linear_offset", needs="gated_linear_unit", unwritten=0.0),
    Field("activation_func_clamp_value", needs="gated_linear_unit"),
    Field("max_position_embeddings"),
    Field("position_embedding_type"),
    Field("rotary_base", needs="has_rotary_positions"),
    Field("rotary_percent", needs="has_rotary_positions", unwritten=1.0),
    Field("rotary_interleaved", needs="has_rotary_positions"),
    Field("rotary_seq_len_interpolation_factor", kind=FACTOR, needs="has_rotary_positions"),
    Field("", "use_rope_scaling"),
    Field("rope_scaling_factor", needs="has_rotary_positions"),
    Field("no_rope_freq", kind=LAYERS, needs="has_rotary_positions"),
)
"""Vocabulary, norms, biases, activation and positions of a model."""

WINDOWS_AND_EXPERTS = (
    Field("window_size", kind=WINDOW),
    Field("window_attn_skip_freq", kind=LAYERS, needs="window_size"),
    Field("softmax_type", unwritten="vanilla"),
    Field("num_experts", needs="num_experts"),
    Field("moe_router_topk", needs="num_experts"),
    Field("", "moe_token_dispatcher_type"),
    Field("", "moe_grouped_gemm"),
    Field("", "overlap_moe_expert_parallel_comm"),
    Field("moe_ffn_hidden_size", needs="num_experts"),
    Field("moe_shared_expert_intermediate_size", needs="num_experts", unwritten=0),
    Field("moe_latent_size", kind=WHOLE, needs="num_experts"),
    Field("moe_router_num_groups", kind=WHOLE, needs="num_experts"),
    Field("moe_router_group_topk", kind=WHOLE, needs="num_experts"),
    Field("moe_router_pre_softmax", needs="num_experts"),
    Field("", "moe_layer_freq"),
    Field("attention_output_gate"),
)
"""Windows, softmax, experts and output gates of a model."""

DEPTHS = (
    Field("mtp_num_layers", needs="mtp_num_layers"),
    Field("mtp_loss_scaling_factor", kind=NUMBER, needs="mtp_num_layers"),
    Field("mtp_use_repeated_layer", needs="mtp_num_layers"),
)
"""Multi-token prediction of a model."""

WIDE = ("num_layers_at_start_in_bf16", "num_layers_at_end_in_bf16")
"""Fields and options for the layers at the ends that stay in 16 bits."""

MODEL = (*SIZES, *BLOCKS, *WINDOWS_AND_EXPERTS, *DEPTHS)

TRAINING = (
    Field("fused_softmax", "no_masked_softmax_fusion", SWITCHED_OFF),
    Field("overlap_moe_expert_parallel_comm"),
    Field("tp_comm_overlap"),
    Field("cpu_offloading_num_layers", needs="cpu_offloading_num_layers"),
    Field("offload_modules", kind=WORDS, needs="fine_grained_activation_offloading"),
    Field("optimizer_offload_fraction", kind=NUMBER, needs="optimizer_cpu_offload"),
    Field("overlap_cpu_optimizer_d2h_h2d", needs="optimizer_cpu_offload"),
    Field("use_precision_aware_optimizer"),
    Field("main_params_dtype", needs="use_precision_aware_optimizer"),
    Field("exp_avg_dtype", needs="use_precision_aware_optimizer"),
    Field("exp_avg_sq_dtype", needs="use_precision_aware_optimizer"),
)
"""Kernels, offloading and optimizer states of a training."""


def read_fields(rows: Iterable[Field], given: Mapping[str, Any], where: str) -> dict[str, Any]:
    """
    Return the fields that the given options set.

    Options have no effect without the field that they need. ``given`` has it as an option, or beside the options.
    """
    named = [(row, row.option or row.name) for row in rows if row.name and (not row.needs or given.get(row.needs))]
    return {row.name: row.kind.read(given[name], option_of(name), where) for row, name in named if name in given}


def written_values(rows: Iterable[Field], spec: Any) -> dict[str, Any]:
    """Return the value of each option that sets a field of ``spec``; ``None`` if it is not written."""
    found: dict[str, Any] = {}
    for row in rows:
        value = getattr(spec, row.name) if row.name and (not row.needs or getattr(spec, row.needs)) else None
        is_unwritten = value is None or value == row.unwritten
        found[row.option or row.name] = None if is_unwritten else row.kind.write(value)
    return found

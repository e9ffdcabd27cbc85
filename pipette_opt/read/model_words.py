"""Options of Megatron-LM that define a model: what :mod:`~pipette_opt.read.megatron_model` reads, written."""

from collections.abc import Sequence
from itertools import islice

from pipette_opt.base.errors import InputError
from pipette_opt.layers.recurrent import RECURRENT_MIXERS
from pipette_opt.read.megatron_fields import (
    BLOCKS,
    DEPTHS,
    LATENT,
    LATENT_YARN,
    SIZES,
    WIDE,
    WINDOWS_AND_EXPERTS,
    YARN,
    written_values,
)
from pipette_opt.read.megatron_layers import MIXER_OPTIONS
from pipette_opt.read.megatron_numbers import option_of
from pipette_opt.specs import LatentAttention, ModelSpec, TrainingSpec
from pipette_opt.specs.layer_patterns import layer_list

Option = tuple[str, ...]
"""An option and its values."""


def options_of(**values: object) -> list[Option]:
    """
    Return options named as the arguments: ``True`` gives a flag, ``None`` and ``False`` give nothing.

    Items of a tuple are words of their own. A text that begins like an option follows ``=``.
    """
    found: list[Option] = []
    for name, value in values.items():
        option = option_of(name)
        if value is True:
            found.append((option,))
        elif isinstance(value, tuple):
            found.append((option, *map(str, value)))
        elif isinstance(value, str) and value.startswith("-"):
            found.append((f"{option}={value}",))
        elif value is not None and value is not False:
            found.append((option, str(value)))
    return found


def model_options(
    model: ModelSpec, training: TrainingSpec, layers_per_chunk: Sequence[Sequence[int]] | None = None
) -> list[Option]:
    """
    Return the options that define the model.

    ``layers_per_chunk`` holds the layers of each pipeline chunk; bars separate the chunks in the pattern of a hybrid
    model.
    """
    if model.add_bias_linear and not model.add_qkv_bias:
        raise InputError(
            "model",
            "has biases in all linear layers except the query-key-value projection, which Megatron-LM cannot express.",
        )
    if model.activation_func == "gelu":
        raise InputError("activation_func", "is gelu with a gate, which Megatron-LM has no argument for.")
    check_chunks(model, training)
    return [
        *options_of(**written_values(SIZES, model)),
        *_latent_options(model.multi_latent_attention),
        *options_of(**written_values(BLOCKS, model) | _block_values(model, training)),
        *([] if model.yarn is None else options_of(**written_values(YARN, model.yarn))),
        *options_of(**written_values(WINDOWS_AND_EXPERTS, model) | _expert_values(model, training)),
        *options_of(**layer_list_values(model, layers_per_chunk)),
        *options_of(**written_values(DEPTHS, model), **_wide_values(model, training)),
        *(model.other_arguments or ()),
    ]


def _latent_options(latent: LatentAttention | None) -> list[Option]:
    """
    Return the options of latent attention; empty without it.

    ``--rope-type`` is set because Megatron-LM's default is ``yarn``.
    """
    if latent is None:
        return []
    scaling = {"rope_type": "rope"} if latent.yarn is None else written_values(LATENT_YARN, latent.yarn)
    return options_of(multi_latent_attention=True, **written_values(LATENT, latent), **scaling)


def _block_values(model: ModelSpec, training: TrainingSpec) -> dict[str, object]:
    """Return the options that several fields decide; positions other than learned ones cover at least a sequence."""
    grouped = model.num_query_groups < model.num_attention_heads
    is_learned = model.position_embedding_type == "learned_absolute"
    return {
        "group_query_attention": grouped,
        "num_query_groups": model.num_query_groups if grouped else None,
        "add_qkv_bias": model.add_qkv_bias and not model.add_bias_linear,
        "squared_relu": model.activation_func == "squared_relu",
        "quick_geglu": model.activation_func == "quick_gelu",
        "swiglu": model.activation_func is None and model.gated_linear_unit,
        "max_position_embeddings": max(model.max_position_embeddings, 0 if is_learned else training.seq_length),
        "use_rope_scaling": model.rope_scaling_factor is not None,
    }


def check_chunks(model: ModelSpec, training: TrainingSpec) -> None:
    """Raise ``InputError`` for attention chunks shorter than a sequence, which megatron-core does not support."""
    if model.attention_chunk_size is not None and model.attention_chunk_size < training.seq_length:
        problem = f"is {model.attention_chunk_size}, for which Megatron-Core has no option, but sequences have"
        raise InputError("attention_chunk_size", f"{problem} {training.seq_length} tokens.")


def _expert_values(model: ModelSpec, training: TrainingSpec) -> dict[str, object]:
    """Return the options of sending tokens to experts, and of the layers that have experts; empty for a dense model."""
    if model.num_experts is None:
        return {}
    periodic = model.num_moe_layers < model.num_layers and model.hybrid_layer_pattern is None
    every = model.moe_layer_freq
    layers = every if isinstance(every, int) else tuple(int(kind.has_experts) for kind in model.layers)
    return {
        "moe_token_dispatcher_type": training.moe_token_dispatcher_type,
        "moe_grouped_gemm": True,
        "overlap_moe_expert_parallel_comm": training.overlap_moe_expert_parallel_comm,
        "moe_layer_freq": layer_list(layers) if periodic else None,
    }


def layer_list_values(model: ModelSpec, layers_per_chunk: Sequence[Sequence[int]] | None) -> dict[str, object]:
    """
    Return the options of hybrid and linear-attention layers, with their sizes; ``None`` for those without a value.

    ``InputError`` for a kind of layer that megatron-core lacks.
    """
    for kind in model.layers:
        if kind.mixer in RECURRENT_MIXERS and kind.mixer not in MIXER_OPTIONS:
            raise InputError("model", f"has layers of kind {kind.mixer}, which Megatron-LM does not have.")
    pattern, linear = model.hybrid_layer_pattern, model.linear_attention_freq
    chunks = [[model.num_layers]] if layers_per_chunk is None else layers_per_chunk
    depths = model.mtp_num_layers * f"/{model.mtp_layer_pattern}"
    mixers = [(options.fields, getattr(model, name)) for name, options in MIXER_OPTIONS.items()]
    sizes = [written_values(rows, mixer) for rows, mixer in mixers if mixer is not None]
    return {
        "hybrid_layer_pattern": None if pattern is None else barred_pattern(pattern, chunks) + depths,
        "spec": None if pattern is None else ("megatron.core.models.hybrid.hybrid_layer_specs", "hybrid_stack_spec"),
        "experimental_attention_variant": _attention_variant(model),
        "linear_attention_freq": None if linear is None else layer_list(linear),
        **{option: value for values in sizes for option, value in values.items()},
    }


def _attention_variant(model: ModelSpec) -> str | None:
    """Return the value of ``--experimental-attention-variant``; ``None`` without, or if a pattern says the kinds."""
    if model.hybrid_layer_pattern is not None:
        return None
    found = (options.variants for name, options in MIXER_OPTIONS.items() if getattr(model, name) is not None)
    return next((variants[0] for variants in found if variants), None)


def barred_pattern(pattern: str, layers_per_chunk: Sequence[Sequence[int]]) -> str:
    """Return the layer pattern of a hybrid model with bars between the pipeline chunks, in model order."""
    letters = iter(pattern)
    return "|".join("".join(islice(letters, count)) for chunk in layers_per_chunk for count in chunk)


def _wide_values(model: ModelSpec, training: TrainingSpec) -> dict[str, object]:
    """Return the options of first and last layers in bf16; empty unless other layers use fp8 or fp4."""
    wide = {name: getattr(model, name) for name in WIDE}
    return {} if training.recipe is None or not any(wide.values()) else {"first_last_layers_bf16": True, **wide}

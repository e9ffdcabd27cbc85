"""Options of Megatron-LM that define a model: what :mod:`~pipette_opt.read.megatron_model` reads, written."""

from collections.abc import Sequence
from itertools import islice

from pipette_opt.base.errors import InputError
from pipette_opt.layers.latent import LATENT_SIZES
from pipette_opt.layers.recurrent import RECURRENT_MIXERS
from pipette_opt.read.megatron_layers import MIXER_OPTIONS
from pipette_opt.specs import LatentAttention, ModelSpec, TrainingSpec, YarnScaling
from pipette_opt.specs.layer_patterns import layer_list

Option = tuple[str, ...]
"""An option and its values."""


def options_of(**values: object) -> list[Option]:
    """Return options named as the arguments: ``True`` gives a flag, ``None`` and ``False`` give nothing."""
    named = [(f"--{name.replace('_', '-')}", value) for name, value in values.items()]
    return [
        (name,) if value is True else (name, str(value))
        for name, value in named
        if value is not None and value is not False
    ]


def model_options(
    model: ModelSpec, training: TrainingSpec, layers_per_chunk: Sequence[Sequence[int]] | None = None
) -> list[Option]:
    """
    Return the options that define the model.

    ``layers_per_chunk`` holds the layers of each pipeline chunk; bars separate the chunks in the pattern of a hybrid
    model.
    """
    return [
        *_shape_options(model),
        *_norm_options(model),
        *_activation_options(model),
        *_position_options(model, training),
        *_window_options(model, training),
        *_expert_options(model, training),
        *_layer_list_options(model, layers_per_chunk),
        *_mtp_options(model),
        *_wide_options(model, training),
        *(model.other_arguments or ()),
    ]


def _shape_options(model: ModelSpec) -> list[Option]:
    """Return the options of sizes, dropout, biases and tied embeddings."""
    if model.add_bias_linear and not model.add_qkv_bias:
        raise InputError(
            "model",
            "has biases in all linear layers except the query-key-value projection, which Megatron-LM cannot express.",
        )
    options = options_of(
        num_layers=model.num_layers,
        hidden_size=model.hidden_size,
        ffn_hidden_size=model.ffn_hidden_size,
        num_attention_heads=model.num_attention_heads,
        kv_channels=model.kv_channels,
    )
    if model.multi_latent_attention is not None:
        options += _latent_options(model.multi_latent_attention)
    grouped = model.num_query_groups < model.num_attention_heads
    return options + options_of(
        group_query_attention=grouped,
        num_query_groups=model.num_query_groups if grouped else None,
        vocab_size=model.vocab_size,
        make_vocab_size_divisible_by=model.make_vocab_size_divisible_by,
        hidden_dropout=model.hidden_dropout,
        attention_dropout=model.attention_dropout,
        init_method_std=model.init_method_std,
        untie_embeddings_and_output_weights=model.untie_embeddings_and_output_weights,
        disable_bias_linear=not model.add_bias_linear,
        add_qkv_bias=model.add_qkv_bias and not model.add_bias_linear,
    )


def _latent_options(latent: LatentAttention) -> list[Option]:
    """Return the options of latent attention; ``--rope-type`` is set because Megatron-LM's default is ``yarn``."""
    options = options_of(multi_latent_attention=True, **{name: getattr(latent, name) for name in LATENT_SIZES})
    if latent.yarn is None:
        return options + options_of(rope_type="rope")
    return options + options_of(
        rotary_scaling_factor=latent.yarn.rotary_scaling_factor,
        mscale=latent.yarn.mscale,
        mscale_all_dim=latent.yarn.mscale_all_dim,
    )


def _norm_options(model: ModelSpec) -> list[Option]:
    return options_of(
        normalization=model.normalization,
        norm_epsilon=model.norm_epsilon,
        apply_layernorm_1p=model.layernorm_zero_centered_gamma,
        qk_layernorm=model.qk_layernorm,
    )


def _activation_options(model: ModelSpec) -> list[Option]:
    if model.activation_func == "gelu":
        raise InputError("activation_func", "is gelu with a gate, which Megatron-LM has no argument for.")
    return options_of(
        squared_relu=model.activation_func == "squared_relu",
        quick_geglu=model.activation_func not in (None, "squared_relu"),
        swiglu=model.activation_func is None and model.gated_linear_unit,
        glu_linear_offset=model.glu_linear_offset or None,
        activation_func_clamp_value=model.activation_func_clamp_value,
    )


def _position_options(model: ModelSpec, training: TrainingSpec) -> list[Option]:
    """Return the options of position embeddings; positions other than learned ones cover at least a sequence."""
    positions = model.max_position_embeddings
    if model.position_embedding_type != "learned_absolute":
        positions = max(positions, training.seq_length)
    options = options_of(max_position_embeddings=positions, position_embedding_type=model.position_embedding_type)
    if not model.has_rotary_positions:
        return options
    options += options_of(
        rotary_base=model.rotary_base,
        rotary_percent=model.rotary_percent if model.rotary_percent != 1.0 else None,
        rotary_interleaved=model.rotary_interleaved,
        rotary_seq_len_interpolation_factor=model.rotary_seq_len_interpolation_factor,
        use_rope_scaling=model.rope_scaling_factor is not None,
        rope_scaling_factor=model.rope_scaling_factor,
        no_rope_freq=None if model.no_rope_freq is None else layer_list(model.no_rope_freq),
    )
    return [*options, *_yarn_options(model.yarn)]


def _yarn_options(yarn: YarnScaling | None) -> list[Option]:
    """Return the options of YaRN scaling, which Megatron-LM has since megatron-core 0.19; empty without scaling."""
    if yarn is None:
        return []
    rounded = "" if yarn.correction_range_round_to_int else "no_"
    return options_of(
        rotary_scaling_factor=yarn.rotary_scaling_factor,
        yarn_original_max_position_embeddings=yarn.original_max_position_embeddings,
        yarn_beta_fast=yarn.beta_fast,
        yarn_beta_slow=yarn.beta_slow,
        mscale=yarn.mscale,
        mscale_all_dim=yarn.mscale_all_dim,
        **{f"{rounded}yarn_correction_range_round_to_int": True},
    )


def check_chunks(model: ModelSpec, training: TrainingSpec) -> None:
    """Raise ``InputError`` for attention chunks shorter than a sequence, which megatron-core does not support."""
    if model.attention_chunk_size is not None and model.attention_chunk_size < training.seq_length:
        problem = f"is {model.attention_chunk_size}, for which Megatron-Core has no option, but sequences have"
        raise InputError("attention_chunk_size", f"{problem} {training.seq_length} tokens.")


def _window_options(model: ModelSpec, training: TrainingSpec) -> list[Option]:
    """Return the options of attention windows and of the softmax."""
    check_chunks(model, training)
    options: list[Option] = []
    if model.window_size is not None:
        sides = ",".join(map(str, model.window_size))
        options.append((f"--window-size={sides}",) if sides.startswith("-") else ("--window-size", sides))
    skipped = model.window_attn_skip_freq
    return options + options_of(
        window_attn_skip_freq=None if skipped is None else layer_list(skipped),
        softmax_type=model.softmax_type if model.softmax_type != "vanilla" else None,
    )


def _expert_options(model: ModelSpec, training: TrainingSpec) -> list[Option]:
    """Return the options of routed and shared experts, and of the layers that have them; empty for a dense model."""
    if model.num_experts is None:
        return []
    periodic = model.num_moe_layers < model.num_layers and model.hybrid_layer_pattern is None
    return options_of(
        num_experts=model.num_experts,
        moe_router_topk=model.moe_router_topk,
        moe_token_dispatcher_type=training.moe_token_dispatcher_type,
        moe_grouped_gemm=True,
        overlap_moe_expert_parallel_comm=training.overlap_moe_expert_parallel_comm,
        moe_ffn_hidden_size=model.moe_ffn_hidden_size,
        moe_shared_expert_intermediate_size=model.moe_shared_expert_intermediate_size or None,
        moe_latent_size=model.moe_latent_size,
        moe_router_num_groups=model.moe_router_num_groups,
        moe_router_group_topk=model.moe_router_group_topk,
        moe_router_pre_softmax=model.moe_router_pre_softmax,
        moe_layer_freq=layer_list(_layers_with_experts(model)) if periodic else None,
    )


def _layer_list_options(model: ModelSpec, layers_per_chunk: Sequence[Sequence[int]] | None) -> list[Option]:
    """Return the options of hybrid and linear-attention layers, with their sizes."""
    options = options_of(attention_output_gate=model.attention_output_gate)
    if model.hybrid_layer_pattern is not None:
        chunks = [[model.num_layers]] if layers_per_chunk is None else layers_per_chunk
        depths = model.mtp_num_layers * f"/{model.mtp_layer_pattern}"
        text = barred_pattern(model.hybrid_layer_pattern, chunks) + depths
        options += [
            (f"--hybrid-layer-pattern={text}",) if text.startswith("-") else ("--hybrid-layer-pattern", text),
            ("--spec", "megatron.core.models.hybrid.hybrid_layer_specs", "hybrid_stack_spec"),
        ]
    linear = model.linear_attention_freq
    return options + options_of(
        experimental_attention_variant=attention_variant(model),
        linear_attention_freq=None if linear is None else layer_list(linear),
        **mixer_sizes(model),
    )


def attention_variant(model: ModelSpec) -> str | None:
    """Return the value of ``--experimental-attention-variant``; ``None`` without, or if a pattern says the kinds."""
    if model.hybrid_layer_pattern is not None:
        return None
    found = (options.variants for name, options in MIXER_OPTIONS.items() if getattr(model, name) is not None)
    return next((variants[0] for variants in found if variants), None)


def mixer_sizes(model: ModelSpec) -> dict[str, int | float]:
    """
    Return the sizes of mixers with a field of their own, and coefficients that are not 0, by megatron-core's names.
    ``InputError`` for a kind that it lacks.
    """
    for kind in model.layers:
        if kind.mixer in RECURRENT_MIXERS and kind.mixer not in MIXER_OPTIONS:
            raise InputError("model", f"has layers of kind {kind.mixer}, which Megatron-LM does not have.")
    found: dict[str, int | float] = {}
    for name, options in MIXER_OPTIONS.items():
        sizes = getattr(model, name)
        if sizes is not None:
            numbers = {option: getattr(sizes, field) for option, field in options.coefficients.items()}
            found |= {option: getattr(sizes, field) for option, field in options.fields.items()}
            found |= {option: number for option, number in numbers.items() if number}
    return found


def barred_pattern(pattern: str, layers_per_chunk: Sequence[Sequence[int]]) -> str:
    """Return the layer pattern of a hybrid model with bars between the pipeline chunks, in model order."""
    letters = iter(pattern)
    return "|".join("".join(islice(letters, count)) for chunk in layers_per_chunk for count in chunk)


def _layers_with_experts(model: ModelSpec) -> int | tuple[int, ...]:
    """Return the value of ``--moe-layer-freq``: N if every N-th layer has experts, else 0 or 1 for each layer."""
    if isinstance(model.moe_layer_freq, int):
        return model.moe_layer_freq
    return tuple(int(kind.has_experts) for kind in model.layers)


def _wide_options(model: ModelSpec, training: TrainingSpec) -> list[Option]:
    """Return the options of first and last layers in bf16; empty unless other layers use fp8 or fp4."""
    first, last = model.num_layers_at_start_in_bf16, model.num_layers_at_end_in_bf16
    if training.recipe is None or not first + last:
        return []
    return options_of(first_last_layers_bf16=True, num_layers_at_start_in_bf16=first, num_layers_at_end_in_bf16=last)


def _mtp_options(model: ModelSpec) -> list[Option]:
    """Return the options of multi-token prediction; empty without it."""
    if not model.mtp_num_layers:
        return []
    return options_of(
        mtp_num_layers=model.mtp_num_layers,
        mtp_loss_scaling_factor=model.mtp_loss_scaling_factor,
        mtp_use_repeated_layer=model.mtp_use_repeated_layer,
    )

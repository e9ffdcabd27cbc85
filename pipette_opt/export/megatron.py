"""
Arguments of an unmodified Megatron-LM ``pretrain_gpt.py`` that run a plan.

Names and defaults are those of ``megatron/training/arguments.py`` beside megatron-core 0.16.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import fields
from itertools import islice

from pipette_opt.base.errors import InputError
from pipette_opt.candidates.splits import is_megatron_split, pipeline_split_options
from pipette_opt.export.checks import check_megatron_can, context_levels, expert_tensor_size, refuse_operations
from pipette_opt.export.extra_arguments import divided_by_torch, left_out_lines
from pipette_opt.export.recorded import recorded_model, recorded_training, refuse_unwritten
from pipette_opt.export.shell import SOURCED, array_lines, comment
from pipette_opt.export.training_options import (
    Option,
    further_options,
    offload_options,
    options_of,
    precision_options,
)
from pipette_opt.layers.latent import LATENT_SIZES
from pipette_opt.layers.recurrent import RECURRENT_MIXERS
from pipette_opt.parallel.layout import layout_of
from pipette_opt.parallel.recompute import CORE
from pipette_opt.plans.plan import Plan
from pipette_opt.plans.releases import release_words
from pipette_opt.read.megatron_layers import MIXER_OPTIONS
from pipette_opt.read.megatron_table import options_of_field
from pipette_opt.specs import LatentAttention, ModelSpec, TrainingSpec, YarnScaling
from pipette_opt.specs.layer_patterns import layer_list

TRIAL_ITERATIONS = 20

MEGATRON_ROPE_SCALING_FACTOR = 8.0
"""Factor of Llama 3's frequency scaling that ``GPTModel`` uses by default."""

TRAINING_FIELDS = (
    "precision",
    "accumulate_allreduce_grads_in_fp32",
    "attention_kernel",
    "fp8",
    "fp8_recipe",
    "fp4",
    "fp8_param_gather",
    "optimizer",
    "tp_comm_overlap",
    "cp_comm_type",
    "cpu_offloading_num_layers",
    "offload_modules",
    "optimizer_offload_fraction",
    "overlap_cpu_optimizer_d2h_h2d",
    "cuda_graph",
    "cuda_graph_modules",
    "fused_softmax",
    "moe_token_dispatcher_type",
    "moe_flex_dispatcher_backend",
    "moe_flex_dispatcher_num_sms",
    "overlap_moe_expert_parallel_comm",
    "use_precision_aware_optimizer",
    "main_params_dtype",
    "exp_avg_dtype",
    "exp_avg_sq_dtype",
)
MISSING_MODEL_FIELDS = (
    "parallel_residual",
    "pre_norms",
    "post_norms",
    "qk_layernorm_across_heads",
    "local_rotary_base",
    "multipliers",
)
"""Fields of a model that Megatron-Core's layers do not support."""

MODEL_FIELDS = tuple(field.name for field in fields(ModelSpec) if field.name not in MISSING_MODEL_FIELDS)
"""Fields of a model that Megatron-LM's arguments express."""

CONFIG_FIELDS = (
    "context_parallel_size",
    "context_a2a_size",
    "expert_model_parallel_size",
    "virtual_pipeline_model_parallel_size",
    "pipeline_model_parallel_layout",
    "sequence_parallel",
    "recompute_granularity",
    "recompute_method",
    "recompute_num_layers",
    "recompute_modules",
    "use_distributed_optimizer",
    "zero_stage",
    "num_distributed_optimizer_instances",
    "outer_dp_sharding_strategy",
    "expert_tensor_parallel_size",
    "overlap_grad_reduce",
    "overlap_param_gather",
    "ddp_bucket_size",
    "overlap_p2p_communication",
    "offload",
    "tp_comm_overlap",
)


def export_megatron(plan: Plan) -> dict[str, str]:
    """Return a bash file with the arrays ``MEGATRON_ARGS`` (the plan) and ``TRIAL_ARGS`` (a trial run on mock data)."""
    return arguments_file(plan)


def arguments_file(plan: Plan) -> dict[str, str]:
    """Return ``megatron_args.sh``, which other formats add to their files."""
    return {"megatron_args.sh": f"#!/bin/bash\n{SOURCED}\n{argument_arrays(plan)}"}


def argument_arrays(plan: Plan) -> str:
    """Return bash lines that define ``MEGATRON_ARGS`` and ``TRIAL_ARGS``, an option per line."""
    release = release_words(plan.config, recorded_model(plan).num_query_groups)
    lines = [
        comment(f"{plan.config.label()}, global batch {plan.global_batch_size}, {plan.p2p} sends."),
        *([comment(f"Needs {release}.")] if release else []),
        *[comment(note) for note in builder_notes(recorded_model(plan))],
        *[comment(line) for line in left_out_lines(recorded_training(plan), plan.config)],
        *array_lines("MEGATRON_ARGS", [list(option) for option in megatron_options(plan)]),
        comment("Data, tokenizer and schedule of a trial run; a real job brings its own instead."),
        *array_lines("TRIAL_ARGS", [list(option) for option in trial_options(plan)]),
    ]
    return "\n".join(lines) + "\n"


def megatron_arguments(plan: Plan) -> list[str]:
    """Return the plan as a flat list of arguments; raise ``InputError`` if Megatron-LM cannot express the plan."""
    return [word for option in megatron_options(plan) for word in option]


def megatron_options(plan: Plan) -> list[Option]:
    """Return the plan's options: degrees, batch, recomputation, offload, architecture and precision."""
    model, training = recorded_model(plan), recorded_training(plan)
    for spec, written in ((model, MODEL_FIELDS), (training, TRAINING_FIELDS), (plan.config, CONFIG_FIELDS)):
        refuse_unwritten("Megatron-LM", spec, written)
    options = [
        *_parallel_options(plan, model),
        *options_of(
            micro_batch_size=plan.config.micro_batch_size,
            global_batch_size=plan.global_batch_size,
            seq_length=training.seq_length,
        ),
        *model_options(model, training, plan.config.layers_per_chunk if model.hybrid_layer_pattern else None),
        *precision_options(training, plan.config),
        *offload_options(training, plan.config),
    ]
    return [*options, *further_options(training, plan.config, options)]


def builder_notes(model: ModelSpec) -> list[str]:
    """
    Return notes on arguments that some releases of Megatron-LM read but do not pass to the model.

    Up to core 0.18 ``gpt_builders.py`` omits the factor of Llama 3's frequency scaling and the interpolation factor;
    ``gpt_config_from_args`` of 0.19 (``megatron/training/argument_utils.py``) omits the former. ``GPTModel`` then uses
    8, or no interpolation. Positions of type ``yarn`` are an argument since 0.19.
    """
    notes = []
    if model.rope_scaling_factor not in (None, MEGATRON_ROPE_SCALING_FACTOR):
        notes.append(
            f"Megatron-LM up to 0.19 reads --rope-scaling-factor {model.rope_scaling_factor} but uses "
            f"{MEGATRON_ROPE_SCALING_FACTOR}: pass it to GPTModel (rope_scaling_factor) where your script builds the "
            "model."
        )
    if model.rotary_seq_len_interpolation_factor is not None:
        notes.append(
            "Megatron-LM up to 0.18 reads --rotary-seq-len-interpolation-factor and ignores it: pass it to GPTModel "
            "(seq_len_interpolation_factor) where your script builds the model."
        )
    if model.hybrid_layer_pattern is not None:
        notes.append(
            "Hybrids have a program of their own: PRETRAIN=pretrain_hybrid.py (pretrain_mamba.py up to core 0.17)."
        )
    if model.yarn is not None:
        notes.append("--position-embedding-type yarn needs Megatron-LM 0.19.")
    if model.multi_latent_attention is not None and model.multi_latent_attention.yarn is not None:
        scaling, plain = model.multi_latent_attention.yarn, YarnScaling()
        unwritten = {name: getattr(scaling, name) for name in YARN_WITHOUT_OPTIONS}
        differing = [f"{name}={value}" for name, value in unwritten.items() if value != getattr(plain, name)]
        if differing:
            notes.append(
                f"Megatron-LM has no arguments for {', '.join(differing)} of latent attention: pass them to "
                "MLATransformerConfig where your script builds the configuration."
            )
    return notes


YARN_WITHOUT_OPTIONS = ("original_max_position_embeddings", "beta_fast", "beta_slow")
"""Fields of the YaRN scaling in latent attention that have no argument in Megatron-LM up to 0.19 (``arguments.py``)."""


def trial_options(plan: Plan) -> list[Option]:
    """
    Return the options of a short run on mock data, with the vocabulary of the plan.

    Megatron's ``NullTokenizer`` adds an end-of-document token to ``--vocab-size``.
    """
    return options_of(
        mock_data=True,
        tokenizer_type="NullTokenizer",
        vocab_size=recorded_model(plan).vocab_size - 1,
        train_iters=TRIAL_ITERATIONS,
        eval_iters=0,
        lr="1e-4",
        log_interval=1,
        log_throughput=True,
    )


def with_iterations(files: Mapping[str, str], number: int) -> dict[str, str]:
    """Return exported files whose trial run has this number of iterations instead of ``TRIAL_ITERATIONS``."""
    found = re.compile(rf"(--train-iters |train\.train_iters=){TRIAL_ITERATIONS}\b")
    return {name: found.sub(rf"\g<1>{number}", text) for name, text in files.items()}


def layout_options(plan: Plan) -> dict[str, str | int | bool]:
    """
    Return the layers and chunks of each stage as fields of megatron-core; empty for equal stages without chunks.

    Megatron-core has three ways to express them:

    - count the embedding or the head as a layer (``account_for_embedding_in_pipeline_split``);
    - set the numbers of layers of the first and the last stage (``num_layers_in_first_pipeline_stage``);
    - for all other splits set ``pipeline_model_parallel_layout``: chunks in model order, ``E`` the embedding, ``t`` a
      layer, ``m`` a depth of multi-token prediction, ``L`` the head
      (``megatron/core/transformer/pipeline_parallel_layer_layout.py``). The layout also sets the number of chunks.
    """
    layers, chunks = plan.config.layers_per_stage, plan.config.num_chunks
    if plan.config.pipeline_model_parallel_layout is not None or not is_megatron_split(sum(layers), layers):
        depths = recorded_model(plan).mtp_num_layers
        return {"pipeline_model_parallel_layout": layout_of(plan.config.layers_per_chunk, depths)}
    options: dict[str, str | int | bool] = {}
    if chunks > 1:
        options["virtual_pipeline_model_parallel_size"] = chunks
    counted = {
        "account_for_embedding_in_pipeline_split": plan.config.counts_embedding,
        "account_for_loss_in_pipeline_split": plan.config.counts_loss,
    }
    if any(counted.values()):
        return options | {name: True for name, counts in counted.items() if counts}
    first, last = pipeline_split_options(layers)
    if first is not None:
        options["num_layers_in_first_pipeline_stage"] = first
    if last is not None:
        options["num_layers_in_last_pipeline_stage"] = last
    return options


def _parallel_options(plan: Plan, model: ModelSpec) -> list[Option]:
    config = plan.config
    check_megatron_can("Megatron-LM", plan, most_sharded=3)
    expert_size = expert_tensor_size(plan, model.num_experts)
    options = options_of(
        tensor_model_parallel_size=config.tensor_model_parallel_size,
        pipeline_model_parallel_size=config.pipeline_model_parallel_size,
        context_parallel_size=config.context_parallel_size,
    )
    sizes = context_levels(recorded_training(plan), config)
    if sizes is not None:
        options.append(("--hierarchical-context-parallel-sizes", *map(str, sizes)))
    expert_ranks = config.expert_model_parallel_size
    options += options_of(
        expert_model_parallel_size=expert_ranks if expert_ranks > 1 else None, expert_tensor_parallel_size=expert_size
    )
    layout = {} if model.hybrid_layer_pattern else layout_options(plan)
    options += options_of(**{option.field: layout[name] for name in layout for option in options_of_field(name) or ()})
    options += options_of(
        use_tp_pp_dp_mapping=plan.placement.order == "tp-cp-ep-pp-dp", sequence_parallel=config.sequence_parallel
    )
    if not divided_by_torch(recorded_training(plan), config):
        options += options_of(use_distributed_optimizer=config.use_distributed_optimizer) + _overlap_options(plan)
    if config.recompute_granularity == "full":
        options += options_of(
            recompute_granularity="full",
            recompute_method=config.recompute_method,
            recompute_num_layers=config.recompute_num_layers,
        )
    elif config.recompute_granularity == "selective":
        refuse_operations(config)
        options.append(("--recompute-granularity", "selective"))
        if config.recompute_modules != CORE:
            options.append(("--recompute-modules", *config.recompute_modules))
    return options


def _overlap_options(plan: Plan) -> list[Option]:
    """Return the options of sharding, and of communication that overlaps with compute."""
    config = plan.config
    sharded, groups = config.sharding_stage > 1, config.num_distributed_optimizer_instances
    options: list[Option] = []
    if sharded:
        options = options_of(
            use_megatron_fsdp=True,
            data_parallel_sharding_strategy=config.data_parallel_sharding_strategy,
            ckpt_format="fsdp_dtensor",  # the one that it has (validate_args)
            outer_dp_sharding_strategy=config.outer_dp_sharding_strategy
            if groups > 1 and config.state_groups > 1
            else None,
        )
    return options + options_of(
        num_distributed_optimizer_instances=groups if groups > 1 else None,
        overlap_grad_reduce=config.overlap_grad_reduce or sharded,
        overlap_param_gather=config.overlap_param_gather or sharded,
        ddp_bucket_size=config.ddp_bucket_size,
        no_overlap_p2p_communication=config.num_chunks > 1 and not config.overlap_p2p_communication,
        tp_comm_overlap=config.tp_comm_overlap,
    )


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

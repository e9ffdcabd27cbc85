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
from pipette_opt.export.checks import check_megatron_can, context_levels, expert_tensor_size
from pipette_opt.export.extra_arguments import divided_by_torch, left_out_lines
from pipette_opt.export.recorded import recorded_model, recorded_training, refuse_unwritten
from pipette_opt.export.shell import SOURCED, array_lines, comment
from pipette_opt.export.training_options import further_options, offload_options, precision_options
from pipette_opt.layers.latent import LATENT_SIZES
from pipette_opt.layers.recurrent import RECURRENT_MIXERS
from pipette_opt.parallel.layout import layout_of
from pipette_opt.parallel.recompute import CORE
from pipette_opt.plans.plan import Plan
from pipette_opt.read.megatron_layers import MIXER_OPTIONS
from pipette_opt.specs import LatentAttention, ModelSpec, TrainingSpec, YarnScaling
from pipette_opt.specs.layer_patterns import layer_list

Option = tuple[str, ...]
"""An option and its values."""

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
    lines = [
        comment(f"{plan.config.label()}, global batch {plan.global_batch_size}, {plan.p2p} sends."),
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
        *_batch_options(plan, training),
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
    model = recorded_model(plan)
    return [
        ("--mock-data",),
        ("--tokenizer-type", "NullTokenizer"),
        ("--vocab-size", str(model.vocab_size - 1)),
        ("--train-iters", str(TRIAL_ITERATIONS)),
        ("--eval-iters", "0"),
        ("--lr", "1e-4"),
        ("--log-interval", "1"),
        ("--log-throughput",),
    ]


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


LAYOUT_ARGUMENTS = {
    "pipeline_model_parallel_layout": "--pipeline-model-parallel-layout",
    "virtual_pipeline_model_parallel_size": "--num-virtual-stages-per-pipeline-rank",
    "num_layers_in_first_pipeline_stage": "--decoder-first-pipeline-num-layers",
    "num_layers_in_last_pipeline_stage": "--decoder-last-pipeline-num-layers",
    "account_for_embedding_in_pipeline_split": "--account-for-embedding-in-pipeline-split",
    "account_for_loss_in_pipeline_split": "--account-for-loss-in-pipeline-split",
}
"""Arguments of Megatron-LM by megatron-core's field name, for the fields of :func:`layout_options`."""


def _parallel_options(plan: Plan, model: ModelSpec) -> list[Option]:
    config = plan.config
    check_megatron_can("Megatron-LM", plan, most_sharded=3)
    expert_size = expert_tensor_size(plan, model.num_experts)
    options: list[Option] = [
        ("--tensor-model-parallel-size", str(config.tensor_model_parallel_size)),
        ("--pipeline-model-parallel-size", str(config.pipeline_model_parallel_size)),
        ("--context-parallel-size", str(config.context_parallel_size)),
    ]
    sizes = context_levels(recorded_training(plan), config)
    if sizes is not None:
        options.append(("--hierarchical-context-parallel-sizes", *map(str, sizes)))
    if config.expert_model_parallel_size > 1:
        options.append(("--expert-model-parallel-size", str(config.expert_model_parallel_size)))
    if expert_size is not None:
        options.append(("--expert-tensor-parallel-size", str(expert_size)))
    options += [
        (LAYOUT_ARGUMENTS[name],) if value is True else (LAYOUT_ARGUMENTS[name], str(value))
        for name, value in ({} if model.hybrid_layer_pattern else layout_options(plan)).items()
    ]
    if plan.placement.order == "tp-cp-ep-pp-dp":
        options.append(("--use-tp-pp-dp-mapping",))
    if config.sequence_parallel:
        options.append(("--sequence-parallel",))
    if not divided_by_torch(recorded_training(plan), config):
        options += [("--use-distributed-optimizer",)] if config.use_distributed_optimizer else []
        options += _overlap_options(plan)
    if config.recompute_granularity == "full":
        options += [
            ("--recompute-granularity", "full"),
            ("--recompute-method", config.recompute_method),
            ("--recompute-num-layers", str(config.recompute_num_layers)),
        ]
    elif config.recompute_granularity == "selective":
        options.append(("--recompute-granularity", "selective"))
        if config.recompute_modules != CORE:
            options.append(("--recompute-modules", *config.recompute_modules))
    return options


def _overlap_options(plan: Plan) -> list[Option]:
    """Return the options of sharding, and of communication that overlaps with compute."""
    config = plan.config
    options: list[Option] = []
    sharded = config.sharding_stage > 1
    if sharded:
        options += [
            ("--use-megatron-fsdp",),
            ("--data-parallel-sharding-strategy", config.data_parallel_sharding_strategy),
            ("--ckpt-format", "fsdp_dtensor"),  # the one that it has (validate_args)
        ]
        if config.num_distributed_optimizer_instances > 1:
            options.append(("--num-distributed-optimizer-instances", str(config.num_distributed_optimizer_instances)))
            if config.state_groups > 1:
                options.append(("--outer-dp-sharding-strategy", config.outer_dp_sharding_strategy))
    if config.overlap_grad_reduce or sharded:
        options.append(("--overlap-grad-reduce",))
    if config.overlap_param_gather or sharded:
        options.append(("--overlap-param-gather",))
    if config.ddp_bucket_size is not None:
        options.append(("--ddp-bucket-size", str(config.ddp_bucket_size)))
    if config.num_chunks > 1 and not config.overlap_p2p_communication:
        options.append(("--no-overlap-p2p-communication",))
    if config.tp_comm_overlap:
        options.append(("--tp-comm-overlap",))
    return options


def _batch_options(plan: Plan, training: TrainingSpec) -> list[Option]:
    return [
        ("--micro-batch-size", str(plan.config.micro_batch_size)),
        ("--global-batch-size", str(plan.global_batch_size)),
        ("--seq-length", str(training.seq_length)),
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
    options: list[Option] = [
        ("--num-layers", str(model.num_layers)),
        ("--hidden-size", str(model.hidden_size)),
        ("--ffn-hidden-size", str(model.ffn_hidden_size)),
        ("--num-attention-heads", str(model.num_attention_heads)),
        ("--kv-channels", str(model.kv_channels)),
    ]
    if model.multi_latent_attention is not None:
        options += _latent_options(model.multi_latent_attention)
    if model.num_query_groups < model.num_attention_heads:
        options += [("--group-query-attention",), ("--num-query-groups", str(model.num_query_groups))]
    options += [
        ("--vocab-size", str(model.vocab_size)),
        ("--make-vocab-size-divisible-by", str(model.make_vocab_size_divisible_by)),
        ("--hidden-dropout", str(model.hidden_dropout)),
        ("--attention-dropout", str(model.attention_dropout)),
        ("--init-method-std", str(model.init_method_std)),
    ]
    flags = (
        ("--untie-embeddings-and-output-weights", model.untie_embeddings_and_output_weights),
        ("--disable-bias-linear", not model.add_bias_linear),
        ("--add-qkv-bias", model.add_qkv_bias and not model.add_bias_linear),
    )
    return [*options, *[(flag,) for flag, wanted in flags if wanted]]


def _latent_options(latent: LatentAttention) -> list[Option]:
    """Return the options of latent attention; ``--rope-type`` is set because Megatron-LM's default is ``yarn``."""
    sizes = {name: getattr(latent, name) for name in LATENT_SIZES}
    options: list[Option] = [("--multi-latent-attention",)]
    options += [(f"--{name.replace('_', '-')}", str(value)) for name, value in sizes.items() if value is not None]
    if latent.yarn is None:
        return [*options, ("--rope-type", "rope")]
    return [
        *options,
        ("--rotary-scaling-factor", str(latent.yarn.rotary_scaling_factor)),
        ("--mscale", str(latent.yarn.mscale)),
        ("--mscale-all-dim", str(latent.yarn.mscale_all_dim)),
    ]


def _norm_options(model: ModelSpec) -> list[Option]:
    options: list[Option] = [("--normalization", model.normalization), ("--norm-epsilon", str(model.norm_epsilon))]
    if model.layernorm_zero_centered_gamma:
        options.append(("--apply-layernorm-1p",))
    if model.qk_layernorm:
        options.append(("--qk-layernorm",))
    return options


def _activation_options(model: ModelSpec) -> list[Option]:
    options: list[Option] = []
    if model.activation_func == "gelu":
        raise InputError("activation_func", "is gelu with a gate, which Megatron-LM has no argument for.")
    if model.activation_func is not None:
        options.append(("--squared-relu",) if model.activation_func == "squared_relu" else ("--quick-geglu",))
    elif model.gated_linear_unit:
        options.append(("--swiglu",))
    if model.glu_linear_offset:
        options.append(("--glu-linear-offset", str(model.glu_linear_offset)))
    if model.activation_func_clamp_value is not None:
        options.append(("--activation-func-clamp-value", str(model.activation_func_clamp_value)))
    return options


def _position_options(model: ModelSpec, training: TrainingSpec) -> list[Option]:
    """Return the options of position embeddings; positions other than learned ones cover at least a sequence."""
    positions = model.max_position_embeddings
    if model.position_embedding_type != "learned_absolute":
        positions = max(positions, training.seq_length)
    options: list[Option] = [
        ("--max-position-embeddings", str(positions)),
        ("--position-embedding-type", model.position_embedding_type),
    ]
    if not model.has_rotary_positions:
        return options
    options.append(("--rotary-base", str(model.rotary_base)))
    if model.rotary_percent != 1.0:
        options.append(("--rotary-percent", str(model.rotary_percent)))
    if model.rotary_interleaved:
        options.append(("--rotary-interleaved",))
    if model.rotary_seq_len_interpolation_factor is not None:
        options.append(("--rotary-seq-len-interpolation-factor", str(model.rotary_seq_len_interpolation_factor)))
    if model.rope_scaling_factor is not None:
        options += [("--use-rope-scaling",), ("--rope-scaling-factor", str(model.rope_scaling_factor))]
    if model.no_rope_freq is not None:
        options.append(("--no-rope-freq", layer_list(model.no_rope_freq)))
    return [*options, *_yarn_options(model.yarn)]


def _yarn_options(yarn: YarnScaling | None) -> list[Option]:
    """Return the options of YaRN scaling, which Megatron-LM has since megatron-core 0.19; empty without scaling."""
    if yarn is None:
        return []
    rounded = "" if yarn.correction_range_round_to_int else "no-"
    return [
        ("--rotary-scaling-factor", str(yarn.rotary_scaling_factor)),
        ("--yarn-original-max-position-embeddings", str(yarn.original_max_position_embeddings)),
        ("--yarn-beta-fast", str(yarn.beta_fast)),
        ("--yarn-beta-slow", str(yarn.beta_slow)),
        ("--mscale", str(yarn.mscale)),
        ("--mscale-all-dim", str(yarn.mscale_all_dim)),
        (f"--{rounded}yarn-correction-range-round-to-int",),
    ]


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
    if model.window_attn_skip_freq is not None:
        options.append(("--window-attn-skip-freq", layer_list(model.window_attn_skip_freq)))
    if model.softmax_type != "vanilla":
        options.append(("--softmax-type", model.softmax_type))
    return options


def _expert_options(model: ModelSpec, training: TrainingSpec) -> list[Option]:
    """Return the options of routed and shared experts, and of the layers that have them; empty for a dense model."""
    if model.num_experts is None:
        return []
    options: list[Option] = [
        ("--num-experts", str(model.num_experts)),
        ("--moe-router-topk", str(model.moe_router_topk)),
        ("--moe-token-dispatcher-type", training.moe_token_dispatcher_type),
        ("--moe-grouped-gemm",),
    ]
    if training.overlap_moe_expert_parallel_comm:
        options.append(("--overlap-moe-expert-parallel-comm",))
    if model.moe_ffn_hidden_size is not None:
        options.append(("--moe-ffn-hidden-size", str(model.moe_ffn_hidden_size)))
    if model.moe_shared_expert_intermediate_size:
        options.append(("--moe-shared-expert-intermediate-size", str(model.moe_shared_expert_intermediate_size)))
    for name in ("moe_latent_size", "moe_router_num_groups", "moe_router_group_topk"):
        if getattr(model, name) is not None:
            options.append((f"--{name.replace('_', '-')}", str(getattr(model, name))))
    if model.moe_router_pre_softmax:
        options.append(("--moe-router-pre-softmax",))
    if model.num_moe_layers < model.num_layers and model.hybrid_layer_pattern is None:
        options.append(("--moe-layer-freq", layer_list(_layers_with_experts(model))))
    return options


def _layer_list_options(model: ModelSpec, layers_per_chunk: Sequence[Sequence[int]] | None) -> list[Option]:
    """Return the options of hybrid and linear-attention layers, with their sizes."""
    options: list[Option] = [("--attention-output-gate",)] if model.attention_output_gate else []
    if model.hybrid_layer_pattern is not None:
        chunks = [[model.num_layers]] if layers_per_chunk is None else layers_per_chunk
        depths = model.mtp_num_layers * f"/{model.mtp_layer_pattern}"
        text = barred_pattern(model.hybrid_layer_pattern, chunks) + depths
        options += [
            (f"--hybrid-layer-pattern={text}",) if text.startswith("-") else ("--hybrid-layer-pattern", text),
            ("--spec", "megatron.core.models.hybrid.hybrid_layer_specs", "hybrid_stack_spec"),
        ]
    variant = attention_variant(model)
    if variant is not None:
        options.append(("--experimental-attention-variant", variant))
    if model.linear_attention_freq is not None:
        options.append(("--linear-attention-freq", layer_list(model.linear_attention_freq)))
    return options + [(f"--{name.replace('_', '-')}", str(size)) for name, size in mixer_sizes(model).items()]


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
    counts = ("--num-layers-at-start-in-bf16", str(first)), ("--num-layers-at-end-in-bf16", str(last))
    return [("--first-last-layers-bf16",), *counts]


def _mtp_options(model: ModelSpec) -> list[Option]:
    """Return the options of multi-token prediction; empty without it."""
    if not model.mtp_num_layers:
        return []
    options: list[Option] = [
        ("--mtp-num-layers", str(model.mtp_num_layers)),
        ("--mtp-loss-scaling-factor", str(model.mtp_loss_scaling_factor)),
    ]
    return [*options, ("--mtp-use-repeated-layer",)] if model.mtp_use_repeated_layer else options

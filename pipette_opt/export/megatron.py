"""
Arguments of an unmodified Megatron-LM ``pretrain_gpt.py`` that run a plan.

Names and defaults are those of ``megatron/training/arguments.py`` beside megatron-core 0.16.
"""

import re
from collections.abc import Mapping
from dataclasses import fields

from pipette_opt.candidates.splits import is_megatron_split, pipeline_split_options
from pipette_opt.export.checks import check_megatron_can, context_levels, expert_tensor_size, refuse_operations
from pipette_opt.export.extra_arguments import divided_by_torch, left_out_lines
from pipette_opt.export.recorded import recorded_model, recorded_training, refuse_unwritten
from pipette_opt.export.shell import SOURCED, array_lines, comment
from pipette_opt.export.training_options import further_options, offload_options, precision_options
from pipette_opt.parallel import ParallelConfig
from pipette_opt.parallel.layout import layout_of
from pipette_opt.parallel.recompute import CORE
from pipette_opt.plans.plan import Plan
from pipette_opt.plans.releases import release_words
from pipette_opt.read.megatron_table import options_of_field
from pipette_opt.read.model_words import Option, model_options, options_of
from pipette_opt.specs import ModelSpec, TrainingSpec, YarnScaling

TRIAL_ITERATIONS = 20

MEGATRON_ROPE_SCALING_FACTOR = 8.0
"""Factor of Llama 3's frequency scaling that ``GPTModel`` uses by default."""

MISSING_TRAINING_FIELDS = (
    *("flash_version", "fused_norm", "fused_loss", "fused_step", "loss_chunks", "whole_gradients"),
    "offload_parameters",
)
"""Fields of a training that Megatron-LM's arguments do not express."""

TRAINING_FIELDS = tuple(field.name for field in fields(TrainingSpec) if field.name not in MISSING_TRAINING_FIELDS)
"""Fields of a training that Megatron-LM's arguments express, or that no format writes."""

MISSING_MODEL_FIELDS = (
    "parallel_residual",
    "pre_norms",
    "post_norms",
    "qk_layernorm_across_heads",
    "local_rotary_base",
    "multipliers",
    "adapters",
)
"""Fields of a model that Megatron-Core's layers do not support, or that no argument sets."""

MODEL_FIELDS = tuple(field.name for field in fields(ModelSpec) if field.name not in MISSING_MODEL_FIELDS)
"""Fields of a model that Megatron-LM's arguments express."""


def export_megatron(plan: Plan) -> dict[str, str]:
    """
    Return ``megatron_args.sh``, which other formats add to their files.

    The bash file has the arrays ``MEGATRON_ARGS`` (the plan) and ``TRIAL_ARGS`` (a trial run on mock data).
    """
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
    refuse_unwritten("Megatron-LM", model, MODEL_FIELDS)
    refuse_unwritten("Megatron-LM", training, TRAINING_FIELDS)
    check_megatron_can("Megatron-LM", plan, most_sharded=3)
    return options_of_plan(plan, model, training)


def options_of_plan(plan: Plan, model: ModelSpec, training: TrainingSpec) -> list[Option]:
    """Return the options of a plan that Megatron-Core can run."""
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


def layout_options(plan: Plan) -> dict[str, str | int | bool | None]:
    """
    Return the layers and chunks of each stage as fields of megatron-core, unset for equal stages without chunks.

    Megatron-core has three ways to express them:

    - count the embedding or the head as a layer (``account_for_embedding_in_pipeline_split``);
    - set the numbers of layers of the first and the last stage (``num_layers_in_first_pipeline_stage``);
    - for all other splits set ``pipeline_model_parallel_layout``: chunks in model order, ``E`` the embedding, ``t`` a
      layer, ``m`` a depth of multi-token prediction, ``L`` the head
      (``megatron/core/transformer/pipeline_parallel_layer_layout.py``). The layout also sets the number of chunks.

    The pattern of a hybrid model says all of this.
    """
    model, config, layers = recorded_model(plan), plan.config, plan.config.layers_per_stage
    by_pattern, counts = model.hybrid_layer_pattern is not None, config.counts_embedding or config.counts_loss
    by_layout = config.pipeline_model_parallel_layout is not None or not is_megatron_split(sum(layers), layers)
    by_sizes = not by_pattern and not by_layout
    first, last = pipeline_split_options(layers) if by_sizes and not counts else (None, None)
    layout = layout_of(config.layers_per_chunk, model.mtp_num_layers) if by_layout and not by_pattern else None
    return {
        "pipeline_model_parallel_layout": layout,
        "virtual_pipeline_model_parallel_size": config.num_chunks if by_sizes and config.num_chunks > 1 else None,
        "num_layers_in_first_pipeline_stage": first,
        "num_layers_in_last_pipeline_stage": last,
        "account_for_embedding_in_pipeline_split": by_sizes and config.counts_embedding,
        "account_for_loss_in_pipeline_split": by_sizes and config.counts_loss,
    }


def _parallel_options(plan: Plan, model: ModelSpec) -> list[Option]:
    config = plan.config
    ranks, expert_size = config.expert_model_parallel_size, expert_tensor_size(plan, model.num_experts)
    refuse_operations(config)
    layout = layout_options(plan)
    is_divided, full = divided_by_torch(recorded_training(plan), config), config.recompute_granularity == "full"
    return [
        *options_of(
            tensor_model_parallel_size=config.tensor_model_parallel_size,
            pipeline_model_parallel_size=config.pipeline_model_parallel_size,
            context_parallel_size=config.context_parallel_size,
            hierarchical_context_parallel_sizes=context_levels(recorded_training(plan), config),
            expert_model_parallel_size=ranks if ranks > 1 else None,
            expert_tensor_parallel_size=expert_size,
            **{option.field: layout[name] for name in layout for option in options_of_field(name) or ()},
            use_tp_pp_dp_mapping=plan.placement.order == "tp-cp-ep-pp-dp",
            sequence_parallel=config.sequence_parallel,
            use_distributed_optimizer=config.use_distributed_optimizer and not is_divided,
        ),
        *([] if is_divided else _overlap_options(config)),
        *options_of(
            recompute_granularity=config.recompute_granularity,
            recompute_method=config.recompute_method if full else None,
            recompute_num_layers=config.recompute_num_layers if full else None,
            recompute_modules=config.recompute_modules if config.recompute_modules != CORE else None,
        ),
    ]


def _overlap_options(config: ParallelConfig) -> list[Option]:
    """Return the options of sharding, and of communication that overlaps with compute."""
    sharded, groups = config.sharding_stage > 1, config.num_distributed_optimizer_instances
    outer = config.outer_dp_sharding_strategy if groups > 1 and config.state_groups > 1 else None
    sharding = {
        "use_megatron_fsdp": True,
        "data_parallel_sharding_strategy": config.data_parallel_sharding_strategy,
        "ckpt_format": "fsdp_dtensor",  # the only format that it has (validate_args)
        "outer_dp_sharding_strategy": outer,
    }
    return options_of(
        **(sharding if sharded else {}),
        num_distributed_optimizer_instances=groups if groups > 1 else None,
        overlap_grad_reduce=config.overlap_grad_reduce or sharded,
        overlap_param_gather=config.overlap_param_gather or sharded,
        ddp_bucket_size=config.ddp_bucket_size,
        no_overlap_p2p_communication=config.num_chunks > 1 and not config.overlap_p2p_communication,
        tp_comm_overlap=config.tp_comm_overlap,
    )

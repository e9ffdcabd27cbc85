"""
Arguments of an unmodified Megatron-LM ``pretrain_gpt.py`` that make it run a plan.

Names and defaults are those of ``megatron/training/arguments.py`` beside megatron-core 0.16.
"""

from collections.abc import Mapping
from typing import Any

from pipette_opt.candidates import pipeline_split_options
from pipette_opt.errors import InputError
from pipette_opt.export.shell import array_lines, comment
from pipette_opt.plan import Plan
from pipette_opt.specs import ModelSpec, TrainingSpec

Option = tuple[str, ...]
"""An option and its values."""

TRIAL_ITERATIONS = 20


def export_megatron(plan: Plan) -> dict[str, str]:
    """One file for bash: the arrays ``MEGATRON_ARGS`` (the plan) and ``TRIAL_ARGS`` (a run on made-up tokens)."""
    return {"megatron_args.sh": f"#!/bin/bash\n{argument_arrays(plan)}"}


def argument_arrays(plan: Plan) -> str:
    """Bash lines that define ``MEGATRON_ARGS`` and ``TRIAL_ARGS``, an option per line."""
    lines = [
        comment(f"{plan.config.label()}, global batch {plan.global_batch_size}, {plan.p2p} sends."),
        *array_lines("MEGATRON_ARGS", [list(option) for option in megatron_options(plan)]),
        comment("Data, tokenizer and schedule of a trial run; a real job brings its own instead."),
        *array_lines("TRIAL_ARGS", [list(option) for option in trial_options(plan)]),
    ]
    return "\n".join(lines) + "\n"


def megatron_arguments(plan: Plan) -> list[str]:
    """The plan as a flat list of arguments; ``InputError`` if Megatron-LM cannot express it."""
    return [word for option in megatron_options(plan) for word in option]


def megatron_options(plan: Plan) -> list[Option]:
    """The same, one entry per option: degrees, batch, memory savers, architecture, number formats."""
    model, training = _recorded(plan, "model", ModelSpec), _recorded(plan, "training", TrainingSpec)
    return [
        *_parallel_options(plan),
        *_batch_options(plan, training),
        *_model_options(model, training),
        *_precision_options(training),
    ]


def trial_options(plan: Plan) -> list[Option]:
    """
    A short run on made-up tokens, with the vocabulary of the plan.

    Megatron's ``NullTokenizer`` adds an end-of-document token to ``--vocab-size``.
    """
    model = _recorded(plan, "model", ModelSpec)
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


def _parallel_options(plan: Plan) -> list[Option]:
    config = plan.config
    if plan.p2p == "async" and config.pipeline_model_parallel_size > 1:
        raise InputError(
            "p2p", "the plan assumes sends that are never waited for; Megatron-LM waits. Solve with --p2p blocking."
        )
    options: list[Option] = [
        ("--tensor-model-parallel-size", str(config.tensor_model_parallel_size)),
        ("--pipeline-model-parallel-size", str(config.pipeline_model_parallel_size)),
        ("--context-parallel-size", str(config.context_parallel_size)),
    ]
    if config.expert_model_parallel_size > 1:
        options.append(("--expert-model-parallel-size", str(config.expert_model_parallel_size)))
    if config.virtual_pipeline_model_parallel_size:
        options.append(("--num-virtual-stages-per-pipeline-rank", str(config.virtual_pipeline_model_parallel_size)))
    options += _split_options(plan)
    if plan.placement.order == "tp-cp-ep-pp-dp":
        options.append(("--use-tp-pp-dp-mapping",))
    if config.sequence_parallel:
        options.append(("--sequence-parallel",))
    if config.use_distributed_optimizer:
        options.append(("--use-distributed-optimizer",))
    if config.recompute_granularity == "full":
        options += [
            ("--recompute-granularity", "full"),
            ("--recompute-method", "uniform"),
            ("--recompute-num-layers", "1"),
        ]
    elif config.recompute_granularity == "selective":
        options.append(("--recompute-granularity", "selective"))
    return options


def _split_options(plan: Plan) -> list[Option]:
    """Layers of the first and the last stage, where they differ from the others'."""
    layers = plan.config.layers_per_stage
    if len(set(layers[1:-1])) > 1:
        raise InputError("layers_per_stage", f"{layers} differ in the middle; Megatron-LM's options cannot say that.")
    first, last = pipeline_split_options(layers)
    options: list[Option] = []
    if first is not None:
        options.append(("--decoder-first-pipeline-num-layers", str(first)))
    if last is not None:
        options.append(("--decoder-last-pipeline-num-layers", str(last)))
    return options


def _batch_options(plan: Plan, training: TrainingSpec) -> list[Option]:
    return [
        ("--micro-batch-size", str(plan.config.micro_batch_size)),
        ("--global-batch-size", str(plan.global_batch_size)),
        ("--seq-length", str(training.seq_length)),
    ]


def _model_options(model: ModelSpec, training: TrainingSpec) -> list[Option]:
    """The architecture; with rotary positions their number shapes nothing, but must cover the sequence."""
    if model.add_bias_linear and not model.add_qkv_bias:
        raise InputError("model", "Megatron-LM has no biases in all linear layers but the query-key-value projection.")
    positions = model.max_position_embeddings
    if model.position_embedding_type == "rope":
        positions = max(positions, training.seq_length)
    options: list[Option] = [
        ("--num-layers", str(model.num_layers)),
        ("--hidden-size", str(model.hidden_size)),
        ("--ffn-hidden-size", str(model.ffn_hidden_size)),
        ("--num-attention-heads", str(model.num_attention_heads)),
        ("--kv-channels", str(model.kv_channels)),
    ]
    if model.num_query_groups < model.num_attention_heads:
        options += [("--group-query-attention",), ("--num-query-groups", str(model.num_query_groups))]
    options += [
        ("--max-position-embeddings", str(positions)),
        ("--position-embedding-type", model.position_embedding_type),
        ("--normalization", model.normalization),
        ("--hidden-dropout", str(model.hidden_dropout)),
        ("--attention-dropout", str(model.attention_dropout)),
        ("--make-vocab-size-divisible-by", str(model.make_vocab_size_divisible_by)),
    ]
    flags = (
        ("--swiglu", model.gated_linear_unit),
        ("--untie-embeddings-and-output-weights", model.untie_embeddings_and_output_weights),
        ("--disable-bias-linear", not model.add_bias_linear),
        ("--add-qkv-bias", model.add_qkv_bias and not model.add_bias_linear),
        ("--qk-layernorm", model.qk_layernorm),
    )
    return options + [(flag,) for flag, wanted in flags if wanted]


def _precision_options(training: TrainingSpec) -> list[Option]:
    """Number formats and the attention kernel; bf16 keeps its gradients in fp32 unless told otherwise."""
    options: list[Option] = []
    if training.precision != "fp32":
        options.append((f"--{training.precision}",))
        if training.accumulate_allreduce_grads_in_fp32:
            options.append(("--accumulate-allreduce-grads-in-fp32",))
        elif training.precision == "bf16":
            options.append(("--grad-reduce-in-bf16",))
    return [*options, ("--attention-backend", training.attention_kernel)]


def _recorded(plan: Plan, name: str, spec: Any) -> Any:
    """The model or the training, from the plan's inputs."""
    fields = plan.inputs.get(name)
    if not isinstance(fields, Mapping):
        raise InputError(f"inputs.{name}", "is not in the plan; its fields are needed to write Megatron's arguments.")
    try:
        return spec(**fields)
    except (TypeError, ValueError) as error:
        raise InputError(f"inputs.{name}", f"cannot be read: {error}") from None

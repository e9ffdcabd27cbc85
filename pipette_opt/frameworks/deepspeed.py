"""
DeepSpeed, both ways: its configuration in JSON, and command lines of Megatron-DeepSpeed.

Names and defaults are those of DeepSpeed 0.19 (``runtime/config.py``, ``runtime/zero/config.py``). A plan is written as
configuration, host file and the degrees as options of Megatron-DeepSpeed. The launcher numbers ranks in the order of
the host file and, on a host, of GPU numbers (``launcher/runner.py``). ``PipeModelDataParallelTopology`` orders ranks by
tensor, then replica, then stage (``runtime/pipe/topology.py``). Plans in any other order are refused.
"""

import json
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import fields
from types import MappingProxyType
from typing import Any

from pipette_opt.base.errors import InputError, shown
from pipette_opt.export.environment import CUDA_ORDER, Setting, nccl_settings
from pipette_opt.export.hosts import hosts_of_file_lines, unnamed_note
from pipette_opt.export.nodes import NodeShare, node_shares
from pipette_opt.export.recorded import (
    OF_OPTIMIZER,
    optimizer_remark,
    recorded_model,
    recorded_training,
    refuse_async_sends,
    refuse_second_order,
    refuse_unwritten,
    tensor_overlap_remark,
    written_training,
)
from pipette_opt.export.shell import MASTER_PORT, array_lines, comment, master_lines, quoted
from pipette_opt.export.target import Target
from pipette_opt.plans.plan import Plan
from pipette_opt.read.foreign import Source
from pipette_opt.read.megatron_args import parse_megatron_args
from pipette_opt.read.setting_table import Row, Values, approximated, nested, pattern_of, refused, values_of
from pipette_opt.read.sizing_words import Given
from pipette_opt.specs import ModelSpec, TrainingSpec
from pipette_opt.specs.activations import host_keeps

SOFTWARE = "deepspeed"

MICRO_BATCH, STEPS, BATCH = "train_micro_batch_size_per_gpu", "gradient_accumulation_steps", "train_batch_size"
STAGE = "zero_optimization.stage"
OVERLAP = "zero_optimization.overlap_comm"
HOST_STATES, HOST_SHARE = "zero_optimization.offload_optimizer.device", "zero_optimization.offload_optimizer.ratio"
HOST_PARAMETERS = "zero_optimization.offload_param.device"
BF16, FP16 = "bf16.enabled", "fp16.enabled"
SUMS = "data_types.grad_accum_dtype"
DEVICES = ("none", "cpu", "nvme")
AUTO = "auto"
"""Value that Hugging Face's trainer fills in from its own arguments."""

TABLE = (
    Row(MICRO_BATCH, "word", None),
    Row(STEPS, "word", None),
    Row(BATCH, "word", None),
    Row(STAGE, "whole", 0),
    Row(OVERLAP, "word", None, words=("true", "false", AUTO)),
    Row(HOST_STATES, "word", "none", words=DEVICES),
    Row(HOST_SHARE, "number", 1.0),
    Row(HOST_PARAMETERS, "word", "none", words=DEVICES),
    Row(BF16, "word", "false", words=("true", "false", AUTO)),
    Row(FP16, "word", "false", words=("true", "false", AUTO)),
    Row(SUMS, "word", None),
    *(
        approximated(
            f"zero_optimization.{name}",
            "word",
            size,
            "memory",
            "either",
            "Buffers of DeepSpeed's default sizes are counted.",
        )
        for name, size in (
            ("reduce_bucket_size", "500000000"),
            ("stage3_prefetch_bucket_size", "50000000"),
            ("stage3_max_live_parameters", "1000000000"),
        )
    ),
    refused("zero_optimization.zero_hpz_partition_size", "whole", 1, "a second copy of the parameters inside a host."),
    refused("zero_optimization.mics_shard_size", "whole", -1, "shards inside groups of GPUs, of older releases."),
    *(
        approximated(
            f"zero_optimization.{name}",
            "flag",
            False,
            "time",
            "either",
            "Quantised messages are counted as whole ones.",
        )
        for name in ("zero_quantized_weights", "zero_quantized_gradients", "zero_quantized_nontrainable_weights")
    ),
    refused("pipeline.stages", "word", None, "the program's own pipeline."),
    refused("sequence_parallel_size", "whole", 1, "sequences divided over GPUs (Ulysses)."),
    refused("tensor_parallel.autotp_size", "whole", 0, "tensor parallelism of DeepSpeed's own."),
)
"""Settings that time or memory depend on, and what is made of them."""

HARMLESS = pattern_of(
    *("steps_per_print", "wall_clock_breakdown", "gradient_clipping", "prescale_gradients", "optimizer", "scheduler"),
    *("dump_state", "tensorboard", "wandb", "csv_monitor", "comet", "comms_logger", "flops_profiler", "checkpoint"),
    *("zero_allow_untested_optimizer", "zero_force_ds_cpu_optimizer", "memory_breakdown", "dataloader_drop_last"),
    *("bf16.auto_cast", "fp16", "gradient_predivide_factor", "communication_data_type", "seed", "load_universal"),
    *(
        f"zero_optimization.{name}"
        for name in (
            *(
                "allgather_bucket_size",
                "allgather_partitions",
                "reduce_scatter",
                "contiguous_gradients",
                "sub_group_size",
            ),
            *("stage3_gather_16bit_weights_on_model_save", "round_robin_gradients", "ignore_unused_parameters"),
            *("offload_optimizer.pin_memory", "offload_optimizer.buffer_count", "offload_optimizer.fast_init"),
            *("offload_optimizer.nvme_path", "offload_optimizer.pipeline_read", "offload_optimizer.pipeline_write"),
            *("offload_param.pin_memory", "offload_param.nvme_path", "offload_param.buffer_count"),
            *("load_from_fp32_weights", "elastic_checkpoint", "stage3_param_persistence_threshold"),
            *("stage3_max_reuse_distance", "memory_efficient_linear", "log_trace_cache_warnings"),
        )
    ),
)
"""Sections and settings on which neither time nor memory depends much."""

LAUNCHER = "replicas-first"

TRAINING: Mapping[str, Any] = MappingProxyType({})
"""Fields of the training that the framework sets: none."""

SPACE: Mapping[str, Any] = MappingProxyType(
    {
        "context_parallel": (1,),
        "virtual_pipeline": (1,),
        "expert_parallel": (1,),
        "data_parallel_sharding_strategy": ("optim", "optim_grads", "optim_grads_params"),
        "pipelined_sharding": ("optim",),
        "num_distributed_optimizer_instances": (1,),
        "overlap_grad_reduce": False,
        "overlap_param_gather": False,
        "recompute": (None, "full"),
        "offload": (None, "parameters"),
        "tp_comm_overlap": False,
        "uneven_layers": False,
    }
)
"""Fields of a search space with the values that Megatron-DeepSpeed can run."""

OF_MEGATRON: Mapping[str, bool] = MappingProxyType(
    {
        "deepspeed": False,
        "deepspeed_config": True,
        "zero_stage": True,
        "checkpoint_activations": False,
        "deepspeed_activation_checkpointing": False,
        "checkpoint_num_layers": True,
        "no_pipeline_parallel": False,
        "data_efficiency_curriculum_learning": False,
    }
)
"""Options that Megatron-DeepSpeed has beside Megatron-LM's, by name with underscores; whether a value follows."""

TRAINING_FIELDS = (
    "precision",
    "accumulate_allreduce_grads_in_fp32",
    "attention_kernel",
    "loss_chunks",
    "fused_norm",
    "fused_loss",
    "optimizer_offload_fraction",
    "offload_parameters",
    *OF_OPTIMIZER,
)
CONFIG_FIELDS = (
    "offload",
    "sequence_parallel",
    "recompute_granularity",
    "recompute_modules",
    "recompute_num_layers",
    "use_distributed_optimizer",
    "zero_stage",
    "tp_comm_overlap",
)

SHARDED = ("allgather", "allreduce")
"""NCCL's names of the collectives in ZeRO 1 and 2 (``zero/stage_1_and_2.py``, 0.19: gradients are all-reduced)."""

ONE_CONNECTION = Setting("CUDA_DEVICE_MAX_CONNECTIONS", "1", "Megatron-DeepSpeed's arguments.py stops without it.")


def read(source: Source) -> dict[str, Any]:
    """
    Return the fields of a launch: of DeepSpeed's configuration, or a command line of Megatron-DeepSpeed.

    Raises
    ------
    InputError
        For a value that DeepSpeed refuses, a setting that is not modelled, and a configuration that leaves the batch to
        a trainer.
    """
    if source.file is not None:
        return config_fields(source.file.given(), source.where)
    if source.framework.name == "Megatron-DeepSpeed":
        return _of_megatron(source)
    from pipette_opt.frameworks.accelerate import read as read_trainer

    return read_trainer(source)


def config_fields(given: Mapping[str, Given], where: str, trainer: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """
    Return the fields of a launch that DeepSpeed's configuration sets.

    Parameters
    ----------
    given
        Settings of the configuration by dotted names.
    trainer
        Values of a trainer's own arguments by the names of :data:`TABLE`, which fill in ``auto`` and missing ones.
    """
    given = {name: setting for name, setting in given.items() if setting.value != AUTO or trainer is None}
    filled = {name: Given(value, where) for name, value in (trainer or {}).items() if value is not None}
    values = values_of(TABLE, filled | given, where, "DeepSpeed", HARMLESS)
    for name in (BF16, FP16, OVERLAP):
        if values[name] == AUTO:
            raise values.error(name, ", which a trainer fills in; give the command that starts it.")
    precision = "bf16" if values[BF16] == "true" else "fp16" if values[FP16] == "true" else "fp32"
    stage = values[STAGE]
    if stage not in range(4):
        raise values.error(STAGE, ", which must be 0 to 3.")
    overlaps = stage == 3 if values[OVERLAP] is None else values[OVERLAP] == "true"
    training: dict[str, Any] = {}
    on_host = values[HOST_PARAMETERS] != "none"
    if values[HOST_PARAMETERS] == "nvme":
        raise values.error(HOST_PARAMETERS, ", whose disks are not modelled; cpu is.")
    if on_host and (stage != 3 or values[HOST_STATES] == "none" or values[HOST_SHARE] != 1):
        raise values.error(HOST_PARAMETERS, f", which is modelled with stage 3 and {HOST_STATES}: cpu only.")
    if values[HOST_STATES] != "none":
        training = {"optimizer_offload_fraction": values[HOST_SHARE], "overlap_cpu_optimizer_d2h_h2d": False}
    if on_host:
        training["offload_parameters"] = True
    return {
        "software": SOFTWARE,
        "module": "deepspeed",
        "space": {**SPACE, "tensor_parallel": (1,), "pipeline_parallel": (1,)},
        **_batch(values),
        "precision": precision,
        "zero_stage": stage or None,
        "use_distributed_optimizer": stage > 0,
        "overlap_grad_reduce": stage > 0 and overlaps,
        "gradients_in_fp32": values[SUMS] == "fp32" or precision == "fp32",
        "moe_token_dispatcher_type": "alltoall",
        "training_fields": training,
        "not_modelled": values.not_modelled,
        "notes": values.notes,
        "settings": values.given,
    }


def _batch(values: Values) -> dict[str, int | None]:
    """Return the micro-batch, and the global batch or the batch of a replica."""
    sizes: dict[str, int | None] = {}
    for name in (MICRO_BATCH, STEPS, BATCH):
        text = values[name]
        if text == AUTO:
            raise values.error(name, ", which a trainer fills in; give the command that starts it.")
        if text is not None and not re.fullmatch("[1-9][0-9]{0,9}", text):
            raise values.error(name, ", which must be a whole number >= 1.")
        sizes[name] = None if text is None else int(text)
    micro, steps, batch = sizes[MICRO_BATCH], sizes[STEPS], sizes[BATCH]
    if micro is None:
        raise InputError(values.where, f"has no {MICRO_BATCH}; give it.")
    return {
        "micro_batch_size": micro,
        "global_batch_size": batch,
        "replica_batch_size": micro * (steps or 1) if batch is None else None,
    }


def _of_megatron(source: Source) -> dict[str, Any]:
    """Return the fields of a launch of Megatron-DeepSpeed: options of Megatron-LM, and those of DeepSpeed."""
    own: dict[str, str] = {}
    rest: list[str] = []
    words = list(source.words)
    while words:
        word = words.pop(0)
        name, equals, value = word.partition("=")
        field = name.removeprefix("--").replace("-", "_")
        if not name.startswith("--") or field not in OF_MEGATRON:
            rest.append(word)
            continue
        follows = OF_MEGATRON[field] and not equals
        own[field] = words.pop(0) if follows and words else value
    launch = parse_megatron_args(shlex.join(rest), source.where)
    config = own.get("deepspeed_config")
    given = {} if config is None else source.named_file(config, "--deepspeed_config").given()
    stage = own.get("zero_stage")
    if stage is not None and STAGE in given and str(given[STAGE].value) != stage:
        problem = f"has --zero-stage {stage}, but {config} has stage {given[STAGE].value}; give both the same."
        raise InputError(source.where, problem)
    sizes = {MICRO_BATCH: launch.micro_batch_size, BATCH: launch.global_batch_size, STAGE: stage}
    found = config_fields(given, source.where, {name: str(size) for name, size in sizes.items() if size is not None})
    fields = {name: getattr(launch, name) for name in OF_LAUNCH}
    if "checkpoint_activations" in own:
        layers = own.get("checkpoint_num_layers", "1")
        if not re.fullmatch("[1-9][0-9]{0,3}", layers):
            raise InputError(source.where, f"--checkpoint-num-layers must be a whole number >= 1, got {shown(layers)}.")
        fields |= {"recompute_granularity": "full", "recompute_num_layers": int(layers)}
    precision = launch.precision if given.keys().isdisjoint((BF16, FP16)) else found["precision"]
    return (
        fields
        | found
        | {
            "precision": precision,
            "space": SPACE,
            "not_modelled": (*launch.not_modelled, *found["not_modelled"]),
            "notes": (*launch.notes, *found["notes"]),
            "training_fields": {**launch.training_fields, **found["training_fields"]},
        }
    )


OF_LAUNCH = (
    "model",
    "options",
    "tensor_model_parallel_size",
    "pipeline_model_parallel_size",
    "context_parallel_size",
    "expert_model_parallel_size",
    "seq_length",
    "sequence_parallel",
    "pipeline_layout",
)
"""Fields of a launch that the options of Megatron-LM set in one of Megatron-DeepSpeed."""


def export_deepspeed(plan: Plan) -> dict[str, str]:
    """Return the files of a launch; raise ``InputError`` if DeepSpeed cannot run the plan."""
    files = {"ds_config.json": json.dumps(nested(settings(plan)), indent=2) + "\n"}
    shares = node_shares(plan, "DeepSpeed")
    for share in shares:
        if list(share.gpus) != sorted(share.gpus):
            raise InputError(
                "--format",
                f"DeepSpeed's launcher sorts the GPUs of a host, but the ranks of {share.host or 'a host'} are on GPUs "
                f"{share.visible_devices}. Export for torchrun, slurm or mpi.",
            )
    hosts = "".join(f"{share.host} slots={plan.gpus_per_node}\n" for share in shares)
    return {
        **({"hostfile.txt": hosts} if shares[0].host is not None else {}),
        **files,
        "deepspeed_env": _environment(plan),
        "launch.sh": _launch(plan, shares),
    }


def _environment(plan: Plan) -> str:
    """Return the content of the file that ``DS_ENV_FILE`` names: environment variables for every host."""
    found = [ONE_CONNECTION, CUDA_ORDER, *nccl_settings(plan, SHARDED)]
    return "".join(f"{setting.name}={setting.value}\n" for setting in found)


def settings(plan: Plan) -> dict[str, Any]:
    """Return the settings of DeepSpeed's configuration that run a plan: batch, ZeRO stage and precision."""
    training, config = recorded_training(plan), plan.config
    _refuse(plan, training)
    found: dict[str, Any] = {
        BATCH: plan.global_batch_size,
        MICRO_BATCH: config.micro_batch_size,
        STEPS: config.num_microbatches(plan.global_batch_size),
        STAGE: config.sharding_stage,
        **({OVERLAP: True} if config.overlap_grad_reduce else {}),
    }
    offload = host_keeps(training, config)
    if offload.optimizer_offload_fraction:
        found |= {HOST_STATES: "cpu", HOST_SHARE: offload.optimizer_offload_fraction}
    if offload.parameters:
        found[HOST_PARAMETERS] = "cpu"
    if training.precision != "fp32":
        wide = "fp32" if training.accumulate_allreduce_grads_in_fp32 else training.precision
        found |= {f"{training.precision}.enabled": True, SUMS: wide, "communication_data_type": wide}
    return found


MODEL_FIELDS = tuple(field.name for field in fields(ModelSpec) if field.name != "adapters")
"""Fields of a model that the program of a launch has; it has no adapters."""


def check(model: ModelSpec, training: TrainingSpec) -> None:
    """Raise ``InputError`` for a model or training that DeepSpeed does not have."""
    refuse_unwritten("DeepSpeed", model, MODEL_FIELDS)
    refuse_unwritten("DeepSpeed", written_training(training), TRAINING_FIELDS)


def _refuse(plan: Plan, training: TrainingSpec) -> None:
    config = plan.config
    refuse_async_sends("DeepSpeed", plan)
    refuse_second_order("DeepSpeed", plan)
    refuse_unwritten("DeepSpeed", recorded_model(plan), MODEL_FIELDS)
    refuse_unwritten("DeepSpeed", training, TRAINING_FIELDS)
    # DeepSpeed overlaps gradients only with ZeRO and a single stage.
    hidden = config.pipeline_model_parallel_size == 1 and config.sharding_stage > 0
    refuse_unwritten("DeepSpeed", config, (*CONFIG_FIELDS, *(("overlap_grad_reduce",) if hidden else ())))
    if len(set(config.layers_per_stage)) > 1:
        raise InputError(
            "layers_per_stage",
            f"{list(config.layers_per_stage)} are not equal, and DeepSpeed's PipelineModule cannot express "
            "unequal stages.",
        )
    if config.sharding_stage > 1 and config.pipeline_model_parallel_size > 1:
        raise InputError("zero_stage", f"is {config.sharding_stage}; DeepSpeed's pipeline supports stages 0 and 1.")
    if config.recompute_granularity == "selective":
        raise InputError(
            "recompute_granularity",
            "is selective; DeepSpeed's pipeline recomputes whole layers or nothing. Solve with --recompute none,full.",
        )


def _launch(plan: Plan, shares: Sequence[NodeShare]) -> str:
    config = plan.config
    degrees: list[list[object]] = [
        ["--tensor-model-parallel-size", config.tensor_model_parallel_size],
        ["--pipeline-model-parallel-size", config.pipeline_model_parallel_size],
        ["--micro-batch-size", config.micro_batch_size],
        ["--global-batch-size", plan.global_batch_size],
        ["--zero-stage", config.sharding_stage],
    ]
    if config.sequence_parallel:
        degrees.append(["--sequence-parallel"])
    if config.recompute_granularity == "full":
        degrees += [
            ["--checkpoint-activations", "--deepspeed-activation-checkpointing"],
            ["--checkpoint-num-layers", config.recompute_num_layers],
        ]
    whole = all(share.gpus == tuple(range(plan.gpus_per_node)) for share in shares)
    named = shares[0].host is not None
    chosen = "@".join(f"{share.host}:{share.visible_devices}" for share in shares)
    include = "" if whole else f"--include {quoted([chosen])} "
    if not named and not whole:
        include = '--include "$(IFS=@; echo "${CHOSEN[*]}")" '
    stages = (
        f"Stages hold {config.layers_per_stage[0]} layers each: with a PipelineModule of your own, split by\n"
        f'"type:<your layer>" and num_stages={config.pipeline_model_parallel_size}.'
    )
    place, hosts = "hostfile.txt", master_lines(shares[0].host)
    if not named:
        place, hosts = "your hosts", _unnamed(shares, plan.gpus_per_node)
    usage = comment(
        f"Run on the first host of {place}, from the folder that holds these files:\n"
        "  bash launch.sh SCRIPT [its other arguments]\n"
        "SCRIPT takes Megatron-DeepSpeed's arguments (its pretrain_gpt.py); architecture, data and schedule are yours\n"
        f"to give. {stages if config.pipeline_model_parallel_size > 1 else ''}".rstrip()
        + f"\n{tensor_overlap_remark('DeepSpeed', config)}".rstrip()
        + f"\n{optimizer_remark(recorded_training(plan))}".rstrip()
    )
    if not named:
        usage += "\n" + comment(f"HOSTFILE names a file with your hosts.\n{unnamed_note(len(shares))}")
    return "\n".join(
        [
            "#!/bin/bash",
            usage,
            "set -euo pipefail",
            *array_lines("DEGREES", degrees),
            "SCRIPT=${1:?the training script is missing}",
            "shift",
            *hosts,
            "export DS_ENV_FILE=deepspeed_env",
            f"exec deepspeed --hostfile hostfile.txt {include}\\",
            '  --master_addr "$MASTER_ADDR" --master_port "$MASTER_PORT" \\',
            '  "$SCRIPT" --deepspeed --deepspeed_config ds_config.json "${DEGREES[@]}" "$@"',
            "",
        ]
    )


def _unnamed(shares: Sequence[NodeShare], gpus_per_node: int) -> list[str]:
    """Return bash lines that write the host file from the user's list of hosts, with the GPUs used on each host."""
    gpus = [share.visible_devices for share in shares]
    lines = [
        *hosts_of_file_lines(len(shares)),
        f"export MASTER_PORT=${{MASTER_PORT:-{MASTER_PORT}}}",
        f'printf "%s slots={gpus_per_node}\\n" "${{HOSTS[@]}}" > hostfile.txt',
    ]
    if all(share.gpus == tuple(range(gpus_per_node)) for share in shares):
        return lines
    each = 'for node in "${!HOSTS[@]}"; do CHOSEN+=("${HOSTS[$node]}:${GPUS[$node]}"); done'
    return [*lines, *array_lines("GPUS", [gpus]), "CHOSEN=()", each]


TARGET = Target(
    export_deepspeed,
    "launch.sh, hostfile.txt, ds_config.json, deepspeed_env",
)

"""
DeepSpeed: host file of its launcher, its configuration, and the degrees as options of Megatron-DeepSpeed.

The launcher numbers ranks in the order of the host file and, on a host, of GPU numbers
(``deepspeed/launcher/runner.py``). ``PipeModelDataParallelTopology`` orders ranks by tensor, then replica, then stage
(``deepspeed/runtime/pipe/topology.py``, 0.19). Plans in any other order are refused.
"""

import json
from collections.abc import Sequence
from typing import Any

from pipette_opt.base.errors import InputError
from pipette_opt.export.environment import CUDA_ORDER, Setting, nccl_settings
from pipette_opt.export.hosts import hosts_of_file_lines, unnamed_note
from pipette_opt.export.nodes import NodeShare, node_shares
from pipette_opt.export.recorded import (
    recorded_training,
    refuse_async_sends,
    refuse_second_order,
    refuse_unwritten,
    tensor_overlap_remark,
)
from pipette_opt.export.shell import MASTER_PORT, array_lines, comment, master_lines, quoted
from pipette_opt.export.target import Target
from pipette_opt.plans.plan import Plan
from pipette_opt.specs import TrainingSpec

TRAINING_FIELDS = ("precision", "accumulate_allreduce_grads_in_fp32", "attention_kernel", "loss_chunks")
CONFIG_FIELDS = (
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


def export_deepspeed(plan: Plan) -> dict[str, str]:
    """Return the files of a launch; raise ``InputError`` if DeepSpeed cannot run the plan."""
    training = recorded_training(plan)
    _refuse(plan, training)
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
        "ds_config.json": json.dumps(configuration(plan, training), indent=2) + "\n",
        "deepspeed_env": _environment(plan),
        "launch.sh": _launch(plan, shares),
    }


def _environment(plan: Plan) -> str:
    """Return the content of the file that ``DS_ENV_FILE`` names: environment variables for every host."""
    settings = [ONE_CONNECTION, CUDA_ORDER, *nccl_settings(plan, SHARDED)]
    return "".join(f"{setting.name}={setting.value}\n" for setting in settings)


def configuration(plan: Plan, training: TrainingSpec) -> dict[str, Any]:
    """Return DeepSpeed's configuration: batch, ZeRO stage and precision."""
    config = plan.config
    content: dict[str, Any] = {
        "train_batch_size": plan.global_batch_size,
        "train_micro_batch_size_per_gpu": config.micro_batch_size,
        "gradient_accumulation_steps": config.num_microbatches(plan.global_batch_size),
        "zero_optimization": {
            "stage": config.sharding_stage,
            **({"overlap_comm": True} if config.overlap_grad_reduce else {}),
        },
    }
    if training.precision != "fp32":
        content[training.precision] = {"enabled": True}
        wide = training.accumulate_allreduce_grads_in_fp32
        content["data_types"] = {"grad_accum_dtype": "fp32" if wide else training.precision}
        content["communication_data_type"] = "fp32" if wide else training.precision
    return content


def _refuse(plan: Plan, training: TrainingSpec) -> None:
    config = plan.config
    refuse_async_sends("DeepSpeed", plan)
    refuse_second_order("DeepSpeed", plan)
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
    "consecutive ranks on each host, GPUs ascending",
)

"""
Hugging Face Accelerate: a configuration for fully sharded data parallelism (FSDP 2), and a script that starts a host.

The trainers of transformers, TRL, Axolotl and LLaMA-Factory run below ``accelerate launch``. Keys and rules are those
of accelerate 1.15: ``commands/config/config_args.py``, ``commands/launch.py``, ``parallelism_config.py``. Batch sizes
are arguments of these trainers (transformers' ``TrainingArguments``), so that the script writes them.
"""

from typing import Any

import yaml

from pipette_opt.base.errors import InputError
from pipette_opt.export.environment import CUDA_ORDER, nccl_settings
from pipette_opt.export.nodes import NodeShare, node_shares
from pipette_opt.export.recorded import recorded_training, refuse_async_sends, refuse_unwritten
from pipette_opt.export.shell import quoted
from pipette_opt.export.target import PER_HOST, Target
from pipette_opt.export.torchrun import launch_script, nodes_file
from pipette_opt.plans.plan import Plan
from pipette_opt.specs import TrainingSpec

CONFIG_FILE = "accelerate.yaml"

TRAINING_FIELDS = ("precision", "accumulate_allreduce_grads_in_fp32", "attention_kernel", "loss_chunks")
CONFIG_FIELDS = (
    "recompute_granularity",
    "use_distributed_optimizer",
    "zero_stage",
    "num_distributed_optimizer_instances",
    "overlap_grad_reduce",
    "overlap_param_gather",
)
"""Fields of a configuration that Accelerate expresses; FSDP always overlaps both collectives."""

SOLVE_WITH = "--tp 1 --pp 1 --cp 1 --data-parallel-sharding-strategy optim_grads_params"
"""Options of ``solve`` for plans of fully sharded data parallelism alone."""


def export_accelerate(plan: Plan) -> dict[str, str]:
    """Return configuration, node order and launch script; raise ``InputError`` if Accelerate cannot run the plan."""
    training = recorded_training(plan)
    _refuse(plan, training)
    shares = node_shares(plan, "accelerate")
    usage = (
        "Then the program and its arguments, e.g. train.py --model_name_or_path meta-llama/Llama-3.1-8B.\n"
        "Attention as the plan has it: "
        + ("a fused kernel (flash or sdpa)." if training.attention_kernel == "flash" else "attn_implementation eager.")
    )
    agent = [
        f'accelerate launch --config_file {CONFIG_FILE} --machine_rank "$NODE_RANK"',
        '--main_process_ip "$MASTER_ADDR" --main_process_port "$MASTER_PORT"',
    ]
    return {
        CONFIG_FILE: _text(plan, configuration(plan, shares, training)),
        **nodes_file(shares),
        "launch.sh": launch_script(
            shares,
            usage=usage,
            settings=[CUDA_ORDER, *nccl_settings(plan)],
            program=f'"$@" {quoted(batch_arguments(plan))}',
            agent=agent,
        ),
    }


def configuration(plan: Plan, shares: list[NodeShare], training: TrainingSpec) -> dict[str, Any]:
    """
    Return the keys of the configuration file.

    ZeRO 2 and less keep their parameters between the passes, which FSDP does if it does not reshard them.
    """
    config = plan.config
    groups = config.num_distributed_optimizer_instances
    found: dict[str, Any] = {
        "compute_environment": "LOCAL_MACHINE",
        "distributed_type": "FSDP",
        "mixed_precision": "no" if training.precision == "fp32" else training.precision,
        "num_machines": len(shares),
        "num_processes": config.world_size,
        "rdzv_backend": "static",
        "fsdp_config": {
            "fsdp_version": 2,
            "fsdp_auto_wrap_policy": "TRANSFORMER_BASED_WRAP",
            "fsdp_reshard_after_forward": config.sharding_stage == 3,
            "fsdp_activation_checkpointing": config.recompute_granularity == "full",
            "fsdp_offload_params": False,
            "fsdp_state_dict_type": "SHARDED_STATE_DICT",
        },
    }
    if groups > 1:
        found["parallelism_config"] = {
            "parallelism_config_dp_replicate_size": groups,
            "parallelism_config_dp_shard_size": config.data_parallel_size // groups,
        }
    return found


def batch_arguments(plan: Plan) -> list[str]:
    """Return micro-batch and number of micro-batches as arguments of transformers' trainer."""
    config = plan.config
    steps = plan.global_batch_size // (config.data_parallel_size * config.micro_batch_size)
    return [
        "--per_device_train_batch_size",
        str(config.micro_batch_size),
        "--gradient_accumulation_steps",
        str(steps),
    ]


def _text(plan: Plan, keys: dict[str, Any]) -> str:
    head = (
        f"# {plan.config.label()}, global batch {plan.global_batch_size}; for accelerate 1.15.\n"
        "# Gradients are reduced in the format of mixed_precision: fewer bytes than a plan in fp32 counts.\n"
    )
    return head + yaml.safe_dump(keys, sort_keys=False)


def _refuse(plan: Plan, training: TrainingSpec) -> None:
    config = plan.config
    refuse_async_sends("accelerate", plan)
    for name in ("tensor_model_parallel_size", "pipeline_model_parallel_size", "context_parallel_size"):
        if getattr(config, name) > 1:
            problem = f"is {getattr(config, name)}, but only fully sharded data parallelism is written for accelerate"
            raise InputError(name, f"{problem}; solve with {SOLVE_WITH}.")
    refuse_unwritten("accelerate", training, TRAINING_FIELDS)
    refuse_unwritten("accelerate", config, CONFIG_FIELDS)
    if not config.use_distributed_optimizer or config.data_parallel_size == 1:
        raise InputError(
            "use_distributed_optimizer",
            f"is off, but accelerate's fully sharded data parallelism always shards; solve with {SOLVE_WITH}.",
        )
    if config.recompute_granularity == "selective":
        problem = "is selective, but FSDP recomputes whole layers or none"
        raise InputError("recompute_granularity", f"{problem}; solve with --recompute none,full.")
    if training.gradient_bytes < 4:
        problem = "is off, but accelerate keeps gradients in fp32, the format of its master weights"
        raise InputError("accumulate_allreduce_grads_in_fp32", f"{problem}; solve with gradients in fp32.")


TARGET = Target(export_accelerate, "accelerate.yaml, launch.sh, nodes.txt", PER_HOST)

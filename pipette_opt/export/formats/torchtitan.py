"""
torchtitan 0.2: a TOML file, and a torchrun script that places the ranks.

From 0.3 on torchtitan uses Python configurations instead of TOML. The rules here are those of 0.2.2:
``config/job_config.py``, ``distributed/parallel_dims.py`` (rank order), ``distributed/pipeline_parallel.py`` and
``models/llama3/infra/parallelize.py`` (features that can be combined).
"""

import json
from collections.abc import Mapping
from dataclasses import fields
from types import MappingProxyType
from typing import Any, NamedTuple

from pipette_opt.base.errors import InputError
from pipette_opt.export.environment import CUDA_ORDER, nccl_settings
from pipette_opt.export.nodes import node_shares
from pipette_opt.export.recorded import (
    recorded_model,
    recorded_training,
    refuse_async_sends,
    refuse_second_order,
    refuse_unwritten,
    tensor_overlap_remark,
)
from pipette_opt.export.target import PER_HOST, Target
from pipette_opt.export.torchrun import launch_script, nodes_file
from pipette_opt.parallel import ParallelConfig
from pipette_opt.parallel.recompute import OPERATIONS
from pipette_opt.plans.plan import Plan
from pipette_opt.specs import ModelSpec, TrainingSpec

CONFIG_FILE = "torchtitan.toml"

TRAINING_FIELDS = ("precision", "accumulate_allreduce_grads_in_fp32", "attention_kernel", "loss_chunks")
CONFIG_FIELDS = (
    "context_parallel_size",
    "virtual_pipeline_model_parallel_size",
    "pipeline_model_parallel_layout",
    "sequence_parallel",
    "recompute_granularity",
    "recompute_modules",
    "use_distributed_optimizer",
    "zero_stage",
    "num_distributed_optimizer_instances",
    "overlap_grad_reduce",
    "overlap_param_gather",
    "tp_comm_overlap",
)
"""
Fields of a configuration that torchtitan expresses; its sharded data parallelism always overlaps both collectives.
"""


class Shape(NamedTuple):
    """Sizes that identify a flavor of a torchtitan model."""

    num_layers: int
    hidden_size: int
    ffn_hidden_size: int
    num_attention_heads: int
    num_query_groups: int
    vocab_size: int


LLAMA_3_FLAVORS: Mapping[Shape, str] = MappingProxyType(
    {
        Shape(32, 4096, 14336, 32, 8, 128256): "8B",
        Shape(80, 8192, 28672, 64, 8, 128256): "70B",
        Shape(126, 16384, 53248, 128, 8, 128256): "405B",
    }
)
"""
Flavors of torchtitan's ``llama3`` (``models/llama3/__init__.py``), by shape; MLP widths computed from multipliers.
"""


FREE = ("name", "max_position_embeddings", "make_vocab_size_divisible_by")
"""Fields of a model that a flavor does not fix: torchtitan does not pad the vocabulary, and allows any position."""


def export_torchtitan(plan: Plan) -> dict[str, str]:
    """Return configuration, node order and launch script; raise ``InputError`` if torchtitan cannot run the plan."""
    sections = configuration(plan)
    shares = node_shares(plan, "torchrun, which starts torchtitan,")
    usage = (
        "Arguments override torchtitan.toml, e.g. --training.dataset c4 --model.hf_assets_path assets/.\n"
        "MASTER_ADDR and MASTER_PORT may be set."
    )
    # Parameters are gathered beside compute; a single connection, as for Megatron-LM, would serialise that.
    settings = [CUDA_ORDER, *nccl_settings(plan)]
    program = f'-m torchtitan.train --job.config_file {CONFIG_FILE} "$@"'
    return {
        CONFIG_FILE: toml_text(plan, sections),
        **nodes_file(shares),
        "launch.sh": launch_script(shares, usage=usage, settings=settings, program=program),
    }


def configuration(plan: Plan) -> dict[str, dict[str, Any]]:
    """
    Return the sections of the TOML file.

    torchtitan has no ZeRO 1 or 2. Fully sharded data parallelism that does not reshard its parameters moves as many
    bytes: an all-gather and a reduce-scatter per iteration; it also shards the optimizer.
    """
    model, training, config = recorded_model(plan), recorded_training(plan), plan.config
    _refuse(plan, model, training)
    sharded, groups = config.use_distributed_optimizer, config.num_distributed_optimizer_instances
    pipelined = config.pipeline_model_parallel_size > 1
    replica_batch = plan.global_batch_size // config.data_parallel_size
    parallelism: dict[str, Any] = {
        "data_parallel_replicate_degree": groups if sharded else config.data_parallel_size,
        "data_parallel_shard_degree": config.data_parallel_size // groups if sharded else 1,
        "fsdp_reshard_after_forward": "always" if config.sharding_stage == 3 else "never",
        "tensor_parallel_degree": config.tensor_model_parallel_size,
        "context_parallel_degree": config.context_parallel_size,
        "pipeline_parallel_degree": config.pipeline_model_parallel_size,
    }
    if pipelined:
        parallelism |= {
            "pipeline_parallel_schedule": "1F1B" if config.num_chunks == 1 else "Interleaved1F1B",
            "pipeline_parallel_microbatch_size": config.micro_batch_size,
            "module_fqns_per_model_part": module_names(config),
        }
    return {
        "model": {"name": "llama3", "flavor": _flavor(model)},
        "training": {
            "local_batch_size": replica_batch if pipelined else config.micro_batch_size,
            "global_batch_size": plan.global_batch_size,
            "seq_len": training.seq_length,
            "dtype": "float32",
            "mixed_precision_param": "bfloat16" if training.precision == "bf16" else "float32",
            "mixed_precision_reduce": "float32",
        },
        "parallelism": parallelism,
        "activation_checkpoint": {"mode": config.recompute_granularity or "none"}
        | ({"selective_ac_option": "op"} if config.recompute_granularity == "selective" else {}),
    }


def module_names(config: ParallelConfig) -> list[list[str]]:
    """Return the module names of each chunk in model order; torchtitan's default gives end chunks fewer layers."""
    parts: list[list[str]] = []
    layer = 0
    for chunk in config.layers_per_chunk:
        for count in chunk:
            parts.append([f"layers.{number}" for number in range(layer, layer + count)])
            layer += count
    parts[0].insert(0, "tok_embeddings")
    parts[-1] += ["norm", "output"]
    return parts


def toml_text(plan: Plan, sections: Mapping[str, Mapping[str, Any]]) -> str:
    """Return the text of the TOML file; numbers, names and lists of names are the same in TOML and JSON."""
    lines = [f"# {plan.config.label()}, global batch {plan.global_batch_size}; for torchtitan 0.2."]
    if plan.config.sharding_stage in (1, 2) and plan.config.data_parallel_size > 1:
        lines.append(
            "# Fully sharded data parallelism that keeps its parameters, for the plan's distributed optimizer."
        )
    lines += [f"# {line}" for line in tensor_overlap_remark("torchtitan", plan.config).splitlines()]
    for name, entries in sections.items():
        lines += ["", f"[{name}]", *(f"{key} = {json.dumps(value)}" for key, value in entries.items())]
    return "\n".join(lines) + "\n"


def _flavor(model: ModelSpec) -> str:
    shape = Shape(*(getattr(model, name) for name in Shape._fields))
    if shape not in LLAMA_3_FLAVORS:
        raise InputError(
            "model",
            f"{model.name} has the shape of no torchtitan llama3 flavor "
            f"({', '.join(LLAMA_3_FLAVORS.values())}): {shape}.",
        )
    _refuse_another(model, shape, LLAMA_3_FLAVORS[shape])
    return LLAMA_3_FLAVORS[shape]


def _refuse_another(model: ModelSpec, shape: Shape, flavor: str) -> None:
    """
    Raise ``InputError`` for a model that has a flavor's shape but differs in another field.

    All flavors have Llama 3.1's positions (``models/llama3/model/args.py``): base 500,000, frequencies scaled by 8.
    """
    wanted = ModelSpec(
        name=flavor,
        **shape._asdict(),
        kv_channels=shape.hidden_size // shape.num_attention_heads,
        max_position_embeddings=model.max_position_embeddings,
        gated_linear_unit=True,
        untie_embeddings_and_output_weights=True,
        add_bias_linear=False,
        add_qkv_bias=False,
        normalization="RMSNorm",
        position_embedding_type="rope",
        norm_epsilon=1e-5,
        rotary_base=500000,
        rope_scaling_factor=8.0,
    )
    for field in fields(ModelSpec):
        found, has = getattr(model, field.name), getattr(wanted, field.name)
        if field.name not in FREE and found != has:
            raise InputError(field.name, f"is {found!r}, but torchtitan's llama3 {flavor} has {has!r}, like Llama 3.1.")


def _refuse(plan: Plan, model: ModelSpec, training: TrainingSpec) -> None:
    config = plan.config
    refuse_async_sends("torchtitan", plan)
    refuse_second_order("torchtitan", plan)
    refuse_unwritten("torchtitan", training, TRAINING_FIELDS)
    refuse_unwritten("torchtitan", config, CONFIG_FIELDS)
    tp, dp, pp = config.tensor_model_parallel_size, config.data_parallel_size, config.pipeline_model_parallel_size
    if tp > 1 and not config.sequence_parallel:
        raise InputError(
            "sequence_parallel", "is off, but torchtitan's tensor parallelism always uses sequence parallelism."
        )
    if config.recompute_granularity == "selective" and config.recompute_modules != OPERATIONS:
        raise InputError(
            "recompute_granularity",
            "is selective, but torchtitan's selective recomputation differs from Megatron's. Solve with "
            "--recompute none,ops,full.",
        )
    if training.attention_kernel != "flash":
        raise InputError(
            "attention_kernel",
            f"is {training.attention_kernel}, but torchtitan uses a fused kernel; solve with --attention-kernel flash.",
        )
    if training.precision == "fp16":
        raise InputError("precision", "is fp16, but torchtitan trains in bf16 or fp32; solve with --precision bf16.")
    if not training.accumulate_allreduce_grads_in_fp32 and training.precision == "bf16":
        raise InputError("accumulate_allreduce_grads_in_fp32", "is off, but torchtitan reduces gradients in fp32.")
    sharded = config.use_distributed_optimizer and dp > 1
    if dp > 1 and not sharded and config.world_size > dp:
        raise InputError(
            "use_distributed_optimizer",
            "is off, but torchtitan combines data parallelism with other parallelism only if it is sharded.",
        )
    if training.precision == "bf16" and not sharded and config.context_parallel_size == 1 and tp * pp > 1:
        raise InputError(
            "precision",
            "is bf16, but torchtitan trains this configuration in fp32: bf16 needs sharded data or context "
            "parallelism.",
        )


TARGET = Target(export_torchtitan, "torchtitan.toml, launch.sh, nodes.txt", PER_HOST)

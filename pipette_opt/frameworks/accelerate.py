"""
Hugging Face, both ways: Accelerate's configuration, and the arguments of transformers' trainers.

The trainers of transformers, TRL and others run below ``accelerate launch``, ``torchrun`` or ``deepspeed``. Keys and
rules are those of accelerate 1.15 (``commands/config/config_args.py``, ``commands/launch.py``,
``parallelism_config.py``) and of transformers' ``TrainingArguments`` (``training_args.py``). A plan is written as a
configuration for fully sharded data parallelism (FSDP 2), with a script that starts a host and gives the batch sizes.
"""

import re
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import yaml

from pipette_opt.base.errors import InputError
from pipette_opt.export.environment import CUDA_ORDER, nccl_settings
from pipette_opt.export.nodes import node_shares
from pipette_opt.export.recorded import recorded_training, refuse_async_sends, refuse_unwritten, written_training
from pipette_opt.export.shell import quoted
from pipette_opt.export.target import Target
from pipette_opt.export.torchrun import launch_script, nodes_file
from pipette_opt.frameworks import deepspeed
from pipette_opt.plans.plan import Plan
from pipette_opt.read.files import parse_json
from pipette_opt.read.foreign import Source
from pipette_opt.read.model import read_model
from pipette_opt.read.model_names import preset_called
from pipette_opt.read.setting_table import Row, Values, approximated, pattern_of, refused, values_of
from pipette_opt.read.sizing_words import Given
from pipette_opt.specs import ModelSpec, NotModelled, TrainingSpec

CONFIG_FILE = "accelerate.yaml"

SOFTWARE = "torchtitan"
"""Stack that prices fully sharded data parallelism of PyTorch."""

MICRO_BATCH, STEPS = "per_device_train_batch_size", "gradient_accumulation_steps"
RECOMPUTES, FSDP_RECOMPUTES = "gradient_checkpointing", "fsdp_activation_checkpointing"
KIND, PROCESSES, PRECISION = "distributed_type", "num_processes", "mixed_precision"
RESHARD, STRATEGY, FSDP = "fsdp_reshard_after_forward", "fsdp_sharding_strategy", "fsdp"
DEEPSPEED, DEEPSPEED_FILE = "deepspeed", "deepspeed_config_file"
REPLICATE, SHARD = "parallelism_config_dp_replicate_size", "parallelism_config_dp_shard_size"
TENSOR, CONTEXT = "parallelism_config_tp_size", "parallelism_config_cp_size"
LIGER = "use_liger_kernel"
LENGTHS = ("max_length", "max_seq_length", "model_max_length", "block_size", "seq_length")
MODELS = ("model_name_or_path", "model_name", "model_id", "base_model", "model")
ATTENTION, COMPILED = "attn_implementation", "torch_compile"

STAGES: Mapping[str, int] = MappingProxyType(
    {"full_shard": 3, "1": 3, "shard_grad_op": 2, "2": 2, "no_shard": 0, "3": 0, "true": 3, "false": 2}
)
"""ZeRO stage by sharding strategy of FSDP 1, its number, or whether FSDP 2 reshards after the forward pass."""

TABLE = (
    *(Row(name, "word", None) for name in (*MODELS, KIND, PRECISION, RESHARD, STRATEGY, FSDP)),
    *(Row(name, "whole", None) for name in (MICRO_BATCH, PROCESSES, *LENGTHS)),
    *(Row(name, "whole", 1) for name in (STEPS, REPLICATE, TENSOR, CONTEXT)),
    Row(SHARD, "whole", -1),
    *(
        Row(name, "flag", False)
        for name in (RECOMPUTES, FSDP_RECOMPUTES, "bf16", "fp16", "use_fsdp", "use_deepspeed", "packing", COMPILED)
    ),
    *(Row(name, "word", None) for name in (DEEPSPEED, DEEPSPEED_FILE, "fsdp_config", ATTENTION)),
    Row("deepspeed_config", "word", None),
    Row("fsdp_version", "whole", 1),
    Row("zero_stage", "whole", 2),
    *(
        Row(name, "word", "none", words=("none", "cpu", "nvme"))
        for name in ("offload_optimizer_device", "offload_param_device")
    ),
    refused("fsdp_offload_params", "flag", False, "parameters, gradients and states in the host's memory."),
    approximated("optim", "word", "adamw_torch", "memory", "either", "Adam with two fp32 states is counted."),
    Row(LIGER, "flag", False),
    *(
        approximated(
            name, "word", "float32", "memory", "less", "Weights loaded in 16 bits have no fp32 copy; one is counted."
        )
        for name in ("torch_dtype", "dtype")
    ),
    approximated("auto_find_batch_size", "flag", False, "both", "less", "The batch shrinks where memory runs out."),
)
"""Settings that time or memory depend on; those of Accelerate's sections without their section."""

HARMLESS = pattern_of(
    *("compute_environment", "debug", "downcast_bf16", "enable_cpu_affinity", "machine_rank", "main_process_ip"),
    *("main_process_port", "main_training_function", "num_machines", "rdzv_backend", "rdzv_conf", "same_network"),
    *(
        "tpu_env",
        "tpu_use_cluster",
        "tpu_use_sudo",
        "use_cpu",
        "gpu_ids",
        "config_file",
        "deepspeed_multinode_launcher",
    ),
    *("deepspeed_hostfile", "zero3_init_flag", "zero3_save_16bit_model", "gradient_clipping", "dynamo_config"),
    *("fsdp_auto_wrap_policy", "fsdp_transformer_layer_cls_to_wrap", "fsdp_min_num_params", "fsdp_state_dict_type"),
    *("fsdp_cpu_ram_efficient_loading", "fsdp_sync_module_states", "fsdp_use_orig_params", "fsdp_forward_prefetch"),
    *("fsdp_backward_prefetch", "output_dir", "learning_rate", "num_train_epochs", "max_steps", "seed", "report_to"),
    *("logging_steps", "save_steps", "save_strategy", "eval_steps", "eval_strategy", "evaluation_strategy", "tf32"),
    *("warmup_ratio", "warmup_steps", "weight_decay", "lr_scheduler_type", "dataset_name", "save_total_limit"),
    *("gradient_checkpointing_kwargs", "dataloader_num_workers", "per_device_eval_batch_size", "max_grad_norm"),
    *("do_train", "do_eval", "overwrite_output_dir", "run_name", "ddp_timeout", "remove_unused_columns", "local_rank"),
    *("bf16_full_eval", "fp16_full_eval", "logging_strategy", "adam_beta1", "adam_beta2", "adam_epsilon"),
)
"""Settings on which neither time nor memory depends."""

SECTIONS = ("fsdp_config", "deepspeed_config", "parallelism_config")
"""Sections of Accelerate's file; the names in them are unique, and its command line has them without section."""


LAUNCHER = "replicas-first"

TRAINING: Mapping[str, Any] = MappingProxyType({"whole_gradients": True, "fused_norm": False})
"""
Fields of the training that trainers set: they accumulate whole gradients (``Accelerator.no_sync``), and norms of
transformers are several kernels.
"""

SPACE: Mapping[str, Any] = MappingProxyType(
    {
        "tensor_parallel": (1,),
        "pipeline_parallel": (1,),
        "context_parallel": (1,),
        "expert_parallel": (1,),
        "data_parallel_sharding_strategy": ("optim_grads", "optim_grads_params"),
        "recompute": (None, "full"),
        "offload": (None,),
        "tp_comm_overlap": False,
    }
)
"""Fields of a search space with the values that Accelerate can run."""

TRAINING_FIELDS = (
    "whole_gradients",
    "fused_norm",
    "precision",
    "accumulate_allreduce_grads_in_fp32",
    "attention_kernel",
    "loss_chunks",
)
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


def read(source: Source) -> dict[str, Any]:
    """
    Return the fields of a launch: of Accelerate's file, or of a trainer's command line below any launcher.

    Raises
    ------
    InputError
        If the batch of a GPU is not given, for a setting that is not modelled, and for adapters and quantisation.
    """
    given, config = _given(source)
    values = values_of(TABLE, given, source.where, source.framework.name, HARMLESS)
    if values[MICRO_BATCH] is None and config is None:
        problem = f"does not say {MICRO_BATCH}"
        raise InputError(source.where, f"{problem}; give the command with its arguments, and {MICRO_BATCH} among them.")
    lengths = [values[name] for name in LENGTHS if values[name] is not None]
    found = {
        "tensor_model_parallel_size": values[TENSOR],
        "context_parallel_size": values[CONTEXT],
        "seq_length": lengths[0] if lengths else None,
        "model_name": _preset(values),
        "recompute_granularity": "full" if values[RECOMPUTES] or values[FSDP_RECOMPUTES] else None,
        "num_processes": values[PROCESSES],
        "moe_token_dispatcher_type": "alltoall",
    }
    own = _by_deepspeed(values, config) if config is not None else _by_pytorch(values)
    training = {**own["training_fields"], **_kernels(values)}
    if values[CONTEXT] > 1:
        training["cp_comm_type"] = "all_gather"
    return {
        **found,
        **own,
        "training_fields": training,
        "not_modelled": (*values.not_modelled, *own["not_modelled"]),
        "notes": (*values.notes, *own["notes"], *_length_note(values, lengths)),
        "settings": values.given,
    }


def _kernels(values: Values) -> dict[str, Any]:
    """Return the fields of the training that kernels set: attention, norms, and a loss fused with the head (Liger)."""
    found: dict[str, Any] = {}
    if values[ATTENTION] == "eager":
        found["attention_kernel"] = "unfused"
    if not (values[COMPILED] or values[LIGER]):
        found["fused_norm"] = False
    preset = _preset(values)
    if values[LIGER] and preset:
        model = read_model(preset)
        found["loss_chunks"] = max(model.vocab_size // model.hidden_size, 1)
    return found


def _given(source: Source) -> tuple[dict[str, Given], dict[str, Given] | None]:
    """
    Return the settings of a launch, and those of DeepSpeed's configuration; ``None`` if it does not run DeepSpeed.

    The program's arguments come before the launcher's, and these before those of the launcher's file.
    """
    if source.file is not None:
        given = _plain(source.file.given())
    else:
        given = _plain(source.of_launcher("accelerate launch"))
        if "config_file" in given:
            given = _plain(source.named_file(str(given["config_file"].value), "--config_file").given()) | given
        given |= _trainer(source)
    if "fsdp_config" in given and isinstance(given["fsdp_config"].value, str):
        setting = given["fsdp_config"]
        if setting.value.lstrip().startswith("{"):
            keys: Any = parse_json(setting.value, setting.where)
            file = {name: Given(value, setting.where) for name, value in keys.items()}
        else:
            file = source.named_file(setting.value, "--fsdp_config").given()
        given = {f"fsdp_{name.removeprefix('fsdp_')}": value for name, value in file.items()} | given
    name = next((given[name].value for name in (DEEPSPEED, DEEPSPEED_FILE) if name in given), None)
    if name is None and given.get("deepspeed_config") and str(given["deepspeed_config"].value).endswith(".json"):
        name = given["deepspeed_config"].value
    uses = str(given[KIND].value).upper() == "DEEPSPEED" if KIND in given else "use_deepspeed" in given
    if name is None and not uses:
        return given, None
    if isinstance(name, str) and re.fullmatch("zero[0-3]", name):
        raise InputError(source.where, f"names a preset of DeepSpeed's configuration, {name}; give its JSON file.")
    return given, source.named_file(name, "--deepspeed").given() if isinstance(name, str) else {}


def _trainer(source: Source) -> dict[str, Given]:
    """Return the arguments of a trainer, those of its command line before those of the file that it names."""
    given = _plain(source.of_words())
    named = given["config"].value if "config" in given else source.words[0] if source.words else None
    if not isinstance(named, str) or not named.endswith((".yaml", ".yml", ".json")):
        return given
    given.pop("config", None)
    return _plain(source.named_file(named, "the trainer").given()) | given


def _plain(given: Mapping[str, Given]) -> dict[str, Given]:
    """Return settings by their names without section, with ``_`` for ``-``."""
    found = {}
    for name, setting in given.items():
        section, _, rest = name.replace("-", "_").partition(".")
        found[rest if section in SECTIONS and rest else name.replace("-", "_")] = setting
    return found


def _by_deepspeed(values: Values, config: Mapping[str, Given]) -> dict[str, Any]:
    """Return the fields that DeepSpeed's configuration sets, with the trainer's arguments for ``auto``."""
    is_16 = {name: values[name] or values[PRECISION] == name for name in ("bf16", "fp16")}
    trainer = {
        deepspeed.MICRO_BATCH: values[MICRO_BATCH],
        deepspeed.STEPS: values[STEPS],
        deepspeed.BF16: "true" if is_16["bf16"] else "false",
        deepspeed.FP16: "true" if is_16["fp16"] else "false",
    }
    for name, ours in ((deepspeed.MICRO_BATCH, MICRO_BATCH), (deepspeed.STEPS, STEPS)):
        theirs = config[name].value if name in config else deepspeed.AUTO
        if ours in values.given and theirs not in (deepspeed.AUTO, values[ours]):
            problem = f"has --{ours} {values[ours]}, but DeepSpeed's configuration has {name} {theirs}"
            raise InputError(values.place(ours), f"{problem}; give both the same, or auto.")
    if not config:
        trainer |= {
            deepspeed.STAGE: values["zero_stage"],
            deepspeed.HOST_STATES: values["offload_optimizer_device"],
            deepspeed.HOST_PARAMETERS: values["offload_param_device"],
        }
    return deepspeed.config_fields(config, values.where, trainer)


def _by_pytorch(values: Values) -> dict[str, Any]:
    """Return the fields of PyTorch's fully sharded or plain data parallelism."""
    kind = str(values[KIND] or "").upper()
    words = str(values[FSDP] or "").lower().split()
    is_sharded = kind == "FSDP" or values["use_fsdp"] or bool(words)
    if kind == "MEGATRON_LM":
        raise values.error(KIND, ", whose options this file abridges; give Megatron-LM's own.")
    if "offload" in words:
        raise values.error(FSDP, ", which keeps parameters in the host's memory and is not modelled.")
    strategy = str(values[RESHARD] or values[STRATEGY] or (words[0] if words else "full_shard")).lower()
    name = RESHARD if values[RESHARD] else STRATEGY if values[STRATEGY] else FSDP
    if is_sharded and strategy not in STAGES:
        raise values.error(name, ", which is not modelled; full_shard and shard_grad_op are.")
    stage = STAGES[strategy] if is_sharded else 0
    groups = values[REPLICATE] if is_sharded else 1
    hybrid = {"num_distributed_optimizer_instances": groups, "outer_dp_sharding_strategy": "no_shard"}
    precision = "bf16" if values["bf16"] or values[PRECISION] == "bf16" else "fp32"
    precision = "fp16" if values["fp16"] or values[PRECISION] == "fp16" else precision
    return {
        "software": SOFTWARE,
        "module": "accelerate",
        "data_parallel_size": values[REPLICATE] * values[SHARD] if values[SHARD] > 0 else None,
        "space": SPACE,
        "micro_batch_size": values[MICRO_BATCH],
        "replica_batch_size": values[MICRO_BATCH] * values[STEPS],
        "precision": precision,
        "zero_stage": stage or None,
        "use_distributed_optimizer": stage > 0,
        "num_distributed_optimizer_instances": groups,
        "groups_of_replicas": hybrid if groups > 1 else {},
        "overlap_grad_reduce": True,
        "overlap_param_gather": stage > 0,
        "gradients_in_fp32": True,
        "training_fields": {"whole_gradients": True} if stage else {},
        "not_modelled": () if values[COMPILED] else (NOT_COMPILED,),
        "notes": ("time and memory are counted as torchtitan's: no run below Accelerate was compared",),
    }


NOT_COMPILED = NotModelled(
    option=f"{COMPILED}=false",
    effect="both",
    direction="more",
    why="Activations and the loss are counted as torch.compile fuses them.",
)
"""Note on launches without ``torch.compile``, on which the stack's memory and times stand."""


def _length_note(values: Values, lengths: list[int]) -> list[str]:
    return [f"every sequence is counted with {lengths[0]:,} tokens"] if lengths and not values["packing"] else []


def _preset(values: Values) -> str:
    """Return the preset that the launch names; empty if it names none, or one that is not shipped."""
    name = next((values[name] for name in MODELS if values[name]), None)
    try:
        return (preset_called(name) if name else None) or ""
    except InputError:
        return ""


def export_accelerate(plan: Plan) -> dict[str, str]:
    """Return configuration, node order and launch script; raise ``InputError`` if Accelerate cannot run the plan."""
    found, training = settings(plan), recorded_training(plan)
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
        CONFIG_FILE: _text(plan, _file_keys(found, len(shares))),
        **nodes_file(shares),
        "launch.sh": launch_script(
            shares,
            usage=usage,
            settings=[CUDA_ORDER, *nccl_settings(plan)],
            program=f'"$@" {quoted([word for name in OF_TRAINERS for word in (f"--{name}", str(found[name]))])}',
            agent=agent,
        ),
    }


def settings(plan: Plan) -> dict[str, Any]:
    """
    Return the settings that run a plan, by their names in :data:`TABLE`: keys of the file, and the batch.

    ZeRO 1 and 2 keep their parameters between the passes, which FSDP does if it does not reshard them.
    """
    training, config = recorded_training(plan), plan.config
    _refuse(plan, training)
    groups = config.num_distributed_optimizer_instances
    hybrid = {REPLICATE: groups, SHARD: config.data_parallel_size // groups} if groups > 1 else {}
    return {
        KIND: "FSDP",
        PRECISION: "no" if training.precision == "fp32" else training.precision,
        PROCESSES: config.world_size,
        "fsdp_version": 2,
        RESHARD: config.sharding_stage == 3,
        FSDP_RECOMPUTES: config.recompute_granularity == "full",
        "fsdp_offload_params": False,
        **hybrid,
        MICRO_BATCH: config.micro_batch_size,
        STEPS: config.num_microbatches(plan.global_batch_size),
    }


def _file_keys(found: Mapping[str, Any], num_hosts: int) -> dict[str, Any]:
    """Return the keys of the configuration file, with their sections."""
    keys: dict[str, Any] = {
        "compute_environment": "LOCAL_MACHINE",
        "num_machines": num_hosts,
        "rdzv_backend": "static",
        "fsdp_config": {
            "fsdp_auto_wrap_policy": "TRANSFORMER_BASED_WRAP",
            "fsdp_state_dict_type": "SHARDED_STATE_DICT",
        },
    }
    for name, value in found.items():
        section = next((section for section in SECTIONS if name.startswith(section.removesuffix("config"))), None)
        if name in OF_TRAINERS:
            continue
        if section is None:
            keys[name] = value
        else:
            keys.setdefault(section, {})[name] = value
    return keys


OF_TRAINERS = (MICRO_BATCH, STEPS)
"""Settings that are arguments of a trainer, not keys of Accelerate's file."""


def _text(plan: Plan, keys: dict[str, Any]) -> str:
    head = (
        f"# {plan.config.label()}, global batch {plan.global_batch_size}; for accelerate 1.15.\n"
        "# Gradients are reduced in the format of mixed_precision: fewer bytes than a plan in fp32 counts.\n"
    )
    several = plan.config.num_microbatches(plan.global_batch_size) > 1
    if several and plan.config.sharding_stage > 1 and not recorded_training(plan).whole_gradients:
        head += (
            "# The plan counts shards of gradients between micro-batches. transformers' trainer keeps them whole\n"
            "# (Accelerator.no_sync); a loop of your own with sync_each_batch keeps shards.\n"
        )
    return head + yaml.safe_dump(keys, sort_keys=False)


def check(model: ModelSpec, training: TrainingSpec) -> None:
    """Raise ``InputError`` for training that Accelerate does not have."""
    refuse_unwritten("accelerate", written_training(training), TRAINING_FIELDS)


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


TARGET = Target(export_accelerate, "accelerate.yaml, launch.sh, nodes.txt")

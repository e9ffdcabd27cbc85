"""
Hugging Face, both ways: Accelerate's configuration, and the arguments of transformers' trainers.

The trainers of transformers, TRL and others run below ``accelerate launch``, ``torchrun`` or ``deepspeed``. Keys and
rules are those of accelerate 1.15 (``commands/config/config_args.py``, ``commands/launch.py``,
``parallelism_config.py``) and of transformers' ``TrainingArguments`` (``training_args.py``). A plan is written as a
configuration for fully sharded data parallelism (FSDP 2), with a script that starts a host and gives the batch sizes.
"""

import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace
from itertools import takewhile
from types import MappingProxyType
from typing import Any

import yaml

from pipette_opt.base.errors import InputError
from pipette_opt.export.environment import CUDA_ORDER, nccl_settings
from pipette_opt.export.nodes import node_shares
from pipette_opt.export.recorded import (
    OF_OPTIMIZER,
    optimizer_remark,
    recorded_model,
    recorded_training,
    refuse_async_sends,
    refuse_unwritten,
    written_training,
)
from pipette_opt.export.shell import quoted
from pipette_opt.export.target import Target
from pipette_opt.export.torchrun import launch_script, nodes_file
from pipette_opt.frameworks import deepspeed
from pipette_opt.plans.plan import Plan
from pipette_opt.read.files import parse_json
from pipette_opt.read.finetune import Finetune, bitsandbytes_adapters
from pipette_opt.read.foreign import Source, framework_module
from pipette_opt.read.frameworks import Framework
from pipette_opt.read.model import read_model
from pipette_opt.read.model_names import preset_called
from pipette_opt.read.optimizer_words import WORDS_OF_TRAINERS, counted_optimizer
from pipette_opt.read.setting_table import Row, Values, approximated, pattern_of, refused, values_of
from pipette_opt.read.sizing_words import Given
from pipette_opt.specs import ModelSpec, NotModelled, TrainingSpec
from pipette_opt.specs.activations import host_keeps
from pipette_opt.specs.training import SHARDS_ON_HOST

CONFIG_FILE = "accelerate.yaml"

SOFTWARE = "torchtitan"
"""Stack that prices fully sharded data parallelism of PyTorch."""

NOT_COMPARED = "not checked: time and memory are counted as {}'s, and no run below {} was compared"
"""Note on answers for a framework of which no measured run is known, with the stack and the framework."""

NOT_CHECKED = NOT_COMPARED.format(SOFTWARE, "Accelerate")
"""Note on answers for Accelerate."""

MICRO_BATCH, STEPS = "per_device_train_batch_size", "gradient_accumulation_steps"
RECOMPUTES, FSDP_RECOMPUTES = "gradient_checkpointing", "fsdp_activation_checkpointing"
KIND, PROCESSES, PRECISION = "distributed_type", "num_processes", "mixed_precision"
HOST_SHARDS = "fsdp_offload_params"
RESHARD, STRATEGY, FSDP = "fsdp_reshard_after_forward", "fsdp_sharding_strategy", "fsdp"
DEEPSPEED, DEEPSPEED_FILE = "deepspeed", "deepspeed_config_file"
REPLICATE, SHARD = "parallelism_config_dp_replicate_size", "parallelism_config_dp_shard_size"
TENSOR, CONTEXT = "parallelism_config_tp_size", "parallelism_config_cp_size"
LIGER = "use_liger_kernel"
TRL_CONFIG = "accelerate_config"
AUTO = deepspeed.AUTO
LENGTHS = ("max_length", "max_seq_length", "model_max_length", "block_size", "seq_length")
MODELS = ("model_name_or_path", "model_name", "model_id", "base_model", "model")
OPTIMIZER = "optim"
ATTENTION, COMPILED = "attn_implementation", "torch_compile"

STAGES: Mapping[str, int] = MappingProxyType(
    {"full_shard": 3, "1": 3, "shard_grad_op": 2, "2": 2, "no_shard": 0, "3": 0, "true": 3, "false": 2}
)
"""ZeRO stage by sharding strategy of FSDP 1, its number, or whether FSDP 2 reshards after the forward pass."""

TRAINER = (
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
    Row(HOST_SHARDS, "flag", False),
    Row(OPTIMIZER, "word", "adamw_torch"),
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


def trainer_rows(but: Collection[str] = ()) -> tuple[Row, ...]:
    """Return the rows of transformers' trainer without those that a framework calls otherwise."""
    return tuple(row for row in TRAINER if row.name not in but)


WHOLE_MATRICES = "whole matrices that are trained beside adapters; give adapters alone."
"""Reason to refuse further trained matrices: their gradients and states are those of full training."""

MAGNITUDES = "trained magnitudes of the matrices (DoRA); give plain adapters."
"""Reason to refuse DoRA, which also computes the norm of each adapted matrix in every step."""

PEFT = (
    Row("use_peft", "flag", False, older=("use_lora",)),
    Row("lora_r", "whole", 16, older=("lora_rank",)),
    Row("lora_dropout", "number", 0.05),
    Row("lora_target_modules", "list", None),
    *(Row(name, "flag", False) for name in ("load_in_4bit", "load_in_8bit", "use_bnb_nested_quant")),
    Row("bnb_4bit_quant_type", "word", "nf4", words=("nf4", "fp4")),
    Row("loss_type", "word", None),
    approximated("padding_free", "flag", False, "both", "less", "Padding that is left out is counted."),
    approximated("activation_offloading", "flag", False, "both", "either", "Activations on the host; none is counted."),
    refused("use_dora", "flag", False, MAGNITUDES),
    refused("lora_modules_to_save", "list", [], WHOLE_MATRICES),
    refused("lora_target_parameters", "list", [], "adapters at parameters of experts; give lora_target_modules."),
)
"""Adapters and quantised weights, by the names and defaults of TRL's ``ModelConfig``."""

TABLE = (*TRAINER, *PEFT)

LISTS = ("lora_target_modules", "lora_modules_to_save", "lora_target_parameters", "target_modules")
"""Options that take several words."""

USUAL_TARGETS = "q_proj,v_proj"
"""Matrices with adapters if a launch names none: PEFT's for models like Llama."""

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
    *("lora_alpha", "use_rslora", "lora_task_type", "resume_from_checkpoint", "push_to_hub", "trust_remote_code"),
    *("config", "adam_beta", "lr_scheduler_kwargs", "plot_loss", "logging_dir", "warmup", "max_samples"),
)
"""Settings on which neither time nor memory depends."""

SECTIONS = ("fsdp_config", "deepspeed_config", "parallelism_config")
"""Sections of Accelerate's file; the names in them are unique, and its command line has them without section."""


LAUNCHER = "replicas-first"

TRAINING: Mapping[str, Any] = MappingProxyType({"whole_gradients": True, "fused_norm": False, "fused_loss": False})
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
        "num_distributed_optimizer_instances": tuple(2**power for power in range(11)),
        "outer_dp_sharding_strategy": ("no_shard",),
        "recompute": (None, "full"),
        "offload": (None, "parameters"),
        "tp_comm_overlap": False,
    }
)
"""Fields of a search space with the values that Accelerate can run."""

TRAINING_FIELDS = (
    *SHARDS_ON_HOST,
    "whole_gradients",
    "fused_norm",
    "fused_loss",
    "precision",
    "accumulate_allreduce_grads_in_fp32",
    "attention_kernel",
    "loss_chunks",
    *OF_OPTIMIZER,
)
CONFIG_FIELDS = (
    "offload",
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
        If the batch of a GPU is not given, for a setting that is not modelled, and for methods beside supervised ones.
    """
    check_supervised(source)
    other = _other_framework(source)
    if other is not None:
        found: dict[str, Any] = framework_module(other.reader).read(replace(source, framework=other))
        return found
    given, config = given_settings(source, OF_TRL if is_trl(source) else {})
    values = values_of(TABLE, given, source.where, source.framework.name, HARMLESS)
    if values[MICRO_BATCH] is None and config is None:
        raise no_batch(source.where)
    fields = trainer_fields(values, config, source.framework.name) | {"finetune": _peft(values)}
    if values["loss_type"] == "chunked_nll":
        fields["training_fields"] |= loss_in_chunks(values)
    elif is_trl(source) and values["loss_type"] is None and not values[LIGER]:
        fields["not_modelled"] = (*fields["not_modelled"], LOSS_OF_TRL)
    return fields


def no_batch(where: str) -> InputError:
    """Return the error for a launch that does not say the sequences of a GPU."""
    problem = f"does not say {MICRO_BATCH}"
    return InputError(where, f"{problem}; give the command with its arguments, and {MICRO_BATCH} among them.")


IN_16_BITS: Mapping[str, Any] = MappingProxyType(
    {"main_params_dtype": "none", "exp_avg_dtype": "bf16", "exp_avg_sq_dtype": "bf16"}
)
"""Fields of the training of weights in 16 bits without a copy in fp32 (pure bf16)."""


def in_names_of_trainer(values: Values, own: Mapping[str, Any]) -> Values:
    """Return the values of a framework with those that transformers' trainer gets from it, by the trainer's names."""
    usual = {row.name: row.default for row in TRAINER}
    return replace(values, given={**values.given, **own}, defaults={**usual, **values.defaults})


def trainer_fields(values: Values, config: Mapping[str, Given] | None, framework: str) -> dict[str, Any]:
    """
    Return the fields of a launch of transformers' trainer.

    Parameters
    ----------
    values
        Values by the names of :data:`TRAINER`.
    config
        Settings of DeepSpeed's configuration; ``None`` if the launch does not run DeepSpeed.
    framework
        Name of the framework for notes.
    """
    lengths = [values[name] for name in LENGTHS if values[name] is not None]
    found = {
        "tensor_model_parallel_size": values[TENSOR],
        "context_parallel_size": values[CONTEXT],
        "seq_length": lengths[0] if lengths else None,
        "model_name": preset_of(values),
        "recompute_granularity": "full" if values[RECOMPUTES] or values[FSDP_RECOMPUTES] else None,
        "num_processes": values[PROCESSES],
        "moe_token_dispatcher_type": "alltoall",
    }
    own = _by_deepspeed(values, config) if config is not None else _by_pytorch(values)
    optimizer = counted_optimizer(values[OPTIMIZER], OPTIMIZER, values.place(OPTIMIZER))
    training = {**own["training_fields"], **_kernels(values), **optimizer.fields}
    if values["packing"]:
        training["packed"] = True
    if values[CONTEXT] > 1:
        training["cp_comm_type"] = "all_gather"
    software, is_own = own["software"], framework in ("DeepSpeed", "Megatron-DeepSpeed")
    compared = "Accelerate" if framework in ("accelerate", "Hugging Face's Trainer", "DeepSpeed") else framework
    note = NOT_COMPARED.format(software, compared)
    return {
        **found,
        **own,
        "training_fields": training,
        "not_modelled": (
            *values.not_modelled,
            *optimizer.not_modelled,
            *own["not_modelled"],
            *((LOSS_OF_UNKNOWN,) if values[LIGER] and "loss_chunks" not in training else ()),
        ),
        "notes": (
            *values.notes,
            *own["notes"],
            *(() if is_own or (config is not None and compared == "Accelerate") else (note,)),
            *length_note(values, found["seq_length"]),
        ),
        "settings": values.given,
    }


OTHERS = ("llamafactory", "msswift")
"""Modules of frameworks whose settings files a program of any name may take below a launcher."""


def _other_framework(source: Source) -> Framework | None:
    """Return the framework whose settings file a program below a launcher takes; ``None`` for transformers' own."""
    named = _named(source, plain(source.of_words(LISTS)))
    framework = None if named is None else source.named_file(named, "the trainer").framework
    return framework if framework is not None and framework.reader in OTHERS else None


SUPERVISED = ("sft", "pt")
"""Methods of training whose batch is of plain sequences: supervised fine-tuning, and pre-training."""

_OTHER_METHOD = re.compile(r"(?<![a-z])(dpo|grpo|rloo|kto|orpo|cpo|ppo|gkd|reward|rlhf|rm)(?![a-z])")
"""Pattern of programs that train by preferences or rewards."""


def check_supervised(source: Source) -> None:
    """Raise ``InputError`` for a program of another method: it has a second model, pairs, or generates text."""
    if source.launch is None:
        return
    words = [source.launch.program.rsplit("/", 1)[-1], *source.words[:1]]
    found = next((match[0] for word in words if (match := _OTHER_METHOD.search(word)) and "=" not in word), None)
    if found is not None:
        problem = f"trains by {found}, whose further models and generated text are not modelled; supervised training is"
        raise InputError(source.where, f"{problem}, such as sft.")


def is_trl(source: Source) -> bool:
    """Return whether TRL's own program for supervised training runs, which has TRL's defaults."""
    program = "" if source.launch is None else source.launch.program.replace(".", "/")
    is_command = program.rsplit("/", 1)[-1] == "trl" and source.words[:1] == ("sft",)
    return is_command or re.search(r"(^|/)trl/scripts/sft(/py)?$", program) is not None


OF_TRL: Mapping[str, Any] = MappingProxyType({MICRO_BATCH: 8, "max_length": 1024, RECOMPUTES: True, "bf16": True})
"""Defaults of ``SFTConfig`` (TRL at 016013e8) that size a job; the batch is transformers' own."""

TRL_ACCELERATORS: Mapping[str, Mapping[str, Any]] = MappingProxyType(
    {
        "single_gpu": {KIND: "NO", PROCESSES: 1},
        "multi_gpu": {KIND: "MULTI_GPU"},
        "fsdp1": {KIND: "FSDP", "fsdp_version": 1},
        "fsdp2": {KIND: "FSDP", "fsdp_version": 2, RESHARD: True},
        **{f"zero{stage}": {KIND: "DEEPSPEED", "zero_stage": stage} for stage in (1, 2, 3)},
    }
)
"""Configurations that TRL ships, by the words of ``--accelerate_config``; all in bf16."""


def _peft(values: Values) -> Finetune | None:
    """Return the adapters of a launch by TRL's arguments; ``None`` without any."""
    bits = next((name for name in ("load_in_4bit", "load_in_8bit") if values[name]), None)
    if not values["use_peft"]:
        given = next((name for name in ("lora_r", "lora_target_modules", bits) if name and name in values.given), None)
        if given is not None:
            problem = ", but use_peft is not given: without adapters all weights are trained, none of them quantised"
            raise values.error(given, f"{problem}; add use_peft, or leave {given} out.")
        return None
    return bitsandbytes_adapters(
        None if bits is None else 4 if bits == "load_in_4bit" else 8,
        nested=values["use_bnb_nested_quant"],
        rank=values["lora_r"],
        targets=values["lora_target_modules"] or [USUAL_TARGETS],
        dropout=values["lora_dropout"],
        where=values.place("use_peft"),
    )


def _kernels(values: Values) -> dict[str, Any]:
    """Return the fields of the training that kernels set: attention, norms, and a loss fused with the head (Liger)."""
    found: dict[str, Any] = {}
    if values[ATTENTION] == "eager":
        found["attention_kernel"] = "unfused"
    if not (values[COMPILED] or values[LIGER]):
        found |= {"fused_norm": False, "fused_loss": False}
    return found | (loss_in_chunks(values) if values[LIGER] else {})


def loss_in_chunks(values: Values) -> dict[str, Any]:
    """Return the chunks of a loss that is fused with the head, as Liger's; none if the model is not known."""
    preset = preset_of(values)
    if not preset:
        return {}
    model = read_model(preset)
    return {"loss_chunks": max(model.vocab_size // model.hidden_size, 1)}


def given_settings(
    source: Source, defaults: Mapping[str, Any] = MappingProxyType({})
) -> tuple[dict[str, Given], dict[str, Given] | None]:
    """
    Return the settings of a launch, and those of DeepSpeed's configuration; ``None`` if it does not run DeepSpeed.

    The program's arguments come before the launcher's, these before those of the launcher's file, and all before
    ``defaults``.
    """
    if source.file is not None:
        given = plain(source.file.given())
    else:
        given = plain(source.of_launcher("accelerate launch"))
        if "config_file" in given:
            given = plain(source.named_file(str(given["config_file"].value), "--config_file").given()) | given
        given |= _trainer(source)
    given = _usual(defaults, given, source.where) | given
    if FSDP in given and isinstance(given[FSDP].value, list):
        given[FSDP] = Given(" ".join(map(str, given[FSDP].value)), given[FSDP].where)
    if TRL_CONFIG in given:
        shipped = TRL_ACCELERATORS.get(str(given[TRL_CONFIG].value))
        setting = given.pop(TRL_CONFIG)
        file = (
            plain(source.named_file(str(setting.value), f"--{TRL_CONFIG}").given())
            if shipped is None
            else {name: Given(value, setting.where) for name, value in shipped.items()}
        )
        given = file | given
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
    if isinstance(name, str) and re.fullmatch("zero[0-3](_offload)?", name):
        if source.framework.name != "ms-swift":
            raise InputError(source.where, f"names a preset of DeepSpeed's configuration, {name}; give its JSON file.")
        return given, _shipped_with_swift(name, source.where)
    return given, source.named_file(name, "--deepspeed").given() if isinstance(name, str) else {}


def _usual(defaults: Mapping[str, Any], given: Mapping[str, Given], where: str) -> dict[str, Given]:
    """Return the defaults that no setting replaces under another name: a length, and fp16 in place of bf16."""
    replaced = set(LENGTHS) if given.keys() & set(LENGTHS) else set()
    replaced |= {"bf16"} if "fp16" in given else set()
    return {name: Given(value, where) for name, value in defaults.items() if name not in replaced}


def _shipped_with_swift(name: str, where: str) -> dict[str, Given]:
    """Return DeepSpeed's configuration that ms-swift ships under a name such as ``zero2`` (``swift/config``)."""
    stage, *offload = name.removeprefix("zero").split("_")
    settings = {
        deepspeed.STAGE: int(stage),
        deepspeed.OVERLAP: "false",
        **dict.fromkeys((deepspeed.MICRO_BATCH, deepspeed.STEPS, deepspeed.BF16, deepspeed.FP16), AUTO),
        **({"zero_optimization.reduce_bucket_size": "200000000"} if stage in ("1", "2") else {}),
        **({deepspeed.HOST_STATES: "cpu"} if offload else {}),
        **({deepspeed.HOST_PARAMETERS: "cpu"} if offload and stage == "3" else {}),
    }
    return {name: Given(value, where) for name, value in settings.items()}


def _trainer(source: Source) -> dict[str, Given]:
    """Return the arguments of a trainer, those of its command line before those of the file that it names."""
    given = plain(source.of_words(LISTS))
    named = _named(source, given)
    if named is None:
        return given
    given.pop("config", None)
    found = plain(source.named_file(named, "the trainer").given()) | given
    return {name: setting for name, setting in found.items() if setting.value != "null"}


def _named(source: Source, given: Mapping[str, Given]) -> str | None:
    """Return the settings file that a command line names, by ``--config`` or as a word before all options."""
    first = takewhile(lambda word: not word.startswith("--"), source.words)
    named = given["config"].value if "config" in given else next((word for word in first if _is_settings(word)), None)
    return named if isinstance(named, str) and _is_settings(named) else None


def _is_settings(word: str) -> bool:
    """Return whether a word names a file of settings."""
    return "=" not in word and word.endswith((".yaml", ".yml", ".json"))


def plain(given: Mapping[str, Given]) -> dict[str, Given]:
    """Return settings by their names without section, with ``_`` for ``-``."""
    found = {}
    for name, setting in given.items():
        section, _, rest = name.replace("-", "_").partition(".")
        if section == "fsdp_config" and rest:
            found[f"fsdp_{rest.removeprefix('fsdp_')}"] = setting
        else:
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
    strategy = str(values[RESHARD] or values[STRATEGY] or (words[0] if words else "full_shard")).lower()
    name = RESHARD if values[RESHARD] else STRATEGY if values[STRATEGY] else FSDP
    if is_sharded and strategy not in STAGES:
        raise values.error(name, ", which is not modelled; full_shard and shard_grad_op are.")
    stage = STAGES[strategy] if is_sharded else 0
    on_host = is_sharded and (values[HOST_SHARDS] or "offload" in words)
    if on_host and stage < 3:
        raise values.error(HOST_SHARDS if values[HOST_SHARDS] else FSDP, ", which is modelled with full_shard only.")
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
        "training_fields": {**({"whole_gradients": True} if stage else {}), **(SHARDS_ON_HOST if on_host else {})},
        "not_modelled": () if values[COMPILED] else (NOT_COMPILED,),
        "notes": (),
    }


NOT_COMPILED = NotModelled(
    option=f"{COMPILED}=false",
    effect="both",
    direction="more",
    why="Activations and the loss are counted as torch.compile fuses them.",
)
"""Note on launches without ``torch.compile``, on which the stack's memory and times stand."""


LOSS_OF_UNKNOWN = NotModelled(
    option=LIGER,
    effect="memory",
    direction="less",
    why="A loss fused with the head; all logits are counted, as the launch names no model that is shipped.",
)
"""Note on a fused loss whose chunks are not known without the model."""


LOSS_OF_TRL = NotModelled(
    option="loss_type",
    value="not given",
    effect="memory",
    direction="less",
    why="TRL from 2026 on computes the loss in chunks (chunked_nll); all logits are counted.",
)
"""Note on launches of TRL's own program, whose loss depends on its release."""


def length_note(values: Values, length: int | None) -> list[str]:
    """Return the note on sequences of unknown lengths; empty for packed ones, and without a length."""
    if length is None or values["packing"]:
        return []
    return [f"every sequence is counted with {length:,} tokens; --lengths FILE counts shorter ones"]


def preset_of(values: Values) -> str:
    """Return the preset that the launch names; empty if it names none, or one that is not shipped."""
    return preset_named(next((values[name] for name in MODELS if values[name]), None))


def preset_named(name: str | None) -> str:
    """Return the preset of a model's name or path; empty for none, and for one that is not shipped."""
    try:
        return (preset_called(name) if name else None) or ""
    except InputError:
        return ""


def export_accelerate(plan: Plan) -> dict[str, str]:
    """Return configuration, node order and launch script; raise ``InputError`` if Accelerate cannot run the plan."""
    training = recorded_training(plan)
    usage = (
        "Then the program and its arguments, e.g. train.py --model_name_or_path meta-llama/Llama-3.1-8B.\n"
        "Attention as the plan has it: "
        + ("a fused kernel (flash or sdpa)." if training.attention_kernel == "flash" else "attn_implementation eager.")
        + f"\n{optimizer_remark(training)}".rstrip()
    )
    found = settings(plan)
    words = quoted(list(words_of({name: found.get(name) for name in OF_TRAINERS})))
    return launched(plan, found, program=f'"$@" {words}', usage=usage)


def launched(plan: Plan, found: Mapping[str, Any], *, program: str, usage: str) -> dict[str, str]:
    """
    Return Accelerate's configuration, node order and launch script.

    Parameters
    ----------
    found
        Settings of the plan, from :func:`settings`.
    program
        Program that Accelerate starts, with its arguments, as words of bash.
    usage
        Text of the comment below the usage line of the script.
    """
    shares = node_shares(plan, "accelerate")
    agent = [
        f'accelerate launch --config_file {CONFIG_FILE} --machine_rank "$NODE_RANK"',
        '--main_process_ip "$MASTER_ADDR" --main_process_port "$MASTER_PORT"',
    ]
    environment = [CUDA_ORDER, *nccl_settings(plan)]
    return {
        CONFIG_FILE: _text(plan, _file_keys(found, len(shares))),
        **nodes_file(shares),
        "launch.sh": launch_script(shares, usage=usage, settings=environment, program=program, agent=agent),
    }


def optimizer_word(training: TrainingSpec) -> str | None:
    """Return the optimizer in the words of transformers' trainer; ``None`` for Adam."""
    return None if training.optimizer == "adam" else WORDS_OF_TRAINERS[training.optimizer]


def precision_flags(training: TrainingSpec) -> dict[str, bool]:
    """Return the flags of transformers' trainer for 16 bits; none in fp32, and none where weights are in 16 bits."""
    is_16 = training.precision != "fp32" and training.main_params_dtype != "none"
    return {training.precision: True} if is_16 else {}


def frozen_bits(model: ModelSpec) -> tuple[int | None, bool | None]:
    """Return the bits of frozen weights below 16, and of 4 bits whether constants are quantised, too; else ``None``."""
    base = "16-bit" if model.adapters is None else model.adapters.base
    bits = {"int8": 8, "nf4": 4, "nf4-double": 4}.get(base)
    return bits, base == "nf4-double" if bits == 4 else None


TRAINER_FILE = "train.yaml"
"""Settings file of a trainer beside Accelerate's."""

YOURS = "Add your model and data to {}; the lines that are there size the job."
"""Comment of a launch script whose trainer has a settings file."""


def trainer_text(plan: Plan, arguments: Mapping[str, Any], yours: str) -> str:
    """Return the settings file of a trainer: its own names with the values of a plan; ``yours``: what to add."""
    head = f"# {plan.config.label()}, global batch {plan.global_batch_size}.\n# Add {yours}.\n"
    return head + yaml.safe_dump(
        {name: value for name, value in arguments.items() if value is not None}, sort_keys=False
    )


def refuse_what_trainers_lack(framework: str, model: ModelSpec, training: TrainingSpec) -> None:
    """Raise ``InputError`` for training that no trainer of transformers' kind has an argument for."""
    check(model, training)
    if training.main_params_dtype == "none" and model.adapters is not None:
        problem = f"is none, but {framework} steps adapters in fp32"
        raise InputError("main_weights", f"{problem}; leave it out, or export for accelerate.")


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
        PRECISION: "no" if training.precision == "fp32" or training.main_params_dtype == "none" else training.precision,
        PROCESSES: config.world_size,
        "fsdp_version": 2,
        RESHARD: config.sharding_stage == 3,
        FSDP_RECOMPUTES: config.recompute_granularity == "full",
        HOST_SHARDS: host_keeps(training, config).parameters,
        **hybrid,
        MICRO_BATCH: config.micro_batch_size,
        STEPS: config.num_microbatches(plan.global_batch_size),
        **({"packing": True} if training.packed else {}),
        **({LIGER: True} if training.loss_chunks > 1 else {}),
        **_adapter_settings(recorded_model(plan)),
    }


BASE_SETTINGS: Mapping[str, Mapping[str, bool]] = MappingProxyType(
    {
        "16-bit": {},
        "int8": {"load_in_8bit": True},
        "nf4": {"load_in_4bit": True},
        "nf4-double": {"load_in_4bit": True, "use_bnb_nested_quant": True},
    }
)
"""Arguments of TRL's trainers for each format of frozen weights (``ModelConfig``)."""


def _adapter_settings(model: ModelSpec) -> dict[str, Any]:
    """Return the arguments of TRL's trainers for the adapters of a model; empty without."""
    adapters = model.adapters
    if adapters is None:
        return {}
    return {
        "use_peft": True,
        "lora_r": adapters.rank,
        "lora_dropout": adapters.dropout,
        "lora_target_modules": list(adapters.targets),
        **BASE_SETTINGS[adapters.base],
    }


def words_of(arguments: Mapping[str, Any]) -> Iterator[str]:
    """Yield arguments as words of a command line; those without a value are left out."""
    for name, value in arguments.items():
        if value is not None:
            yield f"--{name}"
            yield from map(str, value) if isinstance(value, list) else (str(value),)


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


OF_TRAINERS = (
    *(MICRO_BATCH, STEPS, "use_peft", "lora_r", "lora_dropout", "lora_target_modules"),
    *("load_in_4bit", "load_in_8bit", "use_bnb_nested_quant", "packing", LIGER),
)
"""Settings that are arguments of a trainer, not keys of Accelerate's file."""


def _text(plan: Plan, keys: dict[str, Any]) -> str:
    head = (
        f"# {plan.config.label()}, global batch {plan.global_batch_size}; for accelerate 1.15.\n"
        "# Gradients are reduced in the format of mixed_precision: fewer bytes than a plan in fp32 counts.\n"
    )
    if recorded_training(plan).loss_chunks > 1:
        head += "# The loss in chunks is Liger's, whose kernels also fuse norms: faster than the plan counts.\n"
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
    if training.gradient_bytes < 4 and training.main_params_dtype != "none":
        problem = "are in 16 bits, but accelerate keeps gradients in fp32, the format of its master weights"
        raise InputError("gradients", f"{problem}; train with --precision bf16.")
    if model.adapters is not None and model.adapters.base not in BASE_SETTINGS:
        problem = f"is {model.adapters.base}, which trainers with bitsandbytes do not load"
        raise InputError("base_format", f"{problem}; give one of {', '.join(BASE_SETTINGS)}.")


def _refuse(plan: Plan, training: TrainingSpec) -> None:
    config = plan.config
    refuse_async_sends("accelerate", plan)
    check(recorded_model(plan), training)
    for name in ("tensor_model_parallel_size", "pipeline_model_parallel_size", "context_parallel_size"):
        if getattr(config, name) > 1:
            problem = f"is {getattr(config, name)}, but only fully sharded data parallelism is written for accelerate"
            raise InputError(name, f"{problem}; solve with {SOLVE_WITH}.")
    refuse_unwritten("accelerate", config, CONFIG_FIELDS)
    if not config.use_distributed_optimizer or config.data_parallel_size == 1:
        raise InputError(
            "use_distributed_optimizer",
            f"is off, but accelerate's fully sharded data parallelism always shards; solve with {SOLVE_WITH}.",
        )
    if config.recompute_granularity == "selective":
        problem = "is selective, but FSDP recomputes whole layers or none"
        raise InputError("recompute_granularity", f"{problem}; solve with --recompute none,full.")


TARGET = Target(export_accelerate, "accelerate.yaml, launch.sh, nodes.txt")

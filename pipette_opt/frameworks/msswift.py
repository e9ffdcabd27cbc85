"""
ms-swift: ``swift sft`` below transformers' trainer, and ``megatron sft`` (Megatron-SWIFT) below Megatron-Core.

The first takes arguments that :mod:`pipette_opt.frameworks.accelerate` reads, with its own names and defaults
(``swift/arguments``). The second takes options of Megatron-LM with ``_``, and true or false as the values of flags
(``swift/megatron``; both read at 3602360a).
"""

import math
import shlex
from collections.abc import Mapping
from dataclasses import fields
from itertools import takewhile
from typing import Any

from pipette_opt.base.errors import InputError, shown
from pipette_opt.export.recorded import recorded_model, recorded_training
from pipette_opt.export.target import Target
from pipette_opt.frameworks import accelerate
from pipette_opt.frameworks.accelerate import MAGNITUDES, WHOLE_MATRICES
from pipette_opt.layers.adapters import Adapters
from pipette_opt.plans.plan import Plan
from pipette_opt.read.finetune import Finetune, bitsandbytes_adapters
from pipette_opt.read.foreign import Source
from pipette_opt.read.megatron_args import MegatronArgs, parse_megatron_args
from pipette_opt.read.megatron_table import MegatronOption, megatron_options
from pipette_opt.read.setting_table import FALSE, TRUE, Row, Values, approximated, pattern_of, refused, values_of
from pipette_opt.read.sizing_words import Given
from pipette_opt.specs import ModelSpec, TrainingSpec

METHOD, TARGETS, BITS, LENGTH, PACKED, PACKED_LENGTH = (
    "tuner_type",
    "target_modules",
    "quant_bits",
    "max_length",
    "packing",
    "packing_length",
)
DTYPE, FSDP2 = "torch_dtype", "fsdp2"

USUAL_BATCH = 16
"""Sequences of an iteration that ``swift sft`` aims at without ``gradient_accumulation_steps``."""

ADAPTERS = (
    Row("rlhf_type", "word", None),
    Row("lora_rank", "whole", 8),
    Row("lora_dropout", "number", 0.05),
    Row(TARGETS, "list", ["all-linear"]),
    Row(LENGTH, "whole", None),
    Row(PACKED, "flag", False),
    Row(PACKED_LENGTH, "whole", None),
    refused("use_dora", "flag", False, MAGNITUDES),
    refused("modules_to_save", "list", [], WHOLE_MATRICES),
    refused("target_regex", "word", None, "adapters by a pattern of names; give target_modules."),
    refused("target_parameters", "list", [], "adapters at parameters of experts; give target_modules."),
    *(
        refused(name, "list", [], "training of some parameters.")
        for name in ("freeze_parameters", "trainable_parameters")
    ),
    refused("freeze_parameters_ratio", "number", 0.0, "training of some parameters."),
    approximated("task_type", "word", "causal_lm", "memory", "less", "A small head; a whole one is counted."),
    refused("freeze_llm", "flag", False, "a frozen language model beside trained encoders."),
    *(
        refused(name, "flag", True, "a trained encoder of images; the language model alone is counted.")
        for name in ("freeze_vit", "freeze_aligner")
    ),
)
"""Settings of both programs: adapters, and the length of sequences."""

TABLE = (
    *accelerate.trainer_rows(but=("max_seq_length", "model_max_length", "block_size", "seq_length")),
    *ADAPTERS,
    Row(METHOD, "word", "lora", older=("train_type", "sft_type")),
    Row(accelerate.MICRO_BATCH, "whole", 1),
    Row(accelerate.STEPS, "whole", None),
    Row(accelerate.RECOMPUTES, "flag", True),
    Row(DTYPE, "word", None, words=("bfloat16", "float16", "float32", "bf16", "fp16", "fp32", "auto")),
    Row("attn_impl", "word", None),
    Row(BITS, "whole", None, older=("quantization_bit",)),
    Row("quant_method", "word", "bnb"),
    Row("bnb_4bit_quant_type", "word", "nf4", words=("nf4", "fp4")),
    Row("bnb_4bit_use_double_quant", "flag", True),
    Row("optimizer", "word", None),
    refused("sequence_parallel_size", "whole", 1, "sequences divided over GPUs (Ulysses and rings)."),
    refused("deepspeed_autotp_size", "whole", 1, "tensor parallelism of DeepSpeed's own."),
    refused("zero_hpz_partition_size", "whole", 1, "a second copy of the parameters inside a host."),
    *(
        refused(name, "flag", False, "updates by its own rule; give a plain optimizer.")
        for name in ("use_galore", "lomo", "use_flash_ckpt")
    ),
    refused("lisa_activated_layers", "whole", 0, "training of some layers."),
    refused("device_map", "word", None, "layers divided over the GPUs of a process."),
    approximated("callbacks", "word", None, "both", "either", "Programs beside the training; none is counted."),
    approximated("padding_free", "flag", False, "both", "less", "Padding that is left out is counted."),
    approximated("group_by_length", "flag", False, "time", "less", "Padding that is left out is counted."),
)
"""Settings of ``swift sft`` that time or memory depend on, and what is made of them."""

MEGATRON_TABLE = (
    *ADAPTERS,
    Row(METHOD, "word", "full", older=("train_type",)),
    *(Row(name, "word", None) for name in ("model", "load", "mcore_model", DTYPE)),
    Row("padding_free", "flag", True),
    Row("recompute_granularity", "word", "selective", words=("selective", "full", "none")),
    refused("megatron_extra_kwargs", "word", None, "options in JSON; write them out."),
    refused("extra_megatron_kwargs", "word", None, "options in JSON; write them out."),
)
"""Settings of ``megatron sft`` that are not Megatron-LM's, or have other values there."""

OF_BOTH = pattern_of(
    *("model_type", "template", "system", "dataset", "val_dataset", "cached_dataset", "custom_register_path"),
    *("split_dataset_ratio", "dataset_num_proc", "dataset_shuffle", "streaming", "columns", "strict", "data_seed"),
    *("use_hf", "hub_token", "output_dir", "add_version", "save_safetensors", "merge_lora", "lora_alpha", "use_rslora"),
    *(
        "lora_bias",
        "lora_dtype",
        "lorap_lr_ratio",
        "init_weights",
        "vit_lr",
        "aligner_lr",
        "vit_gradient_checkpointing",
    ),
    *("max_epochs", "num_train_epochs", "logging_steps", "eval_steps", "save_steps", "save_total_limit", "eval_iters"),
    *("truncation_strategy", "loss_scale", "lazy_tokenize", "load_from_cache_file", "model_author", "model_name"),
    *("add_non_thinking_prefix", "agent_template", "enable_thinking", "adapters", "ref_adapters", "report_to"),
    *("dataloader_num_workers", "dataloader_persistent_workers", "dataloader_prefetch_factor", "num_workers"),
    *("train_iters", "max_steps", "no_initialization", "no_initialization_swift", "finetune", "save", "config"),
    *("create_checkpoint_symlink", "check_model", "tuner_backend", "swanlab_project", "swanlab_exp_name", "num_labels"),
    *("acc_strategy", "remove_unused_columns", "save_only_model", "resume_only_model", "rope_scaling", "max_pixels"),
    *("bnb_4bit_compute_dtype", "bnb_4bit_quant_storage", "loss_type", "dataloader_drop_last", "problem_type"),
    *("new_special_tokens", "use_chat_template", "padding_side", "response_prefix", "model_revision"),
)
"""Settings of both programs on which neither time nor memory depends."""

HARMLESS = f"{accelerate.HARMLESS}|{OF_BOTH}"

OF_RATES = (None, "lorap", "multimodal")
"""Optimizers that differ from ``optim`` in their learning rates alone."""

METHODS = ("lora", "full")
SUPERVISED = accelerate.SUPERVISED

NOT_OF_LAUNCH = ("where", "model", "model_name", "framework", "text", "lines", "ranks", "num_processes", "finetune")
"""Fields that the options of Megatron-LM do not set in a launch of Megatron-SWIFT."""


def read(source: Source) -> dict[str, Any]:
    """
    Return the fields of a launch of ``swift sft``, ``swift pt``, ``megatron sft`` or ``megatron pt``, or of their file.

    Raises
    ------
    InputError
        For other programs of ms-swift, and for a setting that is not modelled.
    """
    by_megatron, method = _program(source)
    if method not in SUPERVISED:
        problem = f"runs {method} of ms-swift, which is not modelled; sft and pt are"
        raise InputError(source.where, f"{problem}, for one model and plain sequences.")
    return _of_megatron(source) if by_megatron else _of_trainer(source)


def _program(source: Source) -> tuple[bool, str]:
    """Return whether Megatron-Core trains, and the method; ``sft`` for settings without a program."""
    if source.launch is None:
        given = {} if source.file is None else source.file.given()
        return "micro_batch_size" in given or "tensor_model_parallel_size" in given, "sft"
    program = source.launch.program.removesuffix(".py").replace(".", "/")
    name = program.rpartition("/")[2]
    first = list(takewhile(lambda word: not word.startswith("-"), source.words))
    if name in ("swift", "megatron") and first:
        return "megatron" in (name, first[0]), next((word for word in first if word != "megatron"), "")
    if "swift/cli" in program:
        return "megatron" in program, name
    return "tensor_model_parallel_size" in source.of_words(), "sft"


def _of_trainer(source: Source) -> dict[str, Any]:
    """Return the fields of a launch of ``swift sft``."""
    given, config = accelerate.given_settings(source)
    sharded = str(given[accelerate.FSDP].value) if accelerate.FSDP in given else ""
    if sharded.endswith(".json"):
        del given[accelerate.FSDP]
        given = accelerate.plain(source.named_file(sharded, "--fsdp").given()) | given
    values = values_of(TABLE, given, source.where, source.framework.name, HARMLESS)
    _check_method(values)
    finetune = _finetune(values, bits=values[BITS])
    processes = values[accelerate.PROCESSES] or source.num_processes
    processes = processes or (None if source.launch is None else source.launch.num_processes)
    is_fsdp2 = values[accelerate.FSDP] == FSDP2
    is_16 = values[DTYPE] in (None, "bfloat16", "bf16", "auto") and not values["fp16"]
    length = values[PACKED_LENGTH] if values[PACKED] and values[PACKED_LENGTH] else values[LENGTH]
    own = {
        LENGTH: length,
        accelerate.STEPS: values[accelerate.STEPS] or _steps(values, processes),
        accelerate.ATTENTION: values["attn_impl"] or values[accelerate.ATTENTION],
        accelerate.RECOMPUTES: values[accelerate.RECOMPUTES] or is_fsdp2,
        "bf16": values["bf16"] or is_16,
        "fp16": values["fp16"] or values[DTYPE] in ("float16", "fp16"),
        **({accelerate.FSDP: "full_shard"} if is_fsdp2 else {}),
        **(
            {accelerate.OPTIMIZER: values["optimizer"]}
            if values["optimizer"] not in (None, "lorap", "multimodal")
            else {}
        ),
    }
    found = accelerate.trainer_fields(accelerate.in_names_of_trainer(values, own), config, source.framework.name)
    is_sharded = values[accelerate.FSDP] or str(values[accelerate.KIND]).upper() == "FSDP"
    in_16 = is_16 and finetune.method == "full" and config is None and not is_sharded
    training = {**found["training_fields"], **(accelerate.IN_16_BITS if in_16 else {})}
    return {**found, "finetune": finetune, "training_fields": training, "num_processes": processes}


def _steps(values: Values, processes: int | None) -> int:
    """Return the micro-batches of an iteration that ``swift sft`` chooses; ``InputError`` if the GPUs are not known."""
    if processes is None:
        problem = f"does not say {accelerate.STEPS}, which swift then derives from the number of GPUs"
        raise InputError(values.where, f"{problem}; give it, or NPROC_PER_NODE before the command.")
    micro_batch: int = values[accelerate.MICRO_BATCH]
    return max(math.ceil(USUAL_BATCH / micro_batch / processes), 1)


def _check_method(values: Values) -> None:
    """Raise ``InputError`` for preferences and for tuners beside LoRA."""
    if values["rlhf_type"] is not None:
        raise values.error("rlhf_type", ", whose further models are not modelled; supervised training is.")
    if values[METHOD] not in METHODS:
        raise values.error(METHOD, f", which is not modelled; {' and '.join(METHODS)} are.")


def _finetune(values: Values, *, bits: int | None) -> Finetune:
    """Return the method of fine-tuning; ``InputError`` for quantised weights that are all trained."""
    if values[METHOD] == "full":
        if bits is not None:
            raise values.error(BITS, f", but {METHOD} is full: 4- and 8-bit weights cannot be trained; give lora.")
        return Finetune(method="full", where=values.place(METHOD))
    if bits not in (None, 4, 8):
        raise values.error(BITS, ", which must be 4 or 8.")
    if bits is not None and values["quant_method"] != "bnb":
        raise values.error("quant_method", ", which is not modelled; bnb (bitsandbytes) is.")
    return bitsandbytes_adapters(
        bits,
        nested=bits is not None and values["bnb_4bit_use_double_quant"],
        rank=values["lora_rank"],
        targets=values[TARGETS],
        dropout=values["lora_dropout"],
        where=values.place(TARGETS),
    )


def _of_megatron(source: Source) -> dict[str, Any]:
    """Return the fields of a launch of ``megatron sft``: options of Megatron-LM, and those of Megatron-SWIFT."""
    own_names = {name for row in MEGATRON_TABLE for name in (row.name, *row.older)}
    options, given = megatron_options(), _given(source)
    theirs = {name: setting for name, setting in given.items() if name in options and name not in own_names}
    others = {name: setting for name, setting in given.items() if name not in theirs}
    values = values_of(MEGATRON_TABLE, others, source.where, "Megatron-SWIFT", OF_BOTH)
    _check_method(values)
    words = [word for name, setting in theirs.items() for word in _option(options[name], name, setting)]
    launch = parse_megatron_args(shlex.join([*words, *_usual(values, theirs)]), source.where)
    found = {field.name: getattr(launch, field.name) for field in fields(MegatronArgs)}
    length = values[PACKED_LENGTH] if values[PACKED] and values[PACKED_LENGTH] else values[LENGTH]
    length = launch.seq_length or length
    notes = accelerate.length_note(values, length)
    return {
        **{name: value for name, value in found.items() if name not in NOT_OF_LAUNCH},
        "finetune": _finetune(values, bits=None),
        "model_name": accelerate.preset_named(values["model"] or values["load"] or values["mcore_model"]),
        "seq_length": length,
        "num_processes": source.num_processes,
        "not_modelled": (*values.not_modelled, *launch.not_modelled),
        "notes": (
            *values.notes,
            *launch.notes,
            accelerate.NOT_COMPARED.format("Megatron-Core", "ms-swift"),
            *notes,
        ),
    }


def _given(source: Source) -> dict[str, Given]:
    """Return the settings of a launch of ``megatron sft`` by name with underscores."""
    if source.file is not None:
        return {name.replace("-", "_"): setting for name, setting in source.file.given().items()}
    lists = [name for name, option in megatron_options().items() if option.kind == "list"]
    given = source.of_words((*lists, TARGETS, "modules_to_save", "target_parameters", "dataset"))
    found = {name.replace("-", "_"): setting for name, setting in given.items()}
    if "config" in found:
        file = source.named_file(str(found.pop("config").value), "--config").given()
        found = {name.replace("-", "_"): setting for name, setting in file.items()} | found
    return found


def _option(option: MegatronOption, name: str, setting: Given) -> list[str]:
    """Return an option of Megatron-LM as its command line has it: a flag for true, nothing for false."""
    written, value = f"--{name.replace('_', '-')}", setting.value
    if option.kind != "flag":
        values = value if isinstance(value, list) else [] if value is None else str(value).split()
        return [written, *map(str, values)] if values and values != ["none"] else []
    word = "true" if value is None else str(value).lower()
    if word not in (*TRUE, *FALSE):
        raise InputError(setting.where, f"{name} must be true or false, got {shown(str(value))}.")
    return [written] if word in TRUE else []


def _usual(values: Values, theirs: Mapping[str, Given]) -> list[str]:
    """Return the options that Megatron-SWIFT adds: its own defaults, and the precision of the checkpoint."""
    usual = {
        "micro_batch_size": "1",
        "global_batch_size": str(USUAL_BATCH),
        "moe_token_dispatcher_type": "alltoall",
    }
    flags = {"use_distributed_optimizer", "fp16" if values[DTYPE] in ("float16", "fp16") else "bf16"}
    if values["recompute_granularity"] != "none":
        usual["recompute_granularity"] = values["recompute_granularity"]
    flags = flags - {"bf16"} if "fp16" in theirs or values[DTYPE] in ("float32", "fp32") else flags
    words = [word for name, value in usual.items() if name not in theirs for word in (_written(name), value)]
    return [*words, *(_written(name) for name in sorted(flags) if name not in theirs)]


def _written(name: str) -> str:
    return f"--{name.replace('_', '-')}"


SOFTWARE, LAUNCHER, TRAINING, SPACE = accelerate.SOFTWARE, accelerate.LAUNCHER, accelerate.TRAINING, accelerate.SPACE
"""Stack, order of ranks, fields of the training, and search space: those of Accelerate's sharded data parallelism."""

NOT_CHECKED = accelerate.NOT_COMPARED.format(SOFTWARE, "ms-swift")
"""Note on answers for ms-swift."""


def check(model: ModelSpec, training: TrainingSpec) -> None:
    """Raise ``InputError`` for training that ms-swift does not have."""
    accelerate.refuse_what_trainers_lack("ms-swift", model, training)
    if training.packed and training.attention_kernel == "unfused":
        raise InputError("--packed", "needs fused attention in ms-swift; leave --attention-kernel out.")
    if training.main_params_dtype == "none":
        problem = "is none, but ms-swift below FSDP keeps fp32 copies of the weights"
        raise InputError("main_weights", f"{problem}; leave it out, or export for llamafactory or axolotl.")


def export_msswift(plan: Plan) -> dict[str, str]:
    """Return Accelerate's configuration, node order and launch script; ``InputError`` as :func:`check`."""
    model, training = recorded_model(plan), recorded_training(plan)
    check(model, training)
    found, adapters = accelerate.settings(plan), model.adapters
    bits, is_nested = accelerate.frozen_bits(model)
    arguments = {
        METHOD: "full" if adapters is None else "lora",
        **({} if adapters is None else _adapter_arguments(adapters)),
        BITS: bits,
        "quant_method": bits and "bnb",
        "bnb_4bit_use_double_quant": is_nested,
        LENGTH: training.seq_length,
        PACKED: training.packed,
        **{name: found[name] for name in (accelerate.MICRO_BATCH, accelerate.STEPS)},
        accelerate.RECOMPUTES: False,
        DTYPE: {"bf16": "bfloat16", "fp16": "float16", "fp32": "float32"}[training.precision],
        "attn_impl": _attention(training),
        accelerate.LIGER: training.loss_chunks > 1 or None,
        accelerate.OPTIMIZER: accelerate.optimizer_word(training),
    }
    words = shlex.join(word.lower() if word in ("True", "False") else word for word in accelerate.words_of(arguments))
    return accelerate.launched(
        plan,
        found,
        program=f'-m swift.cli.sft {words} "$@"',
        usage="Then --model, --dataset and what else swift sft takes. Recomputation is Accelerate's.",
    )


def _attention(training: TrainingSpec) -> str:
    """Return the attention; packing needs FlashAttention's package (``_check_padding_free``)."""
    if training.attention_kernel == "unfused":
        return "eager"
    return "flash_attn" if training.packed else "sdpa"


def _adapter_arguments(adapters: Adapters) -> dict[str, Any]:
    """Return the arguments of adapters."""
    return {"lora_rank": adapters.rank, "lora_dropout": adapters.dropout, TARGETS: list(adapters.targets)}


TARGET = Target(export_msswift, "accelerate.yaml, launch.sh, nodes.txt", programs=("ms-swift", "swift"))

"""
LLaMA-Factory: its settings in YAML, and ``llamafactory-cli train`` with words behind the file.

It takes the arguments of transformers' trainer, which :mod:`pipette_opt.frameworks.accelerate` reads, and its own
(``src/llamafactory/hparams``; read at ff6d4d12). Plans are written as its settings beside Accelerate's configuration.
"""

from typing import Any

from pipette_opt.base.errors import InputError
from pipette_opt.export.recorded import recorded_model, recorded_training
from pipette_opt.export.target import Target
from pipette_opt.frameworks import accelerate
from pipette_opt.frameworks.accelerate import MAGNITUDES, WHOLE_MATRICES
from pipette_opt.layers.adapters import Adapters
from pipette_opt.plans.plan import Plan
from pipette_opt.read.finetune import Finetune, bitsandbytes_adapters
from pipette_opt.read.foreign import Source
from pipette_opt.read.setting_table import Row, Values, approximated, pattern_of, refused, values_of
from pipette_opt.specs import ModelSpec, TrainingSpec

METHOD, STAGE, BITS, LENGTH = "finetuning_type", "stage", "quantization_bit", "cutoff_len"
PURE, FLASH, WHOLE_LAYERS = "pure_bf16", "flash_attn", "disable_gradient_checkpointing"

USUAL_LENGTH = 2048
"""Tokens of a sequence without ``cutoff_len``."""

TABLE = (
    *accelerate.trainer_rows(but=(*accelerate.LENGTHS, accelerate.RECOMPUTES, accelerate.LIGER)),
    Row(STAGE, "word", "sft", words=("sft", "pt", "rm", "ppo", "dpo", "kto")),
    Row(METHOD, "word", "lora", words=("lora", "full", "freeze", "oft")),
    Row("lora_rank", "whole", 8),
    Row("lora_dropout", "number", 0.0),
    Row("lora_target", "list", ["all"]),
    Row(BITS, "whole", None),
    Row("quantization_method", "word", "bnb"),
    Row("quantization_type", "word", "nf4", words=("nf4", "fp4")),
    Row("double_quantization", "flag", True),
    Row(LENGTH, "whole", USUAL_LENGTH),
    Row("packing", "flag", False),
    Row("neat_packing", "flag", False),
    Row(WHOLE_LAYERS, "flag", False),
    Row("enable_liger_kernel", "flag", False),
    Row(PURE, "flag", False),
    Row(FLASH, "word", "auto", words=("auto", "disabled", "sdpa", "fa2", "fa3")),
    refused("use_dora", "flag", False, MAGNITUDES),
    refused("additional_target", "list", [], WHOLE_MATRICES),
    refused("create_new_adapter", "flag", False, "a new adapter beside one that is there; merge the first."),
    *(
        refused(name, "flag", False, "updates by its own rule; give a plain optimizer.")
        for name in ("use_galore", "use_apollo", "use_badam", "use_llama_pro", "use_muon_layerwise")
    ),
    refused("shift_attn", "flag", False, "attention in shifted groups (LongLoRA)."),
    refused("mixture_of_depths", "word", None, "layers that skip tokens."),
    *(
        refused(name, "flag", False, "a trainer other than transformers'.")
        for name in ("use_mca", "use_kt", "use_hyper_parallel", "use_megatron_fsdp")
    ),
    refused("sequence_parallel_size", "whole", 1, "sequences divided over GPUs."),
    Row("use_adam_mini", "flag", False),
    Row("use_muon", "flag", False),
    approximated("use_unsloth", "flag", False, "both", "less", "Unsloth's kernels; those of PyTorch are counted."),
    approximated(
        "use_unsloth_gc", "flag", False, "both", "either", "Inputs of layers go to the host; none is counted."
    ),
    approximated("upcast_layernorm", "flag", False, "memory", "more", "Norms in fp32; 16 bits are counted."),
    approximated("upcast_lmhead_output", "flag", False, "memory", "more", "A copy of the logits in fp32."),
)
"""Settings that time or memory depend on, and what is made of them."""

HARMLESS = "|".join(
    (
        accelerate.HARMLESS,
        pattern_of(
            *("template", "dataset", "dataset_dir", "media_dir", "overwrite_cache", "preprocessing_num_workers"),
            *("preprocessing_batch_size", "streaming", "buffer_size", "mix_strategy", "val_size", "eval_dataset"),
            *("train_on_prompt", "mask_history", "reserved_label_len", "ignore_pad_token_for_loss", "tokenized_path"),
            *("lora_alpha", "loraplus_lr_ratio", "loraplus_lr_embedding", "use_rslora", "pissa_init", "pissa_iter"),
            *("pissa_convert", "rope_scaling", "use_fast_tokenizer", "resize_vocab", "split_special_tokens"),
            *("plot_loss", "save_only_model", "hf_hub_token", "ray_run_name", "include_num_input_tokens_seen"),
            *("freeze_vision_tower", "freeze_multi_modal_projector", "freeze_language_model", "enable_thinking"),
            *("image_max_pixels", "image_min_pixels", "video_max_pixels", "video_min_pixels", "compute_accuracy"),
            *("adapter_name_or_path", "cache_dir", "flash_attn", "low_cpu_mem_usage", "optim_args", "use_cache"),
            *("disable_shuffling", "swanlab", "use_swanlab", "neftune_noise_alpha", "eval_on_each_dataset"),
        ),
    )
)
"""Settings on which neither time nor memory depends."""


def read(source: Source) -> dict[str, Any]:
    """
    Return the fields of a launch: of a settings file, or of a command line with or without such a file.

    Raises
    ------
    InputError
        If the batch of a GPU is not given, for a setting that is not modelled, and for training by preferences.
    """
    given, config = accelerate.given_settings(source)
    values = values_of(TABLE, given, source.where, source.framework.name, HARMLESS)
    if values[STAGE] not in accelerate.SUPERVISED:
        raise values.error(STAGE, ", whose further models and pairs are not modelled; sft and pt are.")
    if values[accelerate.MICRO_BATCH] is None and config is None:
        raise accelerate.no_batch(source.where)
    if values[PURE] and config is not None:
        raise values.error(PURE, ", but DeepSpeed keeps fp32 states; give bf16: true in its place.")
    finetune = _finetune(values)
    is_pure = values[PURE] and finetune.method == "full"
    found = accelerate.trainer_fields(_of_trainer(values), config, source.framework.name)
    training = {**found["training_fields"], **(accelerate.IN_16_BITS if is_pure else {})}
    notes = found["notes"]
    if values["packing"] and not values["neat_packing"]:
        del training["packed"]
        notes = (*notes, "packing without neat_packing: documents of a sequence attend to each other, as one")
    processes = found["num_processes"] or source.num_processes
    own = {"finetune": finetune, "training_fields": training, "num_processes": processes, "notes": notes}
    return {**found, **own}


def _of_trainer(values: Values) -> Values:
    """Return the values with the names and defaults of transformers' trainer."""
    return accelerate.in_names_of_trainer(
        values,
        {
            "max_length": values[LENGTH],
            "packing": values["packing"]
            or values["neat_packing"]
            or (values[STAGE] == "pt" and "packing" not in values.given),
            accelerate.RECOMPUTES: not values[WHOLE_LAYERS],
            accelerate.LIGER: values["enable_liger_kernel"],
            accelerate.ATTENTION: "eager" if values[FLASH] == "disabled" else "sdpa",
            "bf16": values["bf16"] or values[PURE],
            **({accelerate.OPTIMIZER: "muon"} if values["use_muon"] else {}),
        },
    )


def _finetune(values: Values) -> Finetune:
    """Return the method of fine-tuning; ``InputError`` for quantised weights that are all trained."""
    bits = values[BITS]
    if values[METHOD] not in ("lora", "full"):
        raise values.error(METHOD, ", which is not modelled; lora and full are.")
    if values["use_adam_mini"]:
        raise values.error("use_adam_mini", ", whose states are not modelled; give a plain optimizer.")
    if values[METHOD] == "full":
        if bits is not None:
            raise values.error(BITS, f", but {METHOD} is full: 4- and 8-bit weights cannot be trained; give lora.")
        return Finetune(method="full", where=values.place(METHOD))
    if bits not in (None, 4, 8):
        raise values.error(BITS, ", which must be 4 or 8.")
    if bits is not None and values["quantization_method"] not in ("bnb", "bitsandbytes"):
        raise values.error("quantization_method", ", which is not modelled; bnb (bitsandbytes) is.")
    return bitsandbytes_adapters(
        bits,
        nested=values["double_quantization"],
        rank=values["lora_rank"],
        targets=["all-linear" if word == "all" else word for word in values["lora_target"]],
        dropout=values["lora_dropout"],
        where=values.place("lora_target"),
    )


SOFTWARE, LAUNCHER, TRAINING, SPACE = accelerate.SOFTWARE, accelerate.LAUNCHER, accelerate.TRAINING, accelerate.SPACE
"""Stack, order of ranks, fields of the training, and search space: those of Accelerate's sharded data parallelism."""

NOT_CHECKED = accelerate.NOT_COMPARED.format(SOFTWARE, "LLaMA-Factory")
"""Note on answers for LLaMA-Factory."""


def check(model: ModelSpec, training: TrainingSpec) -> None:
    """Raise ``InputError`` for training that LLaMA-Factory does not have."""
    accelerate.refuse_what_trainers_lack("LLaMA-Factory", model, training)
    if model.adapters is not None and model.adapters.base == "int8":
        raise InputError("base_format", "is int8, but LLaMA-Factory shards 4-bit weights only; give nf4-double.")


def export_llamafactory(plan: Plan) -> dict[str, str]:
    """Return settings, Accelerate's configuration, node order and launch script; ``InputError`` as :func:`check`."""
    model, training = recorded_model(plan), recorded_training(plan)
    check(model, training)
    found, adapters = accelerate.settings(plan), model.adapters
    bits, is_nested = accelerate.frozen_bits(model)
    arguments = {
        STAGE: "sft",
        METHOD: "full" if adapters is None else "lora",
        **({} if adapters is None else _adapter_settings(adapters)),
        BITS: bits,
        "double_quantization": is_nested,
        LENGTH: training.seq_length,
        "packing": training.packed,
        "neat_packing": training.packed,
        **{name: found[name] for name in (accelerate.MICRO_BATCH, accelerate.STEPS)},
        WHOLE_LAYERS: True,
        "enable_liger_kernel": training.loss_chunks > 1,
        FLASH: "auto" if training.attention_kernel == "flash" else "disabled",
        accelerate.OPTIMIZER: accelerate.optimizer_word(training),
        **accelerate.precision_flags(training),
        PURE: training.main_params_dtype == "none" or None,
    }
    yours = "model_name_or_path, template, dataset and output_dir; recomputation is Accelerate's"
    return {
        accelerate.TRAINER_FILE: accelerate.trainer_text(plan, arguments, yours),
        **accelerate.launched(
            plan,
            found,
            program=f'-m llamafactory.launcher {accelerate.TRAINER_FILE} "$@"',
            usage=accelerate.YOURS.format(accelerate.TRAINER_FILE),
        ),
    }


def _adapter_settings(adapters: Adapters) -> dict[str, Any]:
    """Return the settings of adapters."""
    return {"lora_rank": adapters.rank, "lora_dropout": adapters.dropout, "lora_target": ",".join(adapters.targets)}


TARGET = Target(export_llamafactory, "train.yaml, accelerate.yaml, launch.sh, nodes.txt")

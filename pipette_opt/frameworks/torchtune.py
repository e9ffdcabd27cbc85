"""
torchtune: its recipes' settings in YAML, and ``tune run RECIPE --config x.yaml`` with overrides behind.

Keys are those of its configurations (read at bd2a0fc7). It shards by PyTorch's fully sharded data parallelism, keeps
weights and states in the format of ``dtype``, and reduces gradients in every micro-batch. Plans are written as
Accelerate's files.
"""

import re
from typing import Any

from pipette_opt.base.errors import InputError, shown
from pipette_opt.frameworks import accelerate
from pipette_opt.frameworks.accelerate import MAGNITUDES
from pipette_opt.read.finetune import Finetune, bitsandbytes_adapters
from pipette_opt.read.foreign import Source
from pipette_opt.read.setting_table import Row, Values, approximated, pattern_of, refused, values_of
from pipette_opt.read.sizing_words import Given
from pipette_opt.specs import NotModelled

MODEL, OPTIMIZER, LOSS = "model._component_", "optimizer._component_", "loss._component_"
BATCH, STEPS, LENGTH, PACKED = "batch_size", "gradient_accumulation_steps", "tokenizer.max_seq_len", "dataset.packed"
TARGETS, MLP, RANK, QUANTISED = (
    "model.lora_attn_modules",
    "model.apply_lora_to_mlp",
    "model.lora_rank",
    "model.quantize_base",
)
DTYPE, CHECKPOINTS = "dtype", "enable_activation_checkpointing"

ON_HOST = "parameters, gradients and states in the host's memory."

TABLE = (
    *(Row(name, "word", None) for name in (MODEL, OPTIMIZER, LOSS)),
    Row("loss.num_output_chunks", "whole", 8),
    Row(TARGETS, "list", None),
    Row(MLP, "flag", False),
    Row(RANK, "whole", 8),
    Row("model.lora_dropout", "number", 0.0),
    Row(QUANTISED, "flag", False),
    refused("model.apply_lora_to_output", "flag", False, "an adapter at the head."),
    refused("model.use_dora", "flag", False, MAGNITUDES),
    Row(BATCH, "whole", None),
    Row(STEPS, "whole", 1),
    Row(LENGTH, "whole", None),
    Row(PACKED, "flag", False),
    Row(DTYPE, "word", "bf16", words=("bf16", "fp32")),
    Row("compile", "flag", False),
    Row(CHECKPOINTS, "flag", False),
    refused("ac_mode", "word", "full", "recomputation of some layers; give full."),
    Row("fsdp_reshard_after_forward", "flag", True),
    Row("data_parallel_replicate_dim", "whole", 1),
    Row("data_parallel_shard_dim", "whole", -1),
    Row("tensor_parallel_dim", "whole", 1),
    Row("context_parallel_dim", "whole", 1),
    refused("expert_parallel_dim", "whole", 1, "experts divided over GPUs."),
    refused("fsdp_cpu_offload", "flag", False, ON_HOST),
    refused("fsdp.cpu_offload", "flag", False, ON_HOST),
    refused("teacher_model._component_", "word", None, "a teacher beside the trained model."),
    refused("ref_checkpointer._component_", "word", None, "a reference model beside the trained model."),
    refused("quantizer._component_", "word", None, "training that imitates quantised weights."),
    *(
        approximated(f"model.{part}_trainable", "word", None, "both", "more", "Images; the language model is counted.")
        for part in ("encoder", "decoder", "fusion")
    ),
    refused("enable_fp8_training", "flag", False, "products in fp8 by torchao."),
    Row("nproc_per_node", "whole", None),
    Row("nnodes", "whole", 1),
    approximated("optimizer_in_bwd", "flag", False, "memory", "less", "Gradients that go at once; all are counted."),
    approximated(
        "enable_activation_offloading", "flag", False, "both", "either", "Activations on the host; none is counted."
    ),
)
"""Settings that time or memory depend on, and what is made of them."""

HARMLESS = pattern_of(
    *("output_dir", "tokenizer", "checkpointer", "dataset", "dataset_val", "seed", "shuffle", "lr_scheduler", "epochs"),
    *("optimizer", "loss", "model.lora_alpha", "max_steps_per_epoch", "clip_grad_norm", "device", "metric_logger"),
    *("log_every_n_steps", "log_peak_memory_stats", "log_level", "profiler", "resume_from_checkpoint", "save_every"),
    *("save_adapter_weights_only", "custom_sharded_layers", "enable_async_checkpointing", "run_val_every_n_steps"),
    *("collate_fn", "tensor_parallel_plan", "cudnn_deterministic_mode", "memory_efficient_fsdp_wrap", "packed_ratio"),
    *("batch_size_val", "keep_last_n_checkpoints", "rdzv_backend", "rdzv_endpoint", "rdzv_id", "fused", "max_restarts"),
    *("config", "ac_option", "use_clip_grad", "should_load_recipe_state", "gradient_clip", "early_exit_loss"),
)
"""Sections and settings on which neither time nor memory depends."""

OPTIMIZERS = {
    "AdamW": "adamw_torch",
    "Adam": "adamw_torch",
    "AdamW8bit": "adamw_8bit",
    "Adam8bit": "adamw_8bit",
    "PagedAdamW8bit": "paged_adamw_8bit",
    "PagedAdamW": "paged_adamw",
    "AdamW4bit": "adamw_torch_4bit",
    "AdamWFp8": "ao_adamw_fp8",
    "SGD": "sgd",
    "Adafactor": "adafactor",
    "Lion": "lion",
}
"""Words of transformers' trainers for optimizers, by the class of the component."""

_RECIPE = re.compile(r"(full|lora|qat|qat_lora)_finetune_(distributed|single_device)")
_NAME = re.compile(
    r"(?P<adapters>q?lora_)?(?P<family>[a-z]+)(?P<major>[0-9]+)?(?:_(?P<minor>[0-9]+))?_(?P<size>(?:[0-9]+_)?[0-9]+b)"
    r"(?:_\w+)?"
)
"""Pattern of the functions that build models, such as ``lora_llama3_1_8b``."""


def read(source: Source) -> dict[str, Any]:
    """
    Return the fields of a launch: of a settings file, or of a command with the file and overrides behind it.

    Raises
    ------
    InputError
        If the batch of a GPU or the model is not given, for a setting that is not modelled, and for other recipes.
    """
    values = values_of(TABLE, _given(source), source.where, source.framework.name, HARMLESS)
    if ".rlhf." in (values[LOSS] or ""):
        raise values.error(LOSS, ", whose pairs and further models are not modelled; supervised training is.")
    for name in (BATCH, MODEL):
        if values[name] is None:
            raise InputError(source.where, f"does not say {name}; give it.")
    finetune = _finetune(values)
    is_alone = any(word.endswith("_single_device") for word in source.words)
    found = accelerate.trainer_fields(_of_trainer(values, is_sharded=not is_alone), None, source.framework.name)
    training = {name: value for name, value in found["training_fields"].items() if name != "whole_gradients"}
    in_16 = accelerate.IN_16_BITS if values[DTYPE] == "bf16" else {}
    chunks, others = _loss(values)
    hosts, on_host = values["nnodes"], values["nproc_per_node"]
    return {
        **found,
        "finetune": finetune,
        "training_fields": {**training, **in_16, **chunks},
        "not_modelled": (*found["not_modelled"], *others),
        "num_processes": 1 if is_alone else on_host and hosts * on_host,
    }


def _given(source: Source) -> dict[str, Given]:
    """Return the settings of a launch: overrides before those of the file, and the numbers of processes."""
    if source.file is not None:
        return source.file.given()
    recipe = next((word for word in source.words if re.search("_(distributed|single_device)$", word)), None)
    if recipe is not None and not _RECIPE.fullmatch(recipe.rpartition("/")[2]):
        raise InputError(source.where, f"runs the recipe {recipe}, which is not modelled; full and lora_finetune are.")
    given = source.of_words()
    config = given.pop("config", None)
    if config is None:
        raise InputError(source.where, "has no --config; give the file with the recipe's settings.")
    name = str(config.value)
    if not name.endswith((".yaml", ".yml")):
        problem = f"takes its settings from {name}, which torchtune ships; copy it with tune cp, and give its file"
        raise InputError(source.where, f"{problem} as --config.")
    return source.named_file(name, "--config").given() | given


def _of_trainer(values: Values, *, is_sharded: bool) -> Values:
    """Return the values with the names and defaults of transformers' trainer."""
    component = values[OPTIMIZER] or "torch.optim.AdamW"
    optimizer = OPTIMIZERS.get(component.rpartition(".")[2])
    if optimizer is None:
        known = ", ".join(OPTIMIZERS)
        raise values.error(OPTIMIZER, f", an optimizer that is not known here; {known} are.")
    return accelerate.in_names_of_trainer(
        values,
        {
            "model": _model(values),
            accelerate.MICRO_BATCH: values[BATCH],
            accelerate.STEPS: values[STEPS],
            accelerate.OPTIMIZER: optimizer,
            "max_length": values[LENGTH],
            "packing": values[PACKED],
            accelerate.RECOMPUTES: values[CHECKPOINTS],
            accelerate.COMPILED: values["compile"],
            accelerate.KIND: "FSDP" if is_sharded else "NO",
            accelerate.RESHARD: str(values["fsdp_reshard_after_forward"]).lower(),
            accelerate.REPLICATE: values["data_parallel_replicate_dim"],
            accelerate.SHARD: values["data_parallel_shard_dim"],
            accelerate.TENSOR: values["tensor_parallel_dim"],
            accelerate.CONTEXT: values["context_parallel_dim"],
            "bf16": values[DTYPE] == "bf16",
        },
    )


def _model(values: Values) -> str:
    """Return the name of the model that a component builds, such as ``llama-3.1-8b``; empty if it has another form."""
    found = _NAME.fullmatch(values[MODEL].rpartition(".")[2])
    if found is None:
        return ""
    version = ".".join(filter(None, (found["major"], found["minor"])))
    return "-".join(filter(None, (found["family"], version, found["size"].replace("_", "."))))


def _finetune(values: Values) -> Finetune:
    """Return the method of fine-tuning, which the component's name tells."""
    component = values[MODEL].rpartition(".")[2]
    is_quantised = component.startswith("qlora_") or values[QUANTISED]
    if not component.startswith(("lora_", "qlora_")):
        given = next((name for name in (QUANTISED, TARGETS, RANK) if values.given.get(name)), None)
        if given is not None:
            problem = f", but {shown(component)} has no adapters; give a component that begins with lora_"
            raise values.error(given, f"{problem}, or leave {given} out.")
        return Finetune(method="full", where=values.place(MODEL))
    targets = [*(values[TARGETS] or []), *(["mlp"] if values[MLP] else [])]
    if not targets:
        raise InputError(values.where, f"has adapters, but neither {TARGETS} nor {MLP}; give their matrices.")
    return bitsandbytes_adapters(
        4 if is_quantised else None,
        rank=values[RANK],
        targets=targets,
        dropout=values["model.lora_dropout"],
        where=values.place(TARGETS),
    )


def _loss(values: Values) -> tuple[dict[str, Any], tuple[NotModelled, ...]]:
    """Return the chunks of a loss that never holds all logits, and a note on a loss that holds them in 16 bits."""
    name = (values[LOSS] or "").rpartition(".")[2]
    if name == "LinearCrossEntropyLoss":
        return {"loss_chunks": values["loss.num_output_chunks"]}, ()
    if name == "CEWithChunkedOutputLoss":
        why = "Logits of 16 bits that become fp32 in chunks; all are counted in fp32."
        return {}, (NotModelled(option=LOSS, value=name, effect="memory", direction="less", why=why),)
    return {}, ()

"""
Unsloth: the options of ``unsloth-cli.py``, which trains adapters on one GPU (read at 066c2278).

Programs in Python that import Unsloth are refused by name: their settings may be computed.
"""

from typing import Any

from pipette_opt.base.errors import InputError
from pipette_opt.frameworks import accelerate
from pipette_opt.layers.adapters import ATTENTION_TARGETS, MLP_TARGETS
from pipette_opt.read.finetune import bitsandbytes_adapters
from pipette_opt.read.foreign import Source
from pipette_opt.read.setting_table import Row, pattern_of, refused, values_of
from pipette_opt.specs import NotModelled

RANK, BITS, CHECKPOINTS = "r", "load_in_4bit", "use_gradient_checkpointing"
LENGTH = "max_seq_length"

TABLE = (
    *accelerate.trainer_rows(but=(*accelerate.LENGTHS, accelerate.RECOMPUTES)),
    Row(LENGTH, "whole", 2048),
    Row(RANK, "whole", 16),
    Row(BITS, "flag", False),
    Row("lora_dropout", "number", 0.0),
    Row(CHECKPOINTS, "word", "unsloth"),
    Row(accelerate.MICRO_BATCH, "whole", 2),
    Row(accelerate.STEPS, "whole", 4),
    Row(accelerate.OPTIMIZER, "word", "adamw_8bit"),
    Row("dtype", "word", "None"),
    refused("bias", "word", "none", "trained biases."),
)
"""Settings that time or memory depend on, and what is made of them."""

HARMLESS = "|".join(
    (
        accelerate.HARMLESS,
        pattern_of(
            *("dataset", "lora_alpha", "random_state", "use_rslora", "loftq_config", "adapter_file", "save_model"),
            *("save_method", "save_gguf", "save_path", "quantization", "push_model", "push_gguf", "hub_path"),
            "hub_token",
        ),
    )
)
"""Settings on which neither time nor memory depends."""

KERNELS = NotModelled(
    option="Unsloth's kernels",
    effect="both",
    direction="less",
    why="Adapters, norms and the loss are fused; PyTorch's kernels are counted.",
)
"""Note on every launch."""


def read(source: Source) -> dict[str, Any]:
    """
    Return the fields of a launch of ``unsloth-cli.py``.

    Raises
    ------
    InputError
        For another program, and for a setting that is not modelled.
    """
    if source.launch is None or not source.launch.program.endswith(".py"):
        raise InputError(source.where, "is no launch of unsloth-cli.py, whose options are read; give that command.")
    given, _ = accelerate.given_settings(source)
    values = values_of(TABLE, given, source.where, source.framework.name, HARMLESS)
    checkpoints = values[CHECKPOINTS].lower()
    own = {
        "max_length": values[LENGTH],
        accelerate.RECOMPUTES: checkpoints not in ("false", "none"),
        "bf16": values["dtype"] not in ("float16", "float32"),
        "fp16": values["dtype"] == "float16",
        accelerate.PROCESSES: 1,
    }
    found = accelerate.trainer_fields(accelerate.in_names_of_trainer(values, own), None, source.framework.name)
    finetune = bitsandbytes_adapters(
        4 if values[BITS] else None,
        rank=values[RANK],
        targets=(*ATTENTION_TARGETS, *MLP_TARGETS),
        dropout=values["lora_dropout"],
        where=source.where,
    )
    on_host = NotModelled(
        option=CHECKPOINTS,
        value=checkpoints,
        effect="both",
        direction="either",
        why="Inputs of layers go to the host; they are counted on the GPU.",
    )
    others = (KERNELS, on_host) if checkpoints == "unsloth" else (KERNELS,)
    return {**found, "finetune": finetune, "not_modelled": (*found["not_modelled"], *others)}

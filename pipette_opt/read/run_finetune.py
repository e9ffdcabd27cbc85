"""Columns of ``runs.csv`` on fine-tuning: what is trained, with which adapters, formats and optimizer."""

import re
from collections.abc import Mapping
from typing import Any

from pipette_opt.base.errors import InputError, shown
from pipette_opt.read.finetune import METHODS, Finetune
from pipette_opt.read.run_cells import Cells, truth_of
from pipette_opt.read.run_software import software_of
from pipette_opt.specs.optimizers import OPTIMIZERS
from pipette_opt.specs.training import optimizer_fields

METHOD_COLUMN = "method"
"""Column of the method of fine-tuning."""

COLUMNS = (
    *(METHOD_COLUMN, "is_lora", "lora_rank", "lora_targets", "quantization"),
    *("sharding", "offload", "optimizer", "tokens_per_s_per_gpu", "packing"),
)
"""Optional columns of rows of fine-tuning."""

SHARDING: Mapping[str, str] = {
    "none": "",
    "ddp": "",
    "zero1": "1",
    "zero2": "2",
    "zero3": "3",
    "fsdp": "3",
    "fsdp2": "3",
}
"""ZeRO stage by word of column ``sharding``."""

BASES = (
    (re.compile(r"double"), "nf4-double"),
    (re.compile(r"nf4|4-?bit|gptq|awq|hqq"), "nf4"),
    (re.compile(r"int8|8-?bit"), "int8"),
    (re.compile(r"fp8"), "fp8"),
)
"""Format of frozen weights by pattern of column ``quantization``; the first match counts."""

OPTIMIZER_WORDS = ((re.compile(r"8-?bit"), "adam-8bit"), (re.compile(r"adam"), "adam"), (re.compile(r"muon"), "muon"))
"""Optimizer by pattern of column ``optimizer``, besides the names of ``OPTIMIZERS``."""


def is_finetuning(cells: Mapping[str, str]) -> bool:
    """Return whether a row says how a model is fine-tuned."""
    return bool(cells.get(METHOD_COLUMN)) or cells.get("is_lora", "").lower() == "true"


def is_unpacked(cells: Mapping[str, str]) -> bool:
    """Return whether the samples of a row of fine-tuning may be shorter than its length: column ``packing`` is no."""
    return is_finetuning(cells) and truth_of(cells.get("packing", "")) is False


def has_documents(cells: Mapping[str, str]) -> bool:
    """Return whether documents of a row of fine-tuning may be shorter than its length: ``packing`` is yes or no."""
    return is_finetuning(cells) and truth_of(cells.get("packing", "")) is not None


def with_usual_cells(row: Cells) -> Cells:
    """
    Return a row of fine-tuning with the cells that others have: degrees of 1, replicas, batch, ZeRO stage, seconds.

    Without a batch, every replica has one micro-batch. Without seconds, they follow from tokens per second and GPU,
    unless samples are shorter than the length. The row is unchanged if it is none of fine-tuning.
    """
    if not is_finetuning(row.cells):
        return row
    cells = {name: row.text(name) for name in row.cells}
    software = software_of(cells)
    sharding = cells.get("sharding", "").lower() or (row.needed_whole("num_gpus") > 1) * software.usual_sharding
    if sharding and sharding not in SHARDING:
        raise InputError(row.where, f"sharding must be one of {', '.join(SHARDING)}, got {shown(sharding)}.")
    for name in ("tp", "pp", "cp"):
        cells[name] = cells.get(name) or "1"
    degrees = [row.whole(name) or 1 for name in ("tp", "pp", "cp")]
    replicas = row.needed_whole("num_gpus") // (degrees[0] * degrees[1] * degrees[2])
    cells["dp"] = cells.get("dp") or str(max(replicas, 1))
    micro, length = row.whole("mbs"), row.whole("seq_len")
    if not cells.get("gbs") and micro is not None:
        cells["gbs"] = str(micro * int(float(cells["dp"])))
    stage = SHARDING.get(sharding, "")
    cells["zero_stage"] = cells.get("zero_stage") or stage
    usual = software.recomputes
    if not cells.get("recompute") and (usual == "always" or (usual == "sharded" and cells["dp"] != "1")):
        cells["recompute"] = "full"
    rate = None if is_unpacked(row.cells) else row.number("tokens_per_s_per_gpu", above_zero=True)
    if not cells.get("iter_time_s") and rate is not None and micro is not None and length is not None:
        cells["iter_time_s"] = f"{micro * length / rate:.6g}"
    return Cells(row.where, cells)


def finetune_of_row(row: Cells) -> Finetune | None:
    """Return the fine-tuning of a row; ``None`` for training from scratch."""
    if not is_finetuning(row.cells):
        return None
    method = row.text(METHOD_COLUMN).lower() or "lora"
    if method not in METHODS:
        raise InputError(row.where, f"method must be one of {', '.join(METHODS)}, got {shown(method)}.")
    if method == "full":
        return Finetune(method=method, where=row.where)
    words = row.text("quantization").lower()
    base = next((base for pattern, base in BASES if pattern.search(words)), None)
    if words and base is None:
        raise InputError(row.where, f"quantization {shown(words)} is not known; known are nf4, int8 and fp8.")
    software = software_of(row.cells)
    targets = re.sub(r"[\s-]+", "-", row.text("lora_targets").strip().lower()).replace(",-", ",")
    return Finetune(
        method=method,
        rank=row.whole("lora_rank"),
        targets=targets or software.lora_targets or None,
        base=base or METHODS[method],
        dropout=software.lora_dropout,
        flat_gradients=software.flat_gradients,
        keeps_inputs=software.keeps_inputs,
        where=row.where,
    )


def offload_of_row(row: Cells, num_layers: int) -> dict[str, Any]:
    """Return the fields of :class:`~pipette_opt.specs.TrainingSpec` for column ``offload``, such as ``activation``."""
    given = row.text("offload").lower() if is_finetuning(row.cells) else ""
    words = set(given.partition("(")[0].replace("+", " ").split())
    if words - {"optimizer", "activation", "param"} or words & {"optimizer", "param"} == {"param"}:
        raise InputError(row.where, f"offload must be of activation, optimizer or param+optimizer, got {shown(given)}.")
    fields: dict[str, Any] = {"optimizer_offload_fraction": 1.0} if "optimizer" in words else {}
    fields |= {"offload_parameters": True} if "param" in words else {}
    return fields | ({"cpu_offloading_num_layers": num_layers} if "activation" in words else {})


def optimizer_of_row(row: Cells) -> dict[str, Any]:
    """Return the fields of :class:`~pipette_opt.specs.TrainingSpec` for the optimizer of a row, as its framework's."""
    word = row.text("optimizer").lower()
    patterns = ((re.compile(rf"^{name}$"), name) for name in OPTIMIZERS)
    name = next((name for pattern, name in (*patterns, *OPTIMIZER_WORDS) if pattern.search(word)), None)
    if word and name is None:
        raise InputError(row.where, f"optimizer {shown(word)} is not one of {', '.join(OPTIMIZERS)}.")
    software = software_of(row.cells)
    if not word and row.text(METHOD_COLUMN).lower() == "full" and row.whole("num_gpus") == 1:
        name = software.alone_optimizer or None
    in_place = software.changes_weights or row.text("precision").lower().endswith("-true")
    fields = optimizer_fields(name, "none" if is_finetuning(row.cells) and in_place else None)
    return fields | ({"fused_step": True} if is_finetuning(row.cells) and software.fused_step else {})

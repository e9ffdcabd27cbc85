"""Launches of rows of ``runs.csv``: columns and Megatron-LM arguments become options of one launch."""

import re
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from pipette_opt.base.degrees import DATA, DEGREES
from pipette_opt.base.errors import Errors, InputError, shown
from pipette_opt.base.files import is_file
from pipette_opt.parallel.recompute import labelled_fields
from pipette_opt.read.attention_words import AttentionWords, attention_words
from pipette_opt.read.launch_words import option_words
from pipette_opt.read.megatron_args import MegatronArgs, launch_of_options, parse_megatron_args, read_megatron_args
from pipette_opt.read.megatron_table import megatron_options, same
from pipette_opt.read.precision_words import precision_of
from pipette_opt.read.run_cells import Cells, truth_of
from pipette_opt.read.run_finetune import finetune_of_row, is_finetuning, offload_of_row, optimizer_of_row
from pipette_opt.read.run_models import SHAPE, Sizes, is_gated, model_of_row
from pipette_opt.read.run_software import Software, software_of
from pipette_opt.read.run_stages import stage_layers
from pipette_opt.specs import ModelSpec
from pipette_opt.specs.precision import FP8_RECIPES, NVFP4, Fp8Recipe
from pipette_opt.specs.training import DISPATCHER_WORDS, dispatcher_fields

ARGUMENTS_COLUMN = "args"
"""Column of Megatron-LM arguments: the arguments, or a file beside the table."""

MEGATRON_COLUMNS: Mapping[str, str] = {
    **{degree.short: degree.megatron_option for degree in DEGREES if degree != DATA},
    "gbs": "global_batch_size",
    "seq_len": "seq_length",
    "seq_parallel": "sequence_parallel",
    "dispatcher": "moe_token_dispatcher_type",
    **SHAPE,
    "vocab": "vocab_size",
}
"""Megatron-LM options of columns with another name."""

JOB_COLUMNS = ("gbs", "seq_len", "mbs", "tp", "pp", "cp")
"""Columns of whole numbers that are options of a launch, besides the shape of its model."""

NEEDED = ("num_layers", "hidden", "heads", "seq_len", "gbs", "mbs", "tp", "pp", "dp")
"""Columns that a prediction needs if the row has no column ``args``; a named model gives the shape."""

SHARDING = {"2": "optim_grads", "3": "optim_grads_params"}
"""Sharding strategies of Megatron-FSDP by ZeRO stage of a row."""


def launch_in_columns(row: Cells, sizes: Sizes, named: ModelSpec | None) -> tuple[MegatronArgs, str]:
    """
    Return the launch that the columns of a row describe, and the reason why it is not whole; empty if it is.

    Columns become options of Megatron-LM. Empty cells have the defaults of the row's framework. Options that exclude
    each other in Megatron-LM are not refused, since other frameworks may have both.

    Parameters
    ----------
    named
        Model that column ``model`` names.
    """
    errors = Errors()
    errors.of(_check_given, row, sizes, named)
    recomputation = errors.of(_recomputation_fields, row.text("recompute"), row.where) or {}
    model = errors.of(model_of_row, row, sizes, named)
    has_experts = model is not None and model.num_experts is not None
    tokens = errors.of(_token_options, row, has_experts) or {}
    software = software_of(row.cells)
    options = _degree_options(row, sizes) | _reducing_options(row, sizes, software) | tokens
    options["sequence_parallel"] = row.flag_or("seq_parallel", software.sequence_parallel or has_experts)
    options |= _precision(row.text("precision"), software.fp8_recipe)
    words = _attention(row, software)
    options |= {"attention_backend": words.kernel, "no_masked_softmax_fusion": not words.fused_softmax}
    if row.flag_or("cuda_graph", False):
        options["cuda_graph_impl"] = "local"
    tp, pp = sizes["tp"] or 1, sizes["pp"] or 1
    layers = None if model is None else errors.of(stage_layers, row, model, tp, pp, sizes["vpp"] or 1)
    degrees = errors.of(_expert_degrees, row, has_experts) or {}
    finetune = errors.of(finetune_of_row, row)
    if finetune is not None and model is not None:
        model = errors.of(finetune.applied, model)
    offload = None if model is None else errors.of(offload_of_row, row, model.num_layers)
    launch = launch_of_options(options, row.where)
    launch = replace(
        launch,
        model=model,
        precision="fp32" if precision_of(row.text("precision")) == "fp32" else launch.precision,
        stage_layers=layers,
        finetune=finetune,
        training_fields={
            **launch.training_fields,
            **_kernel_fields(row, model),
            **(errors.of(optimizer_of_row, row) or {}),
            **(offload or {}),
            "flash_version": words.flash_version,
        },
        **degrees,
        **recomputation,
    )
    return launch, errors[0].problem.rstrip(".") if errors else ""


def _check_given(row: Cells, sizes: Sizes, named: ModelSpec | None) -> None:
    """Raise ``InputError`` for a row without a number that a prediction needs."""
    missing = [name for name in NEEDED if sizes[name] is None and (named is None or name not in SHAPE)]
    if missing:
        whole = " as a whole number" if "mbs" in missing else ""
        nameless = row.text("model") and {"num_layers", "hidden", "heads"} <= set(missing)
        preset = f", and model {row.text('model')!r} is neither a preset nor a config" if nameless else ""
        raise InputError(row.where, f"{', '.join(missing)} not given{whole}{preset}.")


def _degree_options(row: Cells, sizes: Sizes) -> dict[str, Any]:
    """Return the options of batch, degrees and shards; a single replica has none of the latter."""
    options: dict[str, Any] = {
        MEGATRON_COLUMNS[name]: size for name in JOB_COLUMNS if (size := sizes[name]) is not None
    }
    chunks, stage = sizes["vpp"] or 1, row.text("zero_stage").removesuffix(".0")
    if chunks > 1:
        options["num_virtual_stages_per_pipeline_rank"] = chunks
    return options | (_sharding(stage) if _num_replicas(sizes) > 1 else {})


def _num_replicas(sizes: Sizes) -> int:
    """Return the number of ranks with equal parameters."""
    return (sizes["dp"] or 1) * (sizes["cp"] or 1)


def _sharding(stage: str) -> dict[str, Any]:
    """Return the options of a ZeRO stage."""
    if stage in SHARDING:
        return {"use_megatron_fsdp": True, "data_parallel_sharding_strategy": SHARDING[stage]}
    return {"use_distributed_optimizer": True} if stage == "1" else {}


def _reducing_options(row: Cells, sizes: Sizes, software: Software) -> dict[str, Any]:
    """Return the options of the reduction of gradients, and of messages beside compute."""
    beside = _num_replicas(sizes) > 1 and row.flag_or("overlap_grad_reduce", software.overlap_grad_reduce)
    is_half = precision_of(row.text("precision")) == "fp16"
    return {
        "grad_reduce_in_bf16": not is_half and not row.flag_or("grad_reduce_in_fp32", software.reduces_in_fp32),
        "overlap_grad_reduce": beside,
        "overlap_param_gather": beside and row.flag_or("overlap_param_gather", software.overlap_param_gather),
    }


def _attention(row: Cells, software: Software) -> AttentionWords:
    """Return the attention of a row: the kernel that it names, or that of its framework; no newer than the latter."""
    usual = row.flag_or("fused_attention", software.fused_attention or is_gated(row.text("model")))
    unnamed = AttentionWords(kernel="flash" if usual else "unfused")
    text = row.text("attention_kernel")
    found = (attention_words(text) if text else None) or unnamed
    return replace(found, flash_version=min(found.flash_version, software.flash_version))


def _kernel_fields(row: Cells, model: ModelSpec | None) -> dict[str, Any]:
    """Return the fields of :class:`TrainingSpec` that Megatron-LM has no option for: given, or those of fine-tuning."""
    chunks, flags = row.whole("loss_chunks"), {name: row.flag(name) for name in ("fused_norm", "fused_loss")}
    if is_finetuning(row.cells):
        software = software_of(row.cells)
        if chunks is None and flags["fused_loss"] is None:
            chunks, flags["fused_loss"] = software.loss_chunks, software.fused_loss
        if flags["fused_norm"] is None and model is not None and model.normalization == "RMSNorm":
            flags["fused_norm"] = software.fused_norm
    given = {name: value for name, value in flags.items() if value is not None}
    return given | ({} if chunks is None else {"loss_chunks": chunks})


def _token_options(row: Cells, has_experts: bool) -> dict[str, Any]:
    """Return the options of the token dispatcher; empty for a dense model."""
    if not has_experts:
        return {}
    word = row.text("dispatcher").lower() or "alltoall"
    if word not in DISPATCHER_WORDS:
        raise InputError(row.where, f"dispatcher must be one of {', '.join(DISPATCHER_WORDS)}, got {word!r}.")
    beside = truth_of(row.text("overlap_moe_expert_parallel_comm")) is True
    return {**dispatcher_fields(word), "overlap_moe_expert_parallel_comm": beside}


def _expert_degrees(row: Cells, has_experts: bool) -> dict[str, Any]:
    """Return the degrees of experts that a row gives; empty for a dense model."""
    experts, tensor = row.whole("ep"), row.whole("etp")
    if not has_experts:
        if (experts or 1) > 1:
            raise InputError(row.where, f"ep={experts} needs num_experts.")
        return {}
    given = {"expert_model_parallel_size": experts, "expert_tensor_parallel_size": tensor}
    return {name: size for name, size in given.items() if size is not None}


def _recomputation_fields(text: str, where: str) -> dict[str, Any]:
    """Return the fields of :class:`MegatronArgs` for the recomputation in a cell; empty for none."""
    word = recomputation_word(text or "none")
    try:
        if word == "block":
            raise ValueError(word)
        return {} if word is None else labelled_fields(word)
    except ValueError:
        known = "none, selective, full, full block3, full uniform2 or modules such as moe_act+layernorm"
        raise InputError(where, f"recomputation {text!r} is not one of {known}.") from None


def _recomputation_options(text: str, where: str) -> Iterator[tuple[str, Any]]:
    """Yield the options of Megatron-LM for the recomputation in a cell."""
    fields = _recomputation_fields(text, where)
    is_full = fields.get("recompute_granularity") == "full"
    for name, value in ({"recompute_num_layers": 1} | fields if is_full else fields).items():
        if is_full or name != "recompute_method":
            yield name, value


def recomputation_word(text: str) -> str | None:
    """
    Return the kind of recomputation in a cell: ``full`` for ``full_every_layer``, ``ops`` for ``selective op``, ``full
    block21`` for ``full (block 21)``.

    ``None`` for ``none``; other words, such as modules, are returned in lower case.
    """
    word = re.sub(r"\(?(block|uniform) ?([0-9]+)\)?", r"\1\2", text.lower())
    if re.fullmatch(r"ops?|selective \(?(per )?op\)?", word):
        return "ops"
    for known in ("none", "selective"):
        if word.startswith(known):
            return None if known == "none" else known
    return "full" if re.fullmatch(r"full(_every_layer)?|uniform", word) else word


def read_launch(cells: Mapping[str, str], where: str, folder: Path, named: ModelSpec | None) -> MegatronArgs:
    """
    Return the launch of a row with arguments, and with its model.

    Parameters
    ----------
    cells
        Cells of the row by column: ``args`` and columns that add to it. Any option of Megatron-LM may be a column.
    where
        File and line, the start of every error message.
    folder
        Folder of the table, where a file of arguments is looked for.
    named
        Model that column ``model`` names.

    Raises
    ------
    InputError
        If arguments cannot be read, a column contradicts them, or the row has no model.
    """
    text = cells[ARGUMENTS_COLUMN]
    beside = folder / text
    place = f"{where}, {ARGUMENTS_COLUMN}"
    source = str(beside) if len(text.split()) == 1 and is_file(beside) else text
    given = read_megatron_args(source, place, as_launch=False)
    if not given.options:
        raise InputError(place, f"hold no option of Megatron-LM, got {shown(text)}.")
    is_whole = "num_layers" in given.options and "hidden_size" in given.options
    words: list[str] = []
    for column, name, value in _options_in_columns(cells, where, is_whole):
        theirs = given.precision if name in ("bf16", "fp16") else given.options.get(name)
        if theirs is None:
            words += option_words(name, value)
        elif not (theirs == name if name in ("bf16", "fp16") else _agree(theirs, value)):
            written_there = (
                theirs if name in ("bf16", "fp16") else " ".join(option_words(name, theirs)) or "no such option"
            )
            raise InputError(where, f"{column} is {shown(cells[column])}, but args have {written_there}; give it once.")
    vocab_size = None if named is None or not is_whole or "vocab_size" in given.options else named.vocab_size
    if words or vocab_size is not None:
        written = [word for name, value in given.written.items() for word in option_words(name, value)]
        given = parse_megatron_args(shlex.join([*written, *words]), place, vocab_size=vocab_size)
    return replace(given, model=_model(given, named, where))


def _options_in_columns(cells: Mapping[str, str], where: str, is_whole: bool) -> Iterator[tuple[str, str, Any]]:
    """Yield column, Megatron-LM option and value of each cell that sets an option of the launch."""
    known = megatron_options()
    has_shape = is_whole or bool(cells.get("num_layers"))
    for column, cell in cells.items():
        if not cell or column in (ARGUMENTS_COLUMN, "model") or (column in (*SHAPE, "vocab") and not has_shape):
            continue
        name = MEGATRON_COLUMNS.get(column, column)
        if column == "precision":
            yield from ((column, option, value) for option, value in _precision(cell, "delayed").items())
        elif column == "recompute":
            yield from ((column, option, value) for option, value in _recomputation_options(cell, where))
        elif column == "zero_stage":
            yield from ((column, option, value) for option, value in _sharding(cell.removesuffix(".0")).items())
        elif name in known:
            is_flag = known[name].kind == "flag"
            yield column, name, truth_of(cell) is True if is_flag else cell.removesuffix(".0").split()


def _precision(cell: str, fp8_recipe: Fp8Recipe) -> dict[str, Any]:
    """Return the options of a number format; ``fp8_recipe`` is the recipe of an fp8 that names none."""
    word = precision_of(cell)
    if word == "delayed" and "delayed" not in cell.lower():
        word = fp8_recipe
    if word in FP8_RECIPES:
        return {"bf16": True, "fp8_format": "hybrid", "fp8_recipe": word}
    if word == NVFP4:
        return {"bf16": True, "fp4_format": "e2m1"}
    return {word: True} if word in ("bf16", "fp16") else {}


def _agree(given: Any, value: Any) -> bool:
    """Return whether the value of an option in the arguments equals the value in a column."""
    if isinstance(value, bool) or isinstance(given, bool):
        return bool(given) == bool(value)
    theirs, ours = (each if isinstance(each, list | tuple) else [each] for each in (given, value))
    return len(theirs) == len(ours) and all(same(str(a), b) for a, b in zip(theirs, ours, strict=True))


def _model(given: MegatronArgs, named: ModelSpec | None, where: str) -> ModelSpec:
    if given.model is None and named is None:
        needed = (
            "a vocabulary: column vocab, or --vocab-size in args"
            if "num_layers" in given.options
            else (
                "a model: column model (a preset or a config), --num-layers and so on in args, or columns of its shape"
            )
        )
        raise InputError(where, f"needs {needed}.")
    if given.model is None or named is None:
        return given.model or named  # type: ignore[return-value]
    for field in ("num_layers", "hidden_size", "num_experts"):
        theirs, ours = getattr(given.model, field), getattr(named, field)
        if theirs != ours:
            raise InputError(
                where,
                f"model {named.name} has {field}={ours}, but args have {theirs}; give the same model in both places.",
            )
    return replace(given.model, name=named.name)

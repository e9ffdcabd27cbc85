"""Rows of ``runs.csv`` that give their launch as Megatron-LM arguments in column ``args``, besides other columns."""

import shlex
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from pipette_opt.base.degrees import DATA, DEGREES
from pipette_opt.base.errors import InputError, shown
from pipette_opt.base.files import is_file
from pipette_opt.read.launch_words import option_words
from pipette_opt.read.megatron_args import MegatronArgs, parse_megatron_args, read_megatron_args
from pipette_opt.read.megatron_table import megatron_options, same
from pipette_opt.read.precision_words import precision_of
from pipette_opt.read.run_models import truth_of
from pipette_opt.specs import ModelSpec
from pipette_opt.specs.precision import FP8_RECIPES, NVFP4

ARGUMENTS_COLUMN = "args"
"""Column of Megatron-LM arguments: the arguments, or a file beside the table."""

MEGATRON_COLUMNS: Mapping[str, str] = {
    **{degree.short: degree.megatron_option for degree in DEGREES if degree != DATA},
    "gbs": "global_batch_size",
    "seq_len": "seq_length",
    "seq_parallel": "sequence_parallel",
    "dispatcher": "moe_token_dispatcher_type",
    "num_layers": "num_layers",
    "hidden": "hidden_size",
    "ffn_hidden": "ffn_hidden_size",
    "heads": "num_attention_heads",
    "kv_heads": "num_query_groups",
    "vocab": "vocab_size",
}
"""Megatron-LM options of columns with another name."""

SHAPE_COLUMNS = ("num_layers", "hidden", "ffn_hidden", "heads", "kv_heads", "vocab")
"""Columns of the model's shape; if empty, the arguments or the named model give the shape."""

SHARDING = {"2": "optim_grads", "3": "optim_grads_params"}
"""Sharding strategies of Megatron-FSDP by ZeRO stage of a row."""


def read_launch(
    cells: Mapping[str, str], where: str, folder: Path, named: ModelSpec | None
) -> tuple[MegatronArgs, ModelSpec]:
    """
    Return the launch of a row, and its model.

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
    for column, name, value in _options_in_columns(cells, is_whole):
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
    return given, _model(given, named, where)


def _options_in_columns(cells: Mapping[str, str], is_whole: bool) -> Iterator[tuple[str, str, Any]]:
    """Yield column, Megatron-LM option and value of each cell that sets an option of the launch."""
    known = megatron_options()
    has_shape = is_whole or bool(cells.get("num_layers"))
    for column, cell in cells.items():
        if not cell or column in (ARGUMENTS_COLUMN, "model") or (column in SHAPE_COLUMNS and not has_shape):
            continue
        name = MEGATRON_COLUMNS.get(column, column)
        if column == "precision":
            yield from ((column, option, value) for option, value in _precision(cell))
        elif column == "recompute":
            yield from ((column, option, value) for option, value in _recomputation(cell))
        elif column == "zero_stage":
            stage = cell.removesuffix(".0")
            if stage == "1":
                yield column, "use_distributed_optimizer", True
            elif stage in SHARDING:
                yield column, "use_megatron_fsdp", True
                yield column, "data_parallel_sharding_strategy", [SHARDING[stage]]
        elif name in known:
            is_flag = known[name].kind == "flag"
            yield column, name, truth_of(cell) is True if is_flag else cell.removesuffix(".0").split()


def _precision(cell: str) -> Iterator[tuple[str, Any]]:
    word = precision_of(cell)
    if word in FP8_RECIPES:
        yield from (("bf16", True), ("fp8_format", ["hybrid"]), ("fp8_recipe", [word]))
    elif word == NVFP4:
        yield from (("bf16", True), ("fp4_format", ["e2m1"]))
    elif word in ("bf16", "fp16"):
        yield word, True


def _recomputation(cell: str) -> Iterator[tuple[str, Any]]:
    word = cell.lower().partition(" ")[0].partition("_")[0]
    if word in ("selective", "full"):
        yield "recompute_granularity", [word]
        if word == "full":
            yield from (("recompute_method", ["uniform"]), ("recompute_num_layers", ["1"]))


def _agree(given: Any, value: Any) -> bool:
    """Return whether the value of an option in the arguments equals the value in a column."""
    if isinstance(value, bool) or isinstance(given, bool):
        return bool(given) == bool(value)
    theirs = given if isinstance(given, list | tuple) else [given]
    return len(theirs) == len(value) and all(same(str(a), b) for a, b in zip(theirs, value, strict=True))


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

"""Overrides of a recipe, such as Megatron-Bridge's, read as the options of Megatron-LM that set the same fields."""

import re
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

from pipette_opt.base.errors import InputError, shown
from pipette_opt.read.megatron_table import CHOSEN, options_of_field
from pipette_opt.read.sizing_words import sizes_a_job
from pipette_opt.specs.precision import NVFP4


class RecipePrecision(NamedTuple):
    """
    Precision of a recipe of Megatron-Bridge, by its name in ``training/mixed_precision.py``.

    Parameters
    ----------
    precision
        ``bf16``, ``fp16`` or ``fp32``; only ``fp16`` keeps gradients in 16 bits.
    recipe
        Recipe of fp8 or fp4 products; empty without.
    gather
        Whether parameters are gathered in fp8.
    ends
        Layers at the start, and at the end, that stay in bf16.
    """

    precision: str
    recipe: str = ""
    gather: bool = False
    ends: int = 0

    def words(self) -> tuple[str, ...]:
        """Return the options of Megatron-LM with the same meaning."""
        narrow = () if not self.recipe else ("--fp8-format=hybrid", f"--fp8-recipe={self.recipe}")
        return (
            *(() if self.precision == "fp32" else (f"--{self.precision}",)),
            *(("--fp4-format=e2m1",) if self.recipe == NVFP4 else narrow),
            *(("--fp8-param-gather",) if self.gather else ()),
            *(
                word
                for end in (("start", "end") if self.ends else ())
                for word in ("--first-last-layers-bf16", f"--num-layers-at-{end}-in-bf16={self.ends}")
            ),
        )


RECIPE_PRECISION: Mapping[str | None, RecipePrecision] = MappingProxyType(
    {
        None: RecipePrecision("fp32"),
        "bf16_mixed": RecipePrecision("bf16"),
        "fp16_mixed": RecipePrecision("fp16"),
        "bf16_with_fp8_delayed_scaling_mixed": RecipePrecision("bf16", "delayed", gather=True),
        "bf16_with_fp8_current_scaling_mixed": RecipePrecision("bf16", "tensorwise", gather=True, ends=1),
        "nemotron_h_bf16_with_fp8_current_scaling_mixed": RecipePrecision("bf16", "tensorwise", gather=True, ends=2),
        "bf16_with_fp8_subchannel_scaling_mixed": RecipePrecision("bf16", "blockwise"),
        "bf16_with_mxfp8_mixed": RecipePrecision("bf16", "mxfp8", gather=True),
        "bf16_with_nvfp4_mixed": RecipePrecision("bf16", NVFP4),
    }
)
"""Precisions of Megatron-Bridge's recipes by name; ``None`` is no mixed precision."""

REQUIRED = (
    "model.tensor_model_parallel_size",
    "model.pipeline_model_parallel_size",
    "model.context_parallel_size",
    "model.seq_length",
    "train.micro_batch_size",
    "train.global_batch_size",
)
"""Fields that size every job: without an override, only the recipe knows them."""

OF_EXPERTS = "model.expert_model_parallel_size"
"""Field that sizes the job of a model with experts."""

ASSUMED = (
    OF_EXPERTS,
    "model.virtual_pipeline_model_parallel_size",
    "model.sequence_parallel",
    "model.recompute_granularity",
    "ddp.use_distributed_optimizer",
    "ddp.overlap_grad_reduce",
    "ddp.overlap_param_gather",
    "mixed_precision",
)
"""Fields of which Megatron-LM's default is assumed without an override."""

_OVERRIDE = re.compile(r"\+*(~?[A-Za-z_][\w.@/-]*)=(.*)", re.DOTALL)
_SWITCHES_OFF = re.compile(r"(?:no|disable|untie)_.*|grad_reduce_in_bf16")
"""Pattern of flags that set their field to ``False``."""


class Translated(NamedTuple):
    """
    Words of a launch in which options of Megatron-LM replace overrides.

    Parameters
    ----------
    starts
        Index of the first new word of each old word; ``None`` for an override that no new word replaces.
    notes
        Fields that the recipe sets, and overrides that are not read.
    """

    words: tuple[str, ...]
    starts: tuple[int | None, ...]
    notes: tuple[str, ...]


def left_to_recipe(words: Sequence[str]) -> list[str]:
    """Return the fields that size a job and have no override."""
    given = _overrides(words)
    has_experts = given.get("model.num_moe_experts", "null") != "null"
    return [name for name in (*REQUIRED, *((OF_EXPERTS,) if has_experts else ())) if given.get(name, "null") == "null"]


def in_options(words: Sequence[str], where: str) -> Translated:
    """
    Return the words with options of Megatron-LM in place of overrides; of a repeated override, the last counts.

    An override that sizes the job and has no option stays as it is, for the errors on unread words.

    Raises
    ------
    InputError
        If two sections give a field different values, or for a precision that is not read.
    """
    given = _overrides(words)
    _check_sections(given, where)
    found: list[str] = []
    starts: list[int | None] = []
    unread: list[str] = []
    names = [match[1] if (match := _OVERRIDE.fullmatch(word)) else None for word in words]
    last = {name: index for index, name in enumerate(names)}
    for index, (name, word) in enumerate(zip(names, words, strict=True)):
        options = None if name is None else _options(name, given, where) if last[name] == index else ()
        if name is not None and options is None and not sizes_a_job(name):
            unread.append(name)
            options = ()
        starts.append(None if options == () else len(found))
        found += [word] if options is None else options
    absent = [name for name in ASSUMED if name not in given]
    notes = [f"not overridden: {', '.join(absent)}; Megatron-LM's defaults are counted, the recipe's are unknown"]
    skipped = [f"overrides that are not read: {', '.join(unread)}"]
    return Translated(tuple(found), tuple(starts), (*(notes if absent else ()), *(skipped if unread else ())))


def _overrides(words: Sequence[str]) -> dict[str, str]:
    """Return the last value of each override by the name of its field, without quotes."""
    matches = filter(None, map(_OVERRIDE.fullmatch, words))
    return {match[1]: match[2].strip().strip("\"'") for match in matches}


def _check_sections(given: Mapping[str, str], where: str) -> None:
    first: dict[str, str] = {}
    for name, value in given.items():
        field = name.rpartition(".")[2]
        field = CHOSEN.get(field, field)
        other = first.setdefault(field, name)
        if given[other] != value and sizes_a_job(field):
            raise InputError(where, f"sets {other}={given[other]}, but {name}={value}; give both the same value.")


def _options(name: str, given: Mapping[str, str], where: str) -> tuple[str, ...] | None:
    """Return the options that set a field to its value; empty for Megatron-LM's default, ``None`` if no option does."""
    value = given[name]
    if name == "mixed_precision":
        precisions = {recipe or "null": precision for recipe, precision in RECIPE_PRECISION.items()}
        if value not in precisions:
            raise InputError(where, f"sets {name}={shown(value)}, which is not read; read are {', '.join(precisions)}.")
        return precisions[value].words()
    section, _, field = name.partition(".")
    options = options_of_field(field) if section.isidentifier() else None
    if not options:
        return None if options is None else ()
    if value.lower() in ("null", "none"):
        return ()
    flags = [option for option in options if option.kind == "flag"]
    if flags and value.lower() in ("true", "false"):
        is_off = value.lower() == "false"
        return tuple(flag.name for flag in flags if (_SWITCHES_OFF.fullmatch(flag.field) is not None) is is_off)
    valued = [option for option in options if option.kind != "flag"]
    is_list = value.startswith("[")
    if len(valued) != 1 or (is_list and valued[0].kind not in ("list", "word")):
        return None
    values = value.strip("[]")
    if valued[0].kind == "list":
        return (valued[0].name, *(part.strip("\"' ") for part in values.split(",")))
    words = (f"{valued[0].name}={values if field == 'window_size' else value}",)
    if field != "num_query_groups":
        return words
    return () if value == given.get("model.num_attention_heads") else ("--group-query-attention", *words)

"""Overrides of a recipe, such as Megatron-Bridge's, read as the options of Megatron-LM that set the same fields."""

import re
from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

from pipette_opt.base.errors import InputError, shown
from pipette_opt.read.files import parse_yaml
from pipette_opt.read.finetune import Finetune
from pipette_opt.read.megatron_table import CHOSEN, options_of_field
from pipette_opt.read.sizing_words import sizes_a_job

MIXED_PRECISION = "mixed_precision"
"""Section with the formats of parameters, gradients and products."""

_BF16: Mapping[str, Any] = {"bf16": True, "grad_reduce_in_fp32": True}
_GATHERED: Mapping[str, Any] = {**_BF16, "fp8": "hybrid", "fp8_param_gather": True}

PRECISIONS: Mapping[str, Mapping[str, Any]] = MappingProxyType(
    {
        "null": {},
        "bf16_mixed": _BF16,
        "fp16_mixed": {"fp16": True, "grad_reduce_in_fp32": False},
        "bf16_with_fp8_delayed_scaling_mixed": {**_GATHERED, "fp8_recipe": "delayed"},
        "bf16_with_fp8_current_scaling_mixed": {
            **_GATHERED,
            "fp8_recipe": "tensorwise",
            "first_last_layers_bf16": True,
            "num_layers_at_start_in_bf16": 1,
            "num_layers_at_end_in_bf16": 1,
        },
        "nemotron_h_bf16_with_fp8_current_scaling_mixed": {
            **_GATHERED,
            "fp8_recipe": "tensorwise",
            "first_last_layers_bf16": True,
            "num_layers_at_start_in_bf16": 2,
            "num_layers_at_end_in_bf16": 2,
        },
        "bf16_with_fp8_subchannel_scaling_mixed": {**_BF16, "fp8": "hybrid", "fp8_recipe": "blockwise"},
        "bf16_with_mxfp8_mixed": {
            **_GATHERED,
            "fp8": "e4m3",
            "fp8_recipe": "mxfp8",
            "reuse_grad_buf_for_mxfp8_param_ag": True,
        },
        "bf16_with_nvfp4_mixed": {**_BF16, "fp4": "e2m1"},
    }
)
"""
Fields of ``MixedPrecisionConfig`` that a recipe's precision sets, by its name in ``training/mixed_precision.py``.

Fields on which neither time nor memory depends are left out. ``null`` is no mixed precision.
"""

WITHOUT_OPTION = ("_target_", "_call_", "params_dtype", "pipeline_dtype", "autocast_dtype", "autocast_enabled")
"""Last parts of overrides that follow from others."""

ACTIVATION = "model.activation_func"
"""Field of the activation function of a model."""

ACTIVATIONS: Mapping[str, str] = MappingProxyType({"squared_relu": "--squared-relu", "quick_gelu": "--quick-geglu"})
"""Option by function of ``megatron.core.activations``."""

PEFT = "peft"
"""Section with the adapters of a recipe; it counts if it names a class of :data:`PEFT_CLASSES`."""

PEFT_CLASSES: Mapping[str, str] = MappingProxyType(
    {"LoRA": "linear_qkv,linear_proj,linear_fc1,linear_fc2", "CanonicalLoRA": "all-linear"}
)
"""Usual matrices with adapters by class of ``megatron.bridge.peft``."""

PEFT_RANK = "32"
"""Rank of adapters without ``peft.dim``."""

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
    MIXED_PRECISION,
)
"""Fields of which Megatron-LM's default is assumed without an override."""

DTYPES: Mapping[str, str] = MappingProxyType(
    {"torch.bfloat16": "bf16", "torch.float16": "fp16", "torch.float32": "fp32", "torch.uint8": "fp8"}
)
"""Value of an option by the type of elements of a field."""

_OVERRIDE = re.compile(r"\+*(~?[A-Za-z_][\w.@/-]*)=(.*)", re.DOTALL)
_COLON = re.compile(r"('[^']*')|:(?! )")
"""Pattern of a colon of Hydra's maps, without the blank that YAML's have, and of quoted text."""


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
    parts = [list(_parts(word)) for word in words]
    last = {name: index for index, each in enumerate(parts) for name, _ in each}
    for index, (word, names) in enumerate(zip(words, parts, strict=True)):
        options: list[str] | None = None if not names else []
        for name, _ in names:
            counts = last[name] == index and name in given
            translated = _options(name, given, where) if counts else ()
            if translated is None and sizes_a_job(name):
                options = None
                break
            if translated is None:
                unread.append(name)
            else:
                options = [*(options or ()), *translated]
        starts.append(None if options == [] else len(found))
        found += [word] if options is None else options
    absent = [name for name in ASSUMED if not any(key == name or key.startswith(f"{name}.") for key in given)]
    notes = [f"not overridden: {', '.join(absent)}; Megatron-LM's defaults are counted, the recipe's are unknown"]
    skipped = [f"overrides that are not read: {', '.join(unread)}"]
    return Translated(tuple(found), tuple(starts), (*(notes if absent else ()), *(skipped if unread else ())))


def finetune_in(words: Sequence[str], where: str) -> Finetune | None:
    """Return the adapters that overrides set as a whole; ``None`` if they leave the class to the recipe."""
    given = _overrides(words)
    name = given.get(f"{PEFT}._target_", "").rpartition(".")[2]
    if name not in PEFT_CLASSES:
        return None
    rank, targets = given.get(f"{PEFT}.dim", PEFT_RANK), given.get(f"{PEFT}.target_modules", "")
    dropout = given.get(f"{PEFT}.dropout", "0")
    try:
        return Finetune(
            method="lora",
            rank=int(rank),
            targets=re.sub(r"[\[\]\"' ]", "", targets) or PEFT_CLASSES[name],
            dropout=float(dropout),
            where=where,
        )
    except ValueError:
        raise InputError(where, f"sets {PEFT}.dim={rank} and {PEFT}.dropout={dropout}; give numbers.") from None


def _overrides(words: Sequence[str]) -> dict[str, str]:
    """Return the last value of each override by the name of its field, without quotes."""
    given: dict[str, str] = {}
    for word in words:
        if match := _OVERRIDE.fullmatch(word):
            replaced = [name for name in given if f"{name}.".startswith(f"{match[1]}.")]
            given = {name: value for name, value in given.items() if name not in replaced} | dict(_parts(word))
    return given


def _parts(word: str) -> Iterator[tuple[str, str]]:
    """Yield the field and the value of an override; of a map such as ``{a:1,b:{c:true}}``, each of its fields."""
    match = _OVERRIDE.fullmatch(word)
    if match is None:
        return
    value = match[2].strip()
    if not value.startswith("{"):
        yield match[1], value.strip("\"'")
        return
    content = parse_yaml(_COLON.sub(lambda found: found[1] or ": ", value), match[1])
    yield from ((name, override_text(each)) for name, each in flat(content, match[1]))


def flat(content: Any, name: str) -> Iterator[tuple[str, Any]]:
    """Yield the values of nested maps by their dotted names; a list is a value."""
    if isinstance(content, Mapping) and content:
        for key, value in content.items():
            yield from flat(value, f"{name}.{key}" if name else str(key))
    elif name:
        yield name, content


def override_text(value: Any) -> str:
    """Return a value as an override has it."""
    if isinstance(value, list):
        return f"[{','.join(map(override_text, value))}]"
    return "null" if value is None else str(value).lower() if isinstance(value, bool) else str(value)


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
    section, _, field = name.partition(".")
    if name == MIXED_PRECISION:
        if value not in PRECISIONS:
            raise InputError(where, f"sets {name}={shown(value)}, which is not read; read are {', '.join(PRECISIONS)}.")
        fields = {**{f"{name}.{field}": override_text(each) for field, each in PRECISIONS[value].items()}, **given}
        named = (f"{name}.{field}" for field in PRECISIONS[value] if f"{name}.{field}" not in given)
        return tuple(word for each in named for word in _options(each, fields, where) or ())
    if name.startswith(f"{ACTIVATION}."):
        return _activation_option(name, given)
    if section == PEFT and given.get(f"{PEFT}._target_", "").rpartition(".")[2] in PEFT_CLASSES:
        return ()
    if section == MIXED_PRECISION:
        if field.partition(".")[0] in WITHOUT_OPTION:
            return ()
        if field == "grad_reduce_in_fp32" and given.get(f"{section}.bf16") != "true":
            return () if value != "true" else ("--accumulate-allreduce-grads-in-fp32",)
    options = options_of_field(field) if section.isidentifier() else None
    if not options:
        return None if options is None else ()
    is_choice = any(value in option.choices for option in options)
    if (value.lower() in ("null", "none") and not is_choice) or (field == "gated_linear_unit" and _gate_of(given)):
        return ()
    flags = [option for option in options if option.kind == "flag"]
    if flags and value.lower() in ("true", "false"):
        is_off = value.lower() == "false"
        return tuple(flag.name for flag in flags if flag.switches_off is is_off)
    valued = [option for option in options if option.kind != "flag"]
    is_list = value.startswith("[")
    if len(valued) != 1 or (is_list and valued[0].kind not in ("list", "word")):
        return None
    values = value.strip("[]")
    if valued[0].kind == "list":
        return (valued[0].name, *(part.strip("\"' ") for part in values.split(",")))
    words = (f"{valued[0].name}={values if field == 'window_size' else DTYPES.get(value, value)}",)
    if field != "num_query_groups":
        return words
    return () if value == given.get("model.num_attention_heads") else ("--group-query-attention", *words)


def _activation_option(name: str, given: Mapping[str, str]) -> tuple[str, ...] | None:
    """Return the option of an activation function, which may say the gate, too; ``None`` for a function without."""
    if name != f"{ACTIVATION}._target_":
        return ()
    function = given[name].rpartition(".")[2]
    usual = "silu" if given.get("model.gated_linear_unit") == "true" else "gelu"
    return () if function == usual else (ACTIVATIONS[function],) if function in ACTIVATIONS else None


def _gate_of(given: Mapping[str, str]) -> bool:
    """Return whether the activation's option says the gate."""
    return given.get(f"{ACTIVATION}._target_", "").rpartition(".")[2] in ACTIVATIONS

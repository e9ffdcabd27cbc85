"""Words that size a training job in the launches of any framework: degrees, batches, sharding, adapters and others."""

import csv
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from typing import Any, NamedTuple

from pipette_opt.base.errors import shown
from pipette_opt.base.shipped import shipped_path
from pipette_opt.base.units import listed
from pipette_opt.read.megatron_table import megatron_options

_OFF = ("", "0", "0.0", "false", "no", "none", "null", "off", "disabled", "disable")
"""Values with which a word sizes nothing, in lower case."""

_OVERRIDE = re.compile(r"[+~]*([A-Za-z_][\w.@/-]*)=(.*)", re.DOTALL)
"""Pattern of a word that sets a field of a configuration: ``model.name=value``, as Hydra reads it."""

_BESIDE = re.compile(r"(?:vllm|sglang|rollout|generat|inference|eval|critic|reward|ref(?:erence)?(?![a-z])|teacher).*")
"""Pattern of a part of a name that sets an engine or a model beside the trained model, such as ``rollout``."""

NOT_MODELLED = ("adapter", "quantisation", "method")
"""Kinds of words with no option of Megatron-LM that means the same, and no model here."""

EXAMPLE = "--tensor-model-parallel-size 8 --micro-batch-size 1"
"""Options in errors that ask for any."""

MODEL_INSTEAD = "Give the model's config.json, or the name of a preset, which `pipette-opt models` lists."
"""Sentence on what to give in place of a launch or file from which no model is read."""

MAX_NAMED = 8
"""Most words that an error names. Chosen."""


class Setting(NamedTuple):
    """Name with its value in a launch or a settings file; the value is ``None`` for an option without a value."""

    name: str
    value: str | None

    def __str__(self) -> str:
        if self.value is None:
            return self.name
        between = " " if self.name.startswith("--") else "="
        return f"{self.name}{between}{shown(self.value).strip(chr(39))}"


class Given(NamedTuple):
    """Value of a setting, a text of a command line (``None`` without one) or a value of a file; and its place."""

    value: Any
    where: str


@dataclass(frozen=True, slots=True, kw_only=True)
class _Row:
    """
    Row of ``data/sizing_words.csv``.

    Parameters
    ----------
    pattern
        Pattern of the whole last part of a dotted name, or of its last two parts; in lower case, with ``_`` for ``-``.
    megatron
        Option of Megatron-LM with exactly the same meaning; empty if there is none.
    off
        Values that switch the word off: those in the table beside ``_OFF``; none at all if the table has ``-``.
    """

    kind: str
    pattern: re.Pattern[str]
    megatron: str
    off: tuple[str, ...]


@cache
def _rows() -> tuple[_Row, ...]:
    with shipped_path("data", "sizing_words.csv").open(encoding="utf-8", newline="") as file:
        return tuple(
            _Row(
                kind=row["kind"],
                pattern=re.compile(row["pattern"], re.ASCII),
                megatron=row["megatron"],
                off=() if row["off"] == "-" else (*_OFF, *row["off"].split()),
            )
            for row in csv.DictReader(file)
        )


@lru_cache(maxsize=10_000)
def _row_of(name: str) -> _Row | None:
    """Return the first row whose pattern is the whole last part of a dotted name, or its last two parts."""
    parts = name.lstrip("-+~").lower().replace("-", "_").split(".")
    return next(
        (row for row in _rows() for last in (parts[-1], ".".join(parts[-2:])) if row.pattern.fullmatch(last)), None
    )


def sizes_a_job(name: str) -> bool:
    """Return whether a name of any spelling sizes a training job, whatever its value."""
    return _row_of(name) is not None


def sizing(settings: Iterable[Setting]) -> list[Setting]:
    """Return the settings that size a training job; values that switch a word off are left out."""
    found = []
    for setting in settings:
        row = _row_of(setting.name)
        value = None if setting.value is None else setting.value.strip().strip("\"'").lower()
        if row is not None and value not in row.off:
            found.append(setting)
    return found


def in_megatron(settings: Iterable[Setting]) -> tuple[list[str], list[Setting]]:
    """
    Return the options of Megatron-LM that set the same as sizing words of a framework, and the words without any.

    Only words with exactly the same meaning are translated, each once; a value that is no positive number, such as
    ``-1`` or a variable, is not. Left out are words for engines beside the trained model (rollouts, critics), and the
    model's shape, which ``--model`` gives.
    """
    known = megatron_options()
    words: dict[str, list[str]] = {}
    others = []
    for setting in sizing(settings):
        if any(map(_BESIDE.fullmatch, setting.name.lstrip("-+~").lower().split("."))):
            continue
        row = _row_of(setting.name)
        if row is not None and row.kind == "model":
            continue
        own = setting.name.lstrip("-+~").replace("-", "_").rsplit(".", 1)[-1]
        field = own if own in known and known[own].status == "modelled" else row.megatron if row is not None else ""
        value = (setting.value or "").strip().strip("\"'")
        if field not in known:
            others.append(setting)
        elif words.get((option := known[field]).name) == ([value] if option.kind != "flag" else []):
            continue
        elif option.name in words:
            others.append(setting)
        elif option.kind == "flag" and value.lower() in ("", "true", "1", "yes", "on"):
            words[option.name] = []
        elif re.fullmatch(r"[1-9][0-9]*", value, re.ASCII) if option.kind == "whole" else value in option.choices:
            words[option.name] = [value]
        else:
            others.append(setting)
    return [" ".join((name, *values)) for name, values in words.items()], others


def overrides_in(words: Iterable[str]) -> list[Setting]:
    """Return the words that set a field of a configuration: ``model.tensor_model_parallel_size=8``."""
    found = (_OVERRIDE.fullmatch(word) for word in words if not word.startswith("-"))
    return [Setting(match[0].partition("=")[0], match[2]) for match in found if match is not None]


def settings_in(words: Sequence[str]) -> list[Setting]:
    """Return the options of a command line with their first value, and its overrides, as written and in order."""
    found: list[Setting] = []
    for index, word in enumerate(words):
        if re.match(r"--\w", word):
            name, equals, value = word.partition("=")
            after = words[index + 1] if index + 1 < len(words) else "--"
            is_value = not after.startswith("--") and _OVERRIDE.fullmatch(after) is None
            found.append(Setting(name, value if equals else after if is_value else None))
        else:
            found += overrides_in([word])
    return found


def named(settings: Sequence[Setting]) -> str:
    """Return the settings as a text for an error; of many, the first and how many more."""
    return listed(list(dict.fromkeys(map(str, settings))), MAX_NAMED)


def way_on(settings: Sequence[Setting]) -> str:
    """Return sentences on what to give in place of a launch that is not read: what sizes it, in Megatron's options."""
    words, others = in_megatron(settings)
    missing = [setting for setting in others if (row := _row_of(setting.name)) and row.kind in NOT_MODELLED]
    others = [setting for setting in others if setting not in missing]
    if words:
        found = f'Give its job in the options of Megatron-LM, beside --model: --launch "{" ".join(words)}".'
    else:
        choice = "or let `pipette-opt solve --model NAME` choose them."
        found = f'Give its job in the options of Megatron-LM, such as --launch "{EXAMPLE}", {choice}'
    for kind, settings in (("translated", others), ("modelled", missing)):
        found += f" Not {kind}: {named(settings)}." if settings else ""
    return found

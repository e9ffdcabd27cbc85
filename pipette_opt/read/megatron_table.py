"""Table of Megatron-LM options with their effects on predictions, ``data/megatron_options.csv``."""

import csv
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal, cast

from pipette_opt.base.shipped import shipped_path
from pipette_opt.specs import NotModelled
from pipette_opt.specs.not_modelled import Direction, Effect

Kind = Literal["flag", "whole", "number", "word", "list"]
"""Values that an option takes: none, a whole number, any number, a word, or several words."""

LARGE = "much "
"""Word before a direction in the table: the time may differ by more than a tenth."""

Status = Literal["modelled", "priced", "harmless", "in part", "approximated", "refused"]


@dataclass(frozen=True, slots=True, kw_only=True)
class MegatronOption:
    """
    Option of Megatron-LM, as a row of the table describes it.

    Parameters
    ----------
    kind
        Values that the option takes.
    choices
        Words that Megatron accepts as value; empty if any.
    status
        ``modelled``: predictions use the option. ``priced``: too, but no field of its own holds it; its price reads it
        from the training's arguments (:meth:`TrainingSpec.argument`), and ``export`` writes it unchanged.
        ``harmless``: time, memory and model do not depend on it, up to noise. ``approximated``: predictions leave it
        out, and err in the directions of ``time`` and ``memory``. ``in part``: predictions count it, and still err so.
        ``refused``: a job with the option is not supported.
    modelled_values
        Values for which predictions are right; ``status`` applies to all other values.
    needs
        Options (``--x`` or ``--x=value``); without any of them the option has no effect. Empty if none is needed.
    time, memory
        Whether the real job takes ``less``, ``more`` or ``either`` compared with the prediction; ``None``: as
        predicted.
    is_large
        Whether the time may differ by more than a tenth.
    config_fields
        Fields that the option sets, as ``Class.field`` of a configuration of megatron-core or Megatron-LM; the main one
        first.
    within
        Part of the time breakdown that bounds the saved time, such as ``tensor_parallel``; ``None``: no bound.
    why
        Reason, one sentence for people.
    """

    name: str
    config_fields: tuple[str, ...]
    kind: Kind
    choices: tuple[str, ...]
    status: Status
    modelled_values: tuple[str, ...]
    needs: tuple[str, ...]
    time: Direction | None
    memory: Direction | None
    is_large: bool
    within: str | None
    why: str

    @property
    def field(self) -> str:
        """Name with underscores, as in Megatron's code."""
        return field_of(self.name)

    @property
    def switches_off(self) -> bool:
        """Return whether the option is a flag that sets its field to ``False``."""
        fields = [name.rpartition(".")[2] for name in self.config_fields]
        return self.kind == "flag" and self.field not in fields and _SWITCHES_OFF.fullmatch(self.field) is not None

    def unlike(self, value: Any) -> tuple[str, ...]:
        """Return the parts of a value for which predictions are inaccurate; an empty text stands for a flag."""
        if value is False:
            return ()
        words = [""] if value is True else [str(word) for word in (value if isinstance(value, list) else [value])]
        return tuple(word for word in words if not word or not any(same(word, known) for known in self.modelled_values))

    def matters(self, given: Mapping[str, Any]) -> bool:
        """
        Return whether the option has an effect: it needs no other option, or an option that it needs is given.

        A parallel degree of 1 counts as absent.
        """
        known = megatron_options()
        return not self.needs or any(
            _is_given(need, given) and known[field_of(need.partition("=")[0])].matters(given) for need in self.needs
        )

    def not_modelled(self, words: Sequence[str]) -> list[NotModelled]:
        """Return notes on effects that predictions leave out: one if time and memory err alike, else one for each."""
        value = " ".join(words)
        if self.time is not None and self.time == self.memory:
            return [self._entry(value, "both", self.time)]
        effects: tuple[tuple[Effect, Direction | None], ...] = (("time", self.time), ("memory", self.memory))
        return [self._entry(value, effect, direction) for effect, direction in effects if direction is not None]

    def _entry(self, value: str, effect: Effect, direction: Direction) -> NotModelled:
        is_large = self.is_large and effect != "memory"
        return NotModelled(
            option=self.name,
            value=value,
            effect=effect,
            direction=direction,
            why=self.why,
            is_large=is_large,
            in_part=self.status == "in part",
        )


def field_of(option: str) -> str:
    """Return the name of an option with underscores: ``num_layers`` for ``--num-layers``."""
    return option[2:].replace("-", "_")


def same(word: str, other: str) -> bool:
    """Return whether two words are equal, as numbers if both are numbers."""
    if word == other:
        return True
    try:
        return float(word) == float(other)
    except ValueError:
        return False


@cache
def megatron_options() -> Mapping[str, MegatronOption]:
    """Return all options of ``data/megatron_options.csv``, by their names and aliases with underscores."""
    options: dict[str, MegatronOption] = {}
    for row in table_rows():
        if not row["option"]:
            continue
        kind, _, choices = row["kind"].partition(" ")
        option = MegatronOption(
            name=row["option"],
            config_fields=tuple(filter(None, row["config_field"].split(", "))),
            kind=cast(Kind, kind),
            choices=tuple(filter(None, choices.split("|"))),
            status=cast(Status, row["status"]),
            modelled_values=tuple(row["modelled_values"].split()),
            needs=tuple(row["needs"].split()),
            time=cast(Direction, row["time"].removeprefix(LARGE)) if row["time"] else None,
            memory=cast(Direction, row["memory"]) if row["memory"] else None,
            is_large=row["time"].startswith(LARGE),
            within=row["within"] or None,
            why=row["why"],
        )
        options |= dict.fromkeys(map(field_of, (option.name, *row["aliases"].split())), option)
    return options


_SWITCHES_OFF = re.compile(r"(?:no|disable|untie)_.*|grad_reduce_in_bf16")
"""Pattern of flags that set a field of another name to ``False``."""

CHOSEN: Mapping[str, str] = {
    "bias_activation_fusion": "no_bias_swiglu_fusion",
    "gated_linear_unit": "swiglu",
    "sequence_length": "seq_length",
    "virtual_pipeline_model_parallel_size": "num_virtual_stages_per_pipeline_rank",
}
"""Option with the values of a field that several options set, or that only Megatron-Bridge has."""


def options_of_field(field: str) -> tuple[MegatronOption, ...] | None:
    """
    Return the options that set a field of a configuration of megatron-core or Megatron-LM.

    Among several options, one in ``CHOSEN`` is the only result; one with the field's name is, too, beside a flag that
    switches the field off. The result is empty for a field without an option on which neither time nor memory depends,
    and ``None`` for any other field without one.
    """
    options = _options_by_field().get(field)
    if field in CHOSEN:
        return (megatron_options()[CHOSEN[field]],)
    if field in CHOSEN.values() or any(option.field == field for option in options or ()):
        return (megatron_options()[field], *(option for option in options or () if option.switches_off))
    return options


@cache
def _options_by_field() -> Mapping[str, tuple[MegatronOption, ...]]:
    found: dict[str, tuple[MegatronOption, ...]] = {}
    for row in table_rows():
        options = (megatron_options()[field_of(row["option"])],) if row["option"] else ()
        for field in row["config_field"].split(", ") if options or row["status"] == "harmless" else ():
            name = field.rpartition(".")[2]
            found[name] = (*found.get(name, ()), *options)
    return found


def table_rows() -> list[dict[str, str]]:
    """Return the rows of ``data/megatron_options.csv``."""
    with shipped_path("data", "megatron_options.csv").open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def parts_saved(entries: Iterable[NotModelled]) -> dict[str, str]:
    """Return the options whose time saving is bounded by a part of the time breakdown, each with this part."""
    known = megatron_options()
    found = {entry.option: known[field_of(entry.option)].within for entry in entries if field_of(entry.option) in known}
    return {option: part for option, part in found.items() if part is not None}


def _is_given(need: str, given: Mapping[str, Any]) -> bool:
    option, equals, wanted = need.partition("=")
    value, name = given.get(field_of(option)), field_of(option)
    if equals:
        return value is not None and same(str(value), wanted)
    return bool(value) and (isinstance(value, bool) or value != 1 or not name.endswith(("_size", "_shards")))

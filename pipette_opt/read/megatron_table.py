"""What the numbers make of each option of Megatron: the table ``data/megatron_options.csv``."""

import csv
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal, cast

from pipette_opt.base.shipped import shipped_path
from pipette_opt.specs import NotModelled
from pipette_opt.specs.not_modelled import Direction, Effect

Kind = Literal["flag", "whole", "number", "word", "list"]
"""What follows an option: nothing, a whole or any number, a word, or several words."""

Status = Literal["modelled", "harmless", "approximated", "refused"]


@dataclass(frozen=True, slots=True, kw_only=True)
class MegatronOption:
    """
    One option.

    Parameters
    ----------
    status
        ``modelled``: the reader uses it. ``harmless``: same time, memory and model with and without it, up to noise.
        ``approximated``: the numbers leave it out, and are off in the directions of ``time`` and ``memory``.
        ``refused``: there are no numbers for a job with it.
    modelled_values
        With them the numbers are right as they are; the status is that of all other values.
    choices
        Words that Megatron takes after it; empty: any.
    needs
        Options (``--x`` or ``--x=value``) of which one must be given for this one to mean anything.
    time, memory
        Whether the real job takes ``less`` or ``more`` than the numbers say, or ``either``; empty: the same.
    within
        Part of the breakdown that the saved time is a part of, e.g. ``tensor_parallel``; ``None``: no such bound.
    why
        One sentence for people.
    """

    name: str
    kind: Kind
    choices: tuple[str, ...]
    status: Status
    modelled_values: tuple[str, ...]
    needs: tuple[str, ...]
    time: Direction | None
    memory: Direction | None
    within: str | None
    why: str

    @property
    def field(self) -> str:
        """The name as Megatron's own code has it."""
        return field_of(self.name)

    def unlike(self, value: Any) -> tuple[str, ...]:
        """What of a value is not among those that the numbers are right for; of a flag an empty text."""
        if value is False:
            return ()
        words = [""] if value is True else [str(word) for word in (value if isinstance(value, list) else [value])]
        return tuple(word for word in words if not word or not any(same(word, one) for one in self.modelled_values))

    def matters(self, given: Mapping[str, Any]) -> bool:
        """Whether an option that this one needs is given, and matters itself; a degree of 1 is as good as none."""
        known = megatron_options()
        return not self.needs or any(
            _is_given(need, given) and known[field_of(need.partition("=")[0])].matters(given) for need in self.needs
        )

    def not_modelled(self, words: Sequence[str]) -> list[NotModelled]:
        """What the numbers leave out: one entry if time and memory are off alike, else one of each."""
        value = " ".join(words)
        if self.time is not None and self.time == self.memory:
            return [self._entry(value, "both", self.time)]
        found = []
        if self.time is not None:
            found.append(self._entry(value, "time", self.time))
        if self.memory is not None:
            found.append(self._entry(value, "memory", self.memory))
        return found

    def _entry(self, value: str, effect: Effect, direction: Direction) -> NotModelled:
        return NotModelled(option=self.name, value=value, effect=effect, direction=direction, why=self.why)


def field_of(option: str) -> str:
    """``--num-layers`` as ``num_layers``."""
    return option[2:].replace("-", "_")


def same(word: str, other: str) -> bool:
    """Whether two words are equal, as numbers if they are some."""
    if word == other:
        return True
    try:
        return float(word) == float(other)
    except ValueError:
        return False


@cache
def megatron_options() -> Mapping[str, MegatronOption]:
    """All options by the fields of their names and aliases."""
    options: dict[str, MegatronOption] = {}
    for row in table_rows():
        if not row["option"]:
            continue
        kind, _, choices = row["kind"].partition(" ")
        option = MegatronOption(
            name=row["option"],
            kind=cast(Kind, kind),
            choices=tuple(filter(None, choices.split("|"))),
            status=cast(Status, row["status"]),
            modelled_values=tuple(row["modelled_values"].split()),
            needs=tuple(row["needs"].split()),
            time=cast(Direction, row["time"]) if row["time"] else None,
            memory=cast(Direction, row["memory"]) if row["memory"] else None,
            within=row["within"] or None,
            why=row["why"],
        )
        options |= dict.fromkeys(map(field_of, (option.name, *row["aliases"].split())), option)
    return options


def table_rows() -> list[dict[str, str]]:
    """The table as it stands in its file, one mapping for each row."""
    with shipped_path("data", "megatron_options.csv").open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def parts_saved(entries: Iterable[NotModelled]) -> dict[str, str]:
    """Options that save at most a whole part of the breakdown, each with that part."""
    known = megatron_options()
    found = {one.option: known[field_of(one.option)].within for one in entries if field_of(one.option) in known}
    return {option: part for option, part in found.items() if part is not None}


def _is_given(need: str, given: Mapping[str, Any]) -> bool:
    option, equals, wanted = need.partition("=")
    value, name = given.get(field_of(option)), field_of(option)
    if equals:
        return value is not None and same(str(value), wanted)
    return bool(value) and (isinstance(value, bool) or value != 1 or not name.endswith(("_size", "_shards")))

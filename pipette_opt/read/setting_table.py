"""Tables of frameworks' settings, and the values that a launch gives them."""

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from pipette_opt.base.errors import Errors, InputError, shown, together
from pipette_opt.base.units import listed, number_in
from pipette_opt.read.fields import did_you_mean
from pipette_opt.read.sizing_words import Given, sizes_a_job
from pipette_opt.specs import NotModelled
from pipette_opt.specs.not_modelled import Direction, Effect

Kind = Literal["whole", "number", "flag", "word", "list"]
"""Values that a setting takes: a whole number, any number, true or false, a word, a list."""

TRUE, FALSE = ("true", "yes", "on", "1"), ("false", "no", "off", "0", "none", "null", "")

MAX_NAMED = 6
"""Most settings that a note names. Chosen."""


@dataclass(frozen=True, slots=True)
class Row:
    """
    Setting of a framework, with what predictions make of it.

    Parameters
    ----------
    name
        Name as the framework writes it, with dots between sections.
    default
        Value without the setting; ``None`` if the framework has none.
    words
        Words that the framework accepts; empty if any.
    older
        Names that the setting had in older releases.
    use
        ``read``: the module's ``read`` uses it. ``approximated``: predictions leave it out, and err as ``effect`` and
        ``direction`` say if it is not the default. ``refused``: a launch with another value than the default is
        refused.
    why
        One sentence for people: what is not counted.
    """

    name: str
    kind: Kind = "whole"
    default: Any = None
    words: tuple[str, ...] = ()
    older: tuple[str, ...] = ()
    use: Literal["read", "approximated", "refused"] = "read"
    effect: Effect = "both"
    direction: Direction = "either"
    why: str = ""


def approximated(name: str, kind: Kind, default: Any, effect: Effect, direction: Direction, why: str) -> Row:
    """Return the row of a setting that predictions leave out."""
    return Row(name, kind, default, use="approximated", effect=effect, direction=direction, why=why)


def refused(name: str, kind: Kind, default: Any, why: str) -> Row:
    """Return the row of a setting of which only the default is modelled."""
    return Row(name, kind, default, use="refused", why=why)


@dataclass(frozen=True, slots=True, kw_only=True)
class Values:
    """
    Settings of a launch, read by the table of its framework.

    Parameters
    ----------
    given
        Values of the settings that the launch gives, by name.
    places
        File and line of each given setting.
    defaults
        Values of the settings that it leaves out.
    not_modelled
        Settings that predictions leave out.
    notes
        Sentence on settings that are in no table and size no job.
    """

    where: str
    given: Mapping[str, Any]
    places: Mapping[str, str]
    defaults: Mapping[str, Any]
    not_modelled: tuple[NotModelled, ...] = ()
    notes: tuple[str, ...] = ()

    def __getitem__(self, name: str) -> Any:
        return self.given.get(name, self.defaults[name])

    def place(self, name: str) -> str:
        """Return file and line of a setting; those of the launch if it does not give the setting."""
        return self.places.get(name, self.where)

    def error(self, name: str, problem: str) -> InputError:
        """Return an error about the value of a setting."""
        value = self[name]
        text = str(value).lower() if isinstance(value, bool) else shown(str(value))
        return InputError(self.place(name), f"{name} is {text}{problem}")


def values_of(
    table: Sequence[Row], given: Mapping[str, Given], where: str, framework: str, harmless: str = ""
) -> Values:
    """
    Return the values of a launch's settings.

    Parameters
    ----------
    given
        Settings of the launch by name; ``-`` and ``_`` are one letter.
    framework
        Name of the framework for messages.
    harmless
        Pattern of names on which neither time nor memory depends.

    Raises
    ------
    InputError
        For values of another kind than the table has, for refused settings, and for settings outside the table that
        size a job. The message names all of them.
    """
    rows = {_plain(name): row for row in table for name in (row.name, *row.older)}
    errors, found, places = Errors(), {}, {}
    not_modelled: list[NotModelled] = []
    unread: list[str] = []
    for name, setting in given.items():
        row = rows.get(_plain(name))
        if row is not None:
            value = errors.of(_converted, row, setting)
            if value is not None and errors.of(_not_refused, row, value, setting.where):
                found[row.name], places[row.name] = value, setting.where
                not_modelled += _left_out(row, value)
        elif harmless and re.fullmatch(harmless, _plain(name)):
            continue
        elif sizes_a_job(name) and not _is_off(setting.value):
            hint = did_you_mean(_plain(name), rows)
            given_as = name if setting.value is None else f"{name} {shown(str(setting.value)).strip(chr(39))}"
            problem = f"sets {given_as}, which changes the size of the job and is not read."
            errors.append(InputError(setting.where, f"{problem}{hint}"))
        else:
            unread.append(name)
    if errors:
        raise together(errors)
    return Values(
        where=where,
        given=found,
        places=places,
        defaults={row.name: row.default for row in table},
        not_modelled=tuple(not_modelled),
        notes=(f"settings of {framework} that are not read: {listed(unread, MAX_NAMED)}",) if unread else (),
    )


def nested(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return nested maps from values by dotted names."""
    found: dict[str, Any] = {}
    for name, value in values.items():
        *sections, last = name.split(".")
        place = found
        for section in sections:
            place = place.setdefault(section, {})
        place[last] = value
    return found


def pattern_of(*names: str) -> str:
    """Return a pattern of names, each of a whole section (``metrics``) or of a setting (``training.steps``)."""
    return "|".join(rf"{re.escape(_plain(name))}(\..*)?" for name in names)


def _plain(name: str) -> str:
    return name.lstrip("-").replace("-", "_")


def _is_off(value: Any) -> bool:
    return value is False or (value is not None and str(value).lower() in FALSE)


def _converted(row: Row, given: Given) -> Any:
    """Return the value of a setting in its row's kind; ``None`` for an empty value."""
    value = given.value
    if row.kind == "flag":
        word = "true" if value is None else str(value).lower()
        if word not in (*TRUE, *FALSE):
            raise InputError(given.where, f"{row.name} must be true or false, got {shown(str(value))}.")
        return word in TRUE
    if value is None:
        return None
    if row.kind == "list":
        return (
            list(value)
            if isinstance(value, list | tuple)
            else [part for part in re.split(r"[,\s]+", str(value)) if part]
        )
    if row.kind in ("whole", "number"):
        return _number(row, given)
    word = str(value).lower() if isinstance(value, bool) else str(value)
    if row.words and word not in row.words:
        raise InputError(given.where, f"{row.name} must be {' or '.join(row.words)}, got {shown(word)}.")
    return word


def _number(row: Row, given: Given) -> int | float:
    value = given.value if isinstance(given.value, bool) else str(given.value).replace("_", "")
    if row.kind == "number":
        return number_in(value, given.where, f"{row.name} must be a number", -math.inf)
    least = row.default if isinstance(row.default, int) and not isinstance(row.default, bool) and row.default < 1 else 1
    return int(number_in(value, given.where, f"{row.name} must be a whole number >= {least}", least, is_whole=True))


def _not_refused(row: Row, value: Any, where: str) -> bool:
    if row.use == "refused" and value != row.default:
        raise InputError(where, f"{row.name} {shown(str(value))} is not modelled: {row.why}")
    return True


def _left_out(row: Row, value: Any) -> Iterable[NotModelled]:
    if row.use == "approximated" and value != row.default:
        text = "" if value is True else str(value)
        yield NotModelled(option=row.name, value=text, effect=row.effect, direction=row.direction, why=row.why)

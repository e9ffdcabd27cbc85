"""Fields of a mapping in a user's file, each checked once; errors name the place."""

from collections.abc import Collection, Iterable, Mapping
from typing import Any

from pipette_opt.base.errors import InputError, shown
from pipette_opt.base.errors import did_you_mean as did_you_mean
from pipette_opt.base.types import is_number
from pipette_opt.base.units import counted

LARGEST_WHOLE = 2**31 - 1
"""Largest valid count, such as layers, hosts, MiB or tokens. Chosen."""

MIN_NUMBER, LARGEST_NUMBER = 1e-9, 1e15
"""Smallest valid positive number, and largest valid rate, share, time or size. Chosen."""


def unused_keys(data: object, known: Collection[str]) -> str:
    """Return a sentence that names the unused keys of a mapping, or columns of a table; empty if all are used."""
    if not isinstance(data, Mapping | list):
        return ""
    unknown, kind = [str(key) for key in data if key not in known], "key" if isinstance(data, Mapping) else "column"
    return f"{counted(len(unknown), kind)} not used: {', '.join(map(shown, unknown))}." if unknown else ""


class Fields:
    """
    Reader of the fields of a mapping.

    Parameters
    ----------
    where
        File and place, the start of every error message.
    data
        Mapping to read. ``InputError`` for any other type.
    known
        Names of valid fields. ``InputError`` with near matches for any other field.
    """

    def __init__(self, where: str, data: object, known: Iterable[str]) -> None:
        self.where = where
        known = sorted(known)
        if not isinstance(data, Mapping):
            raise InputError(where, f"must be a mapping with the fields {', '.join(known)}, got {shown(data)}.")
        self.data: Mapping[Any, Any] = data
        for key in data:
            if key not in known:
                hint = did_you_mean(str(key), known) or f" Known fields: {', '.join(known)}."
                raise InputError(where, f"unknown field {shown(key)}.{hint}")

    def has(self, name: str) -> bool:
        """Return whether the field exists and is not null."""
        return self.data.get(name) is not None

    def any(self, name: str, default: Any = None) -> Any:
        """Return the value of a field, or its default. ``InputError`` if both are missing."""
        if not self.has(name) and default is None:
            raise InputError(self.where, f"the field {name} is missing.")
        return self.data[name] if self.has(name) else default

    def text(self, name: str, default: str | None = None) -> str:
        """Return a field as one line of text without control characters; a whole number counts as text."""
        if default is not None and not self.has(name):
            return default
        value = self.any(name)
        if isinstance(value, bool) or not isinstance(value, str | int) or not str(value).strip():
            raise InputError(self.where, f"{name} must be text, got {shown(value)}.")
        line = str(value).strip()
        if not line.isprintable():
            raise InputError(self.where, f"{name} must be one line of printable text, got {shown(value)}.")
        return line

    def choice(self, name: str, choices: Iterable[str], default: str | None = None) -> str:
        """Return a field whose value must be a word of ``choices``."""
        choices = list(choices)
        if default is not None and not self.has(name):
            return default
        value = self.any(name)
        if value not in choices:
            raise InputError(self.where, f"{name} must be one of {', '.join(choices)}, got {shown(value)}.")
        return str(value)

    def whole(self, name: str, default: int | None = None, *, most: int = LARGEST_WHOLE) -> int:
        """Return a field that must be a whole number from 1 to ``most``."""
        value = self.any(name, default)
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise InputError(self.where, f"{name} must be a whole number >= 1, got {shown(value)}.")
        if value > most:
            raise InputError(self.where, f"{name} must be at most {most}, got {shown(value)}.")
        return value

    def positive(self, name: str, default: float | None = None) -> float:
        """Return a field that must be a finite number > 0."""
        return self._number(name, default, above_zero=True)

    def not_negative(self, name: str, default: float | None = None) -> float:
        """Return a field that must be a finite number >= 0."""
        return self._number(name, default, above_zero=False)

    def flag(self, name: str, default: bool) -> bool:
        """Return a field that must be true or false."""
        value = self.any(name, default)
        if not isinstance(value, bool):
            raise InputError(self.where, f"{name} must be true or false, got {shown(value)}.")
        return value

    def _number(self, name: str, default: float | None, *, above_zero: bool) -> float:
        value = self.any(name, default)
        wanted = "> 0" if above_zero else ">= 0"
        if not is_number(value) or value < 0 or (above_zero and value == 0):
            raise InputError(self.where, f"{name} must be a number {wanted}, got {shown(value)}.")
        if value > LARGEST_NUMBER or (above_zero and value < MIN_NUMBER):
            limits = f"between {MIN_NUMBER:g} and" if above_zero else "at most"
            raise InputError(self.where, f"{name} must be {limits} {LARGEST_NUMBER:g}, got {shown(value)}.")
        return float(value)

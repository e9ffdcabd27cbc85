"""Entries of a plan file: typed access, with errors that name the file and the field."""

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from pipette_opt.base.errors import InputError, shown
from pipette_opt.base.types import LARGEST_EXACT, is_number

T = TypeVar("T")

LARGEST = 1e18
"""Largest time, rate or size that a plan may have; sums of larger numbers could overflow. Chosen."""


def damaged(where: str, path: str, problem: str) -> InputError:
    """Return the error for a damaged field of a plan file."""
    return InputError(where, f"{path} {problem}" if path else problem)


class Entries:
    """
    A mapping of the file.

    Parameters
    ----------
    where
        Name of the file.
    path
        Path in the file, e.g. ``memory[2]``; empty at the top.
    data
        Content. ``InputError`` unless it is a mapping.
    """

    def __init__(self, where: str, path: str, data: object) -> None:
        self.where, self.path = where, path
        if not isinstance(data, Mapping):
            raise damaged(where, path, f"must be a mapping of fields, got {shown(data)}.")
        self.data: Mapping[str, Any] = data

    def at(self, name: str) -> str:
        """Return the path of a field."""
        return f"{self.path}.{name}" if self.path else name

    def any(self, name: str) -> Any:
        """Return the value of a required field, of any type."""
        if name not in self.data:
            raise damaged(self.where, self.at(name), "is missing.")
        return self.data[name]

    def optional(self, name: str, read: Callable[[str], T]) -> T | None:
        """Return ``None`` for a null field, otherwise its value by ``read``."""
        return None if self.any(name) is None else read(name)

    def text(self, name: str) -> str:
        """Return a text."""
        value = self.any(name)
        if not isinstance(value, str):
            raise self._wrong(name, "text", value)
        return value

    def choice(self, name: str, choices: tuple[Any, ...]) -> Any:
        """Return a word of ``choices``."""
        value = self.any(name)
        if value not in choices:
            raise self._wrong(name, f"one of {', '.join(choices)}", value)
        return value

    def flag(self, name: str) -> bool:
        """Return true or false."""
        value = self.any(name)
        if not isinstance(value, bool):
            raise self._wrong(name, "true or false", value)
        return value

    def whole(self, name: str, minimum: int = 0) -> int:
        """Return a whole number, at least ``minimum``."""
        return self._whole(name, self.any(name), minimum)

    def number(self, name: str) -> float:
        """Return a finite number."""
        return self._number(name, self.any(name))

    def positive(self, name: str) -> float:
        """Return a finite number > 0."""
        value = self.number(name)
        if value <= 0:
            raise self._wrong(name, "a number > 0", value)
        return value

    def texts(self, name: str) -> list[str]:
        """Return a list of texts."""
        values = self._list(name)
        for index, value in enumerate(values):
            if not isinstance(value, str):
                raise self._wrong(f"{name}[{index}]", "text", value)
        return values

    def wholes(self, name: str) -> list[int]:
        """Return a list of whole numbers >= 0."""
        return [self._whole(f"{name}[{index}]", value, 0) for index, value in enumerate(self._list(name))]

    def mapping(self, name: str) -> "Entries":
        """Return a nested mapping."""
        return Entries(self.where, self.at(name), self.any(name))

    def mappings(self, name: str) -> list["Entries"]:
        """Return a list of nested mappings."""
        return [Entries(self.where, f"{self.at(name)}[{index}]", value) for index, value in enumerate(self._list(name))]

    def numbers(self) -> dict[str, float]:
        """Return all fields, each a finite number."""
        return {name: self._number(name, value) for name, value in self.data.items()}

    def _list(self, name: str) -> list[Any]:
        value = self.any(name)
        if not isinstance(value, list):
            raise self._wrong(name, "a list", value)
        return value

    def _whole(self, name: str, value: object, minimum: int) -> int:
        if isinstance(value, bool) or not isinstance(value, int) or value < minimum:
            raise self._wrong(name, f"a whole number >= {minimum}", value)
        if value > LARGEST_EXACT:
            raise self._wrong(name, "a whole number <= 2^53", value)
        return value

    def _number(self, name: str, value: object) -> float:
        if not is_number(value):
            raise self._wrong(name, "a finite number", value)
        if abs(value) > LARGEST:
            raise self._wrong(name, f"at most {LARGEST:g}", value)
        return float(value)

    def _wrong(self, name: str, wanted: str, value: object) -> InputError:
        return damaged(self.where, self.at(name), f"must be {wanted}, got {shown(value)}.")

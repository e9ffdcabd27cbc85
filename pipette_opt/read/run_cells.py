"""Cells of a row of ``runs.csv``, and what their words mean."""

import math
from collections.abc import Mapping
from dataclasses import dataclass

from pipette_opt.base.errors import InputError, shown
from pipette_opt.base.units import number_of

TRUE, FALSE = ("true", "1", "1.0", "yes", "on"), ("false", "0", "0.0", "no", "off")


def truth_of(text: str) -> bool | None:
    """Return a cell as true or false, in any case; ``None`` if empty or another word."""
    word = text.lower()
    return True if word in TRUE else False if word in FALSE else None


@dataclass(frozen=True, slots=True)
class Cells:
    """Cells of a row, each checked when a field asks for it."""

    where: str
    cells: Mapping[str, str]

    def text(self, name: str) -> str:
        """Return a cell as text; empty if it has none, or a word for nothing."""
        value = self.cells.get(name, "")
        return "" if value.lower() in ("nan", "none", "null") and name != "recompute" else value

    def needed(self, name: str) -> str:
        """Return a cell as text that is not empty."""
        value = self.text(name)
        if not value:
            raise InputError(self.where, f"{name} must not be empty.")
        return value

    def number(self, name: str, *, above_zero: bool = False) -> float | None:
        """Return a cell as a number that is not negative; ``None`` if empty."""
        text = self.text(name)
        if not text:
            return None
        try:
            value = number_of(text)
        except ValueError:
            value = math.nan
        if not math.isfinite(value) or value < 0 or (above_zero and value == 0):
            raise InputError(
                self.where, f"{name} must be a number {'> 0' if above_zero else '>= 0'}, got {shown(text)}."
            )
        return value

    def whole(self, name: str, *, broken: bool = False) -> int | None:
        """
        Return a cell as a whole number, also if written as ``2.0``; ``None`` if empty.

        A fraction is ``None`` with ``broken``, else an ``InputError``.
        """
        text = self.text(name)
        value = self.number(name, above_zero=True)
        if value is None:
            return None
        if value != int(value):
            if broken:
                return None
            raise InputError(self.where, f"{name} must be a whole number >= 1, got {shown(text)}.")
        return int(value)

    def needed_whole(self, name: str) -> int:
        """Return a cell that is not empty as a whole number."""
        self.needed(name)
        value = self.whole(name)
        assert value is not None
        return value

    def flag(self, name: str) -> bool | None:
        """Return a cell as true or false; ``None`` if empty."""
        text = self.text(name)
        value = truth_of(text)
        if text and value is None:
            raise InputError(self.where, f"{name} must be True or False, got {shown(text)}.")
        return value

    def word(self, name: str, words: tuple[str, ...], others: str = "") -> None:
        """Raise ``InputError`` for a cell that is neither empty nor one of ``words``, in any case."""
        text = self.text(name).removesuffix(".0")
        if text and text.lower() not in words:
            raise InputError(self.where, f"{name} must be one of {', '.join(words)}{others}, got {shown(text)}.")

    def flag_or(self, name: str, default: bool) -> bool:
        """Return a cell as true or false; ``default`` if empty. ``full_iteration`` is true, any other word false."""
        text = self.text(name).lower()
        return truth_of(text) is True or text == "full_iteration" if text else default

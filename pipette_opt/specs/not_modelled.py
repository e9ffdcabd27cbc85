"""Options of a job that change its time or memory, but that the estimates do not count."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

Effect = Literal["time", "memory", "both"]
"""Quantity that an option changes."""

Direction = Literal["less", "more", "either"]
"""Direction in which an option changes the real time or memory, against the estimate."""


LARGE_EFFECT = "the time changes, by how much is not known"
"""Words for options that may change the time by more than a tenth."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NotModelled:
    """
    One option, or one key of a model file, that the estimates leave out.

    Parameters
    ----------
    option
        Option or key as the user wrote it, e.g. ``--tp-comm-overlap`` or ``sliding_window``.
    value
        Value of the option as text; empty for a flag.
    effect
        Whether the time, the memory, or both of the real job differ from the estimates.
    direction
        Whether the real job takes less or more than estimated.
    why
        One sentence for people: the part of the option's work that is not counted.
    is_large
        Whether the option may change the time by more than a tenth.
    """

    option: str
    value: str = ""
    effect: Effect
    direction: Direction
    why: str
    is_large: bool = False


def by_size(entries: Iterable[NotModelled]) -> tuple[list[str], list[str]]:
    """Return the options that may change the time by more than a tenth, and the other options; each once."""
    found = list(entries)
    large = dict.fromkeys(entry.option for entry in found if entry.is_large)
    return list(large), [option for option in dict.fromkeys(entry.option for entry in found) if option not in large]

"""Options of a job that change its time or memory, but that the estimates do not count, or count in part."""

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
    One option, or one key of a model file, that the estimates leave out, or count in part.

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
    in_part
        Whether the estimates count the option, but may err in this direction.
    """

    option: str
    value: str = ""
    effect: Effect
    direction: Direction
    why: str
    is_large: bool = False
    in_part: bool = False


def by_size(entries: Iterable[NotModelled]) -> tuple[list[str], list[str], list[str]]:
    """Return options that may change the time by more than a tenth, others left out, and those counted in part."""
    found = list(entries)
    counted = dict.fromkeys(entry.option for entry in found if entry.in_part)
    large = dict.fromkeys(entry.option for entry in found if entry.is_large and entry.option not in counted)
    names = dict.fromkeys(entry.option for entry in found)
    return list(large), [name for name in names if name not in large and name not in counted], list(counted)

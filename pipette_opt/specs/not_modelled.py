"""Options of a job that change its time or memory, but that the estimates do not count."""

from dataclasses import dataclass
from typing import Literal

Effect = Literal["time", "memory", "both"]
"""Quantity that an option changes."""

Direction = Literal["less", "more", "either"]
"""Direction in which an option changes the real time or memory, against the estimate."""


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
    """

    option: str
    value: str = ""
    effect: Effect
    direction: Direction
    why: str

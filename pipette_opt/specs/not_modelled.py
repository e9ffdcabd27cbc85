"""Options of a job that change its time or its memory, and that no number here counts."""

from dataclasses import dataclass
from typing import Literal

Effect = Literal["time", "memory", "both"]
Direction = Literal["less", "more", "either"]


@dataclass(frozen=True, slots=True, kw_only=True)
class NotModelled:
    """
    One option, or one key of a model's file, that the numbers leave out.

    Parameters
    ----------
    option
        As the user wrote it, e.g. ``--tp-comm-overlap`` or ``sliding_window``.
    value
        Its value as text; empty for a flag.
    effect
        What of the real job differs from the numbers.
    direction
        Whether the real job takes less or more of it than the numbers say.
    why
        One sentence for people: what the option does that is not counted.
    """

    option: str
    value: str = ""
    effect: Effect
    direction: Direction
    why: str

"""Table of options of a job that the predictions leave out, or count in part."""

from collections.abc import Iterable, Sequence
from itertools import groupby

from rich.console import RenderableType
from rich.text import Text

from pipette_opt.report.cells import FAIR, columns_table, spaced
from pipette_opt.specs import NotModelled

_WORDS = {"time": "time", "memory": "memory", "both": "time, memory"}


def left_out_table(entries: Sequence[NotModelled]) -> list[RenderableType]:
    """Table with a row per option; empty if every option is modelled."""
    if not entries:
        return []
    table = columns_table("not modelled", "the real job takes", "why")
    for column, share in zip(table.columns, (3, 2, 4), strict=True):
        column.ratio, column.overflow = share, "fold"
    table.expand = True
    for (option, value), members in groupby(entries, key=lambda entry: (entry.option, entry.value)):
        found = list(members)
        name = f"{option} {value}".strip() + (" (counted in part)" if found[0].in_part else "")
        table.add_row(Text(name, style=FAIR), _takes(found), found[0].why)
    return [spaced(table)]


def _takes(entries: Iterable[NotModelled]) -> str:
    """Return the effect of an option, such as ``less time, more memory``; an unknown direction is ``more or less``."""
    effects = [
        ("much " * entry.is_large, entry.direction.replace("either", "more or less"), _WORDS[entry.effect])
        for entry in entries
    ]
    return ", ".join(f"{size}{direction} {effect}" for size, direction, effect in effects)

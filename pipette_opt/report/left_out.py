"""What the numbers leave out, as a table: the options of a job that are not modelled."""

from collections.abc import Iterable, Sequence
from itertools import groupby

from rich.console import RenderableType
from rich.text import Text

from pipette_opt.report.cells import FAIR, columns_table, spaced
from pipette_opt.specs import NotModelled

_WORDS = {"time": "time", "memory": "memory", "both": "time, memory"}


def left_out_table(entries: Sequence[NotModelled]) -> list[RenderableType]:
    """One row for each option; nothing if all is modelled."""
    if not entries:
        return []
    table = columns_table("not modelled", "the real job takes", "why")
    for column, share in zip(table.columns, (3, 2, 4), strict=True):
        column.ratio, column.overflow = share, "fold"
    table.expand = True
    for (option, value), members in groupby(entries, key=lambda one: (one.option, one.value)):
        found = list(members)
        table.add_row(Text(f"{option} {value}".strip(), style=FAIR), Text(_takes(found)), Text(found[0].why))
    return [spaced(table)]


def _takes(entries: Iterable[NotModelled]) -> str:
    """``less time, more memory``; what may go either way as ``more or less``."""
    said = [(one.direction.replace("either", "more or less"), _WORDS[one.effect]) for one in entries]
    return ", ".join(f"{direction} {what}" for direction, what in said)

"""Table of options of a job that the predictions leave out, or count in part."""

from collections.abc import Iterable, Sequence
from itertools import groupby

from pipette_opt.base.table import FAIR, Cell, Table
from pipette_opt.specs import NotModelled

_WORDS = {"time": "time", "memory": "memory", "both": "time, memory"}


def left_out(entries: Sequence[NotModelled]) -> Table:
    """Return a table with a row per option; without rows if every option is modelled."""
    rows = []
    for (option, value), members in groupby(entries, key=lambda entry: (entry.option, entry.value)):
        found = list(members)
        name = f"{option} {value}".strip() + (" (counted in part)" if found[0].in_part else "")
        rows.append((Cell(name, style=FAIR), _takes(found), found[0].why))
    return Table(title="Not modelled", headers=("option", "the real job takes", "why"), rows=rows)


def _takes(entries: Iterable[NotModelled]) -> str:
    """Return the effect of an option, such as ``less time, more memory``; an unknown direction is ``more or less``."""
    effects = [
        ("much " * entry.is_large, entry.direction.replace("either", "more or less"), _WORDS[entry.effect])
        for entry in entries
    ]
    return ", ".join(f"{size}{direction} {effect}" for size, direction, effect in effects)

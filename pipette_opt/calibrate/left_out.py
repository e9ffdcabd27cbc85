"""Rows of measured runs that are left out, with reasons, and lines that report them."""

import re
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from pipette_opt.read.runs import MeasuredRun, UnreadRow

MAX_RANGES = 6
"""Most rows, or ranges of rows, that a line lists before it ends with dots. Chosen for a readable line."""


class LeftOut(NamedTuple):
    """Row of a runs file (0 for the first below the header), and the reason why it is not used."""

    row: int
    reason: str


def without_copies(runs: Sequence[MeasuredRun]) -> tuple[list[MeasuredRun], list[LeftOut]]:
    """Return the runs without repeated rows, and the repeated rows."""
    first: dict[tuple[object, ...], MeasuredRun] = {}
    copies = []
    for run in runs:
        measured = run.iter_time_s, run.peak_mem_bytes, run.oom
        seen = first.setdefault((frozenset(run.cells.items()), measured), run)
        if seen is not run:
            copies.append(LeftOut(run.row, f"a copy of row {seen.row}"))
    return list(first.values()), copies


def unread(rows: Iterable[UnreadRow]) -> list[LeftOut]:
    """Return the rows that could not be read; the reason names the line in the file."""
    return [LeftOut(row.row, f"line {row.line}: {row.problem.rstrip('.')}") for row in rows]


def left_out_entries(rows: Iterable[LeftOut]) -> list[dict[str, object]]:
    """Return left-out rows as JSON entries, in order of the row."""
    return [{"row": row.row, "reason": row.reason} for row in sorted(rows)]


def left_out_lines(rows: Sequence[LeftOut], total: int, fate: str = "left out") -> list[str]:
    """
    Return a line for each reason: how many rows, which rows, and the reason of the first.

    Reasons that differ only in numbers share a line.

    Parameters
    ----------
    total
        Rows of the file.
    fate
        Words such as ``left out`` for the effect on the rows.
    """
    kinds: dict[str, list[LeftOut]] = {}
    for row in sorted(rows):
        kinds.setdefault(re.sub(r"[0-9]+(\.[0-9]+)?", "#", row.reason), []).append(row)
    return [
        f"{len(members)} of {counted(total)} {fate} ({named(row.row for row in members)}): {members[0].reason}"
        for members in kinds.values()
    ]


def counted(number: int) -> str:
    """Return a number of rows as text: ``1 row``, ``2 rows``."""
    return f"{number} row{'s' if number != 1 else ''}"


def named(rows: Iterable[int]) -> str:
    """Return a list of rows as text: ``row 3``, ``rows 3, 7-9``."""
    ranges: list[list[int]] = []
    for row in sorted(rows):
        if ranges and row == ranges[-1][1] + 1:
            ranges[-1][1] = row
        else:
            ranges.append([row, row])
    parts = [str(low) if low == high else f"{low}-{high}" for low, high in ranges[:MAX_RANGES]]
    several = len(ranges) > 1 or ranges[0][0] != ranges[0][1]
    return f"row{'s' if several else ''} {', '.join(parts)}{', ...' if len(ranges) > MAX_RANGES else ''}"

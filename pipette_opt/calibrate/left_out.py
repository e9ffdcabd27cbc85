"""Rows of measured runs that are left out, each with its reason, and how people are told."""

import re
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import NamedTuple

from pipette_opt.read.runs import MeasuredRun, UnreadRow

MAX_RANGES = 6
"""Rows, or ranges of rows, that a line names before it ends with dots; chosen so that a line stays readable."""


class LeftOut(NamedTuple):
    """A row, 0 for the first below the header, and why it is not used."""

    row: int
    reason: str


def without_copies(runs: Sequence[MeasuredRun]) -> tuple[list[MeasuredRun], list[LeftOut]]:
    """Runs without those that say what an earlier row says: a copy of a row tells nothing more."""
    first: dict[str, MeasuredRun] = {}
    copies = []
    for run in runs:
        seen = first.setdefault(repr(replace(run, row=0)), run)
        if seen is not run:
            copies.append(LeftOut(run.row, f"a copy of row {seen.row}"))
    return list(first.values()), copies


def unread(rows: Iterable[UnreadRow]) -> list[LeftOut]:
    """Rows that could not be read, with their line in the file."""
    return [LeftOut(one.row, f"line {one.line}: {one.problem.rstrip('.')}") for one in rows]


def left_out_entries(rows: Iterable[LeftOut]) -> list[dict[str, object]]:
    """The same for JSON, in order of rows."""
    return [{"row": one.row, "reason": one.reason} for one in sorted(rows)]


def left_out_lines(rows: Sequence[LeftOut], total: int, said: str = "left out") -> list[str]:
    """
    A line for each kind of reason: how many rows, which, and the reason of the first.

    Reasons that differ in their numbers only are of one kind.

    Parameters
    ----------
    total
        Rows of the file.
    said
        What happened to the rows.
    """
    kinds: dict[str, list[LeftOut]] = {}
    for one in sorted(rows):
        kinds.setdefault(re.sub(r"\d+(\.\d+)?", "#", one.reason), []).append(one)
    return [
        f"{len(members)} of {counted(total)} {said} ({named(one.row for one in members)}): {members[0].reason}"
        for members in kinds.values()
    ]


def counted(number: int) -> str:
    """``1 row``, ``2 rows``."""
    return f"{number} row{'s' if number != 1 else ''}"


def named(rows: Iterable[int]) -> str:
    """``row 3``, ``rows 3, 7-9``."""
    ranges: list[list[int]] = []
    for row in sorted(rows):
        if ranges and row == ranges[-1][1] + 1:
            ranges[-1][1] = row
        else:
            ranges.append([row, row])
    parts = [str(low) if low == high else f"{low}-{high}" for low, high in ranges[:MAX_RANGES]]
    several = len(ranges) > 1 or ranges[0][0] != ranges[0][1]
    return f"row{'s' if several else ''} {', '.join(parts)}{', ...' if len(ranges) > MAX_RANGES else ''}"

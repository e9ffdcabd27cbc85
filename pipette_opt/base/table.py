"""Table of cells: written once, and shown in a terminal, on a page and as a pandas frame."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pipette_opt.base.units import gib, percent

if TYPE_CHECKING:
    from pandas import DataFrame

GOOD, FAIR, BAD, QUIET = "green", "yellow", "red", "dim"
"""Styles of cells in a terminal."""

Value = str | bool | int | float | None


@dataclass(frozen=True, slots=True)
class Cell:
    """
    A value and its text.

    Parameters
    ----------
    text
        Text for people.
    value
        Value with all digits, as ``plan.json`` and a pandas frame have it; ``None`` if unknown.
    path
        Path of the value in ``plan.json``, which marks the number on the page; empty for other values.
    style
        Style of the text in a terminal.
    bar
        Ends of the solid and of the light part of a bar beside the text, as shares of its length; only a terminal
        draws it.
    """

    text: str
    value: Value = None
    path: str = ""
    style: str = ""
    bar: tuple[float, float] | None = None


EMPTY = Cell("")
"""Cell without a value; an empty text would be a value."""

Row = Sequence[Cell | str]
"""Cells of a row; a text stands for a cell with this text as its value."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """
    Columns and rows of cells.

    Parameters
    ----------
    title
        Title above the table in a terminal, and its caption on the page.
    headers
        Header of each column; one that ends in ``>`` aligns its column to the right. People do not see a column with
        an empty header.
    names
        Name of each column in a frame; a column with an empty name is left out. Empty for tables without a frame.
    total
        Last row, with the sums of the others; a frame leaves it out.
    note
        Line below the table.
    """

    title: str = ""
    headers: Sequence[str]
    rows: Sequence[Row]
    names: Sequence[str] = ()
    total: Row | None = None
    note: str = ""

    def shown_headers(self) -> list[str]:
        """Return the headers of the columns that people see."""
        return [header for header in self.headers if header]

    def shown_cells(self, row: Row) -> list[Cell]:
        """Return the cells of a row that people see."""
        cells = zip(self.headers, row, strict=True)
        return [Cell(cell, cell) if isinstance(cell, str) else cell for header, cell in cells if header]

    def as_frame(self) -> "DataFrame":
        """Return the values as a pandas frame; unknown values are NaN."""
        from pandas import DataFrame

        return DataFrame(
            {name: [_value(row[place]) for row in self.rows] for place, name in enumerate(self.names) if name}
        )


def _value(cell: Cell | str) -> Value:
    if isinstance(cell, str):
        return cell
    return float("nan") if cell.value is None else cell.value


def count_cell(number: int, path: str = "") -> Cell:
    """Return a cell with a whole number."""
    return Cell(f"{number:,}", number, path)


def gib_cell(num_bytes: float | None, path: str = "") -> Cell:
    """Return a cell with a number of bytes in GiB."""
    return Cell("-") if num_bytes is None else Cell(f"{gib(num_bytes):.1f}", gib(num_bytes), path)


def share_cell(share: float | None, path: str = "") -> Cell:
    """Return a cell with a share as a percentage."""
    return Cell("-") if share is None else Cell(percent(share), share, path)

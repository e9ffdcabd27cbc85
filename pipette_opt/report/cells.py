"""Table styles, and formats of values in table cells."""

from collections.abc import Iterable
from typing import Any

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from pipette_opt.base.units import three_digits
from pipette_opt.plans.predicted import IterationTime

GOOD, FAIR, BAD, QUIET = "green", "yellow", "red", "dim"


class Columns(Table):
    """Table whose cells are texts as they stand: rich reads no cell as markup."""

    def add_row(self, *cells: RenderableType | None, **options: Any) -> None:
        """Add a row of texts and other renderables."""
        super().add_row(*(Text(cell) if isinstance(cell, str) else cell for cell in cells), **options)


def columns_table(*headers: str) -> Columns:
    """Return an empty table with these columns; a header that ends in ``>`` aligns its column to the right."""
    table = Columns(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False, show_edge=False, header_style="bold")
    for header in headers:
        right = header.endswith(" >")
        table.add_column(Text(header.removesuffix(" >")), justify="right" if right else "left", no_wrap=right)
    return table


def spaced(table: RenderableType) -> RenderableType:
    """Put an empty line before a table."""
    return Group(Text(), table)


def hanging(rows: Iterable[tuple[str, str]]) -> Table:
    """Table of two columns without borders; long texts wrap inside their column."""
    table = Table.grid(padding=(0, 2))
    table.add_column(overflow="fold")
    table.add_column(overflow="fold")
    for row in rows:
        table.add_row(*map(Text, row))
    return table


def titled(title: str, body: RenderableType) -> RenderableType:
    """Put an empty line and a title before a table."""
    return Group(Text(), Text(title, style="bold"), body)


def seconds_text(seconds: float | None) -> str:
    """Format seconds with four digits after the point, and ``None`` as a dash."""
    return "-" if seconds is None else f"{seconds:.4f} s"


def expected_text(estimate: IterationTime, simulated_s: float | None) -> str:
    """Format simulated seconds of a plan, or of another plan of its job, as expected seconds; ``None`` as a dash."""
    return seconds_text(None if simulated_s is None else estimate.expected_of(simulated_s))


def clock_words(estimate: IterationTime) -> str:
    """Return a sentence on expected and simulated seconds."""
    if estimate.band is None:
        return "Expected seconds are the simulated ones: the plan records no other."
    factor = three_digits(estimate.factor)
    return f"Expected seconds are {factor} times the simulated ones, on which solver and proof work."


def clock_line(estimate: IterationTime) -> str:
    """Return the sentence on expected and simulated seconds, with the simulated time of an iteration."""
    return f"{clock_words(estimate)} Simulated: {seconds_text(estimate.iteration_time_s)}."


def words(name: str) -> str:
    """Return the name of a field with spaces instead of underscores."""
    return name.replace("_", " ")


def yes_no(flag: bool) -> str:
    """Return ``yes`` or ``no``."""
    return "yes" if flag else "no"

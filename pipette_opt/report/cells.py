"""Frames of tables and the texts in their cells."""

from collections.abc import Iterable

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from pipette_opt.base.units import percent

GOOD, FAIR, BAD, QUIET = "green", "yellow", "red", "dim"


def columns_table(*headers: str) -> Table:
    """A table with these columns; a header that ends in ``>`` has its numbers to the right."""
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False, show_edge=False, header_style="bold")
    for header in headers:
        right = header.endswith(" >")
        table.add_column(Text(header.removesuffix(" >")), justify="right" if right else "left", no_wrap=right)
    return table


def spaced(table: RenderableType) -> RenderableType:
    """An empty line first."""
    return Group(Text(), table)


def hanging(rows: Iterable[tuple[str, str]], *, style: str = "") -> Table:
    """Two columns without a frame; texts that are too long go on in their own column."""
    table = Table.grid(padding=(0, 2))
    table.add_column(style=style, overflow="fold")
    table.add_column(overflow="fold")
    for row in rows:
        table.add_row(*map(Text, row))
    return table


def titled(title: str, body: RenderableType) -> RenderableType:
    """An empty line and a title first."""
    return Group(Text(), Text(title, style="bold"), body)


def seconds_text(seconds: float | None) -> str:
    """Four digits after the point; a dash where there is no time."""
    return "-" if seconds is None else f"{seconds:.4f} s"


def risk(probability: float, *, at_most: bool = False) -> str:
    """A percentage that is never rounded to nothing, and says where it is the smallest that can be vouched for."""
    return f"<= {percent(probability)}" if at_most and probability >= 1e-4 else percent(probability)


def words(name: str) -> str:
    """A field name to read."""
    return name.replace("_", " ")


def yes_no(flag: bool) -> str:
    """For people."""
    return "yes" if flag else "no"

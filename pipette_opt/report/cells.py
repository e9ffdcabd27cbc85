"""Tables in a terminal, and sentences beside them."""

from collections.abc import Iterable, Iterator, Sequence

import rich.table
from rich import box
from rich.console import Group, RenderableType
from rich.text import Text

from pipette_opt.base.table import QUIET, Cell, Table
from pipette_opt.base.units import seconds_text, three_digits
from pipette_opt.plans.predicted import IterationTime
from pipette_opt.report.bars import Bar


def as_rich(table: Table) -> RenderableType:
    """
    Return a table for a terminal, after an empty line and its title.

    A bar has a column before that of its cell. Numbers and columns of single words are not broken into lines. Each
    text is shown as it stands: rich reads no cell as markup.
    """
    rows = [table.shown_cells(row) for row in table.rows]
    columns = [[row[place] for row in rows] for place in range(len(table.shown_headers()))]
    has_bar = [any(cell.bar for cell in column) for column in columns]
    drawn = rich.table.Table(
        box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False, show_edge=False, header_style="bold"
    )
    for header, column, bar in zip(table.shown_headers(), columns, has_bar, strict=True):
        if bar:
            drawn.add_column()
        right = header.endswith(" >")
        whole = right or not any(" " in cell.text for cell in column)
        drawn.add_column(
            Text(header.removesuffix(" >")),
            justify="right" if right else "left",
            no_wrap=whole,
            overflow="ellipsis" if whole else "fold",
        )
    for row in rows:
        drawn.add_row(*_drawn(row, has_bar))
    if table.total is not None:
        drawn.add_section()
        drawn.add_row(*_drawn(table.shown_cells(table.total), has_bar), style="bold")
    title = [Text(table.title, style="bold")] if table.title else []
    return Group(Text(), *title, drawn, *([Text(table.note, style=QUIET)] if table.note else []))


def shown_tables(*tables: Table) -> list[RenderableType]:
    """Return the tables that have rows, for a terminal."""
    return [as_rich(table) for table in tables if table.rows]


def _drawn(row: Iterable[Cell], has_bar: Sequence[bool]) -> Iterator[RenderableType]:
    """Yield the cells of a row, each after its bar if the column has bars."""
    for cell, bar in zip(row, has_bar, strict=True):
        if bar:
            yield "" if cell.bar is None else Bar(filled=cell.bar[0], reached=cell.bar[1], style=cell.style or "cyan")
        yield Text(cell.text, style=cell.style)


def hanging(rows: Iterable[tuple[str, str]]) -> rich.table.Table:
    """Table of two columns without borders; long texts wrap inside their column."""
    table = rich.table.Table.grid(padding=(0, 2))
    table.add_column(overflow="fold")
    table.add_column(overflow="fold")
    for row in rows:
        table.add_row(*map(Text, row))
    return table


def titled(title: str, body: RenderableType) -> RenderableType:
    """Put an empty line and a title before a table."""
    return Group(Text(), Text(title, style="bold"), body)


def clock_words(estimate: IterationTime) -> str:
    """Return a sentence on expected and simulated seconds."""
    if estimate.band is None:
        return "Expected seconds are the simulated ones: the plan records no other."
    factor = three_digits(estimate.factor)
    return f"Expected seconds are {factor} times the simulated ones, on which solver and proof work."


def clock_line(estimate: IterationTime) -> str:
    """Return the sentence on expected and simulated seconds, with the simulated time of an iteration."""
    return f"{clock_words(estimate)} Simulated: {seconds_text(estimate.iteration_time_s)}."


def value_text(value: object) -> str:
    """Return a value of an option as text: ``yes``, ``no``, ``none``, or as it stands."""
    return {None: "none", True: "yes", False: "no"}[value] if isinstance(value, bool | None) else str(value)

"""
Elements of the page. The serialiser of the standard library escapes all texts and attributes.

Every number of the plan is a ``data`` element: ``value`` has all digits, ``data-field`` is the path in ``plan.json``.
Simulated seconds of the plan are shown as expected seconds.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING
from xml.etree.ElementTree import Element

from pipette_opt.base.table import Cell, Table

if TYPE_CHECKING:
    from plotly.graph_objects import Figure

Child = str | Element | None


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Panel:
    """
    A section of the page.

    Parameters
    ----------
    name
        Identifier in the page.
    body
        Elements before the figure.
    figure
        Figure, drawn by the browser when the page opens.
    shows
        Caption of the figure, and its description for readers who cannot see the figure.
    details
        Tables with the figure's numbers and other elements, unfolded by a click and in print.
    """

    name: str
    title: str
    body: Sequence[Element]
    figure: "Figure | None" = None
    shows: str = ""
    details: Sequence[Element] = ()


def element(tag: str, *children: Child, **attributes: object) -> Element:
    """Return an element; ``class_`` and ``data_field`` become ``class`` and ``data-field``."""
    named = {name.rstrip("_").replace("_", "-"): str(value) for name, value in attributes.items() if value is not None}
    found = Element(tag, named)
    last: Element | None = None
    for child in children:
        if isinstance(child, Element):
            found.append(child)
            last = child
        elif child is not None and last is not None:
            last.tail = (last.tail or "") + child
        elif child is not None:
            found.text = (found.text or "") + child
    return found


def number(value: float, text: str, field: str) -> Element:
    """Return an element that shows a number of ``plan.json`` as ``text``."""
    return element("data", text, value=repr(value), data_field=field)


def paragraph(*children: Child) -> Element:
    """Return a paragraph element."""
    return element("p", *children)


def bullets(items: Iterable[Child]) -> Element:
    """Return a list element."""
    return element("ul", *(element("li", item) for item in items))


def as_html(table: Table) -> Element:
    """Return a table element with its own scroll bar; the first cell of a row is the row's header."""
    headers = table.shown_headers()
    sides = ["n" if header.endswith(" >") else None for header in headers]
    head = (
        element("th", header.removesuffix(" >"), scope="col", class_=side)
        for header, side in zip(headers, sides, strict=True)
    )
    body = []
    for row in (*table.rows, *([] if table.total is None else [table.total])):
        first, *rest = map(_content, table.shown_cells(row))
        cells = [element("td", cell, class_=side) for cell, side in zip(rest, sides[1:], strict=True)]
        body.append(element("tr", element("th", first, scope="row"), *cells))
    caption = f"{table.title} ({table.note})" if table.note else table.title
    return element(
        "div",
        element("table", element("caption", caption), element("thead", element("tr", *head)), element("tbody", *body)),
        class_="scroll",
        role="region",
        aria_label=caption,
        tabindex="0",
    )


def html_tables(*tables: Table) -> list[Element]:
    """Return the tables that have rows, as elements."""
    return [as_html(table) for table in tables if table.rows]


def _content(cell: Cell) -> Child:
    value = cell.value
    return number(value, cell.text, cell.path) if cell.path and isinstance(value, int | float) else cell.text

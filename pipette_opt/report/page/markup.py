"""
Elements of the page. Texts and attributes go through the serialiser of the standard library, which escapes them all.

Every number of the plan is a ``data`` element: ``value`` has all its digits, ``data-field`` its place in ``plan.json``.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING
from xml.etree.ElementTree import Element

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
        Its identifier in the page.
    body
        What is said before the figure.
    figure
        Drawn when the page is open; its tables say the same.
    shows
        What the figure shows, for who cannot see it; also its caption.
    tables
        The numbers, shown when asked for, and on paper.
    """

    name: str
    title: str
    body: Sequence[Element]
    figure: "Figure | None" = None
    shows: str = ""
    tables: Sequence[Element] = ()


def element(tag: str, *children: Child, **attributes: object) -> Element:
    """An element; ``class_`` and ``data_field`` become ``class`` and ``data-field``, children of ``None`` nothing."""
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


def number(value: float | None, text: str, field: str) -> Child:
    """A number of ``plan.json``: as it is read, and whole for programs; a dash where there is none."""
    return "-" if value is None else element("data", text, value=repr(value), data_field=field)


def paragraph(*children: Child) -> Element:
    """One or more sentences."""
    return element("p", *children)


def bullets(items: Iterable[Child]) -> Element:
    """A list."""
    return element("ul", *(element("li", item) for item in items))


def table(caption: str, headers: Sequence[str], rows: Iterable[Sequence[Child]]) -> Element:
    """
    A table that scrolls by itself; the first cell of a row names it.

    A header that ends in ``>`` has its numbers to the right.
    """
    sides = ["n" if header.endswith(" >") else None for header in headers]
    head = element(
        "tr",
        *(
            element("th", one.removesuffix(" >"), scope="col", class_=side)
            for one, side in zip(headers, sides, strict=True)
        ),
    )
    body = []
    for first, *rest in rows:
        cells = [element("td", cell, class_=side) for cell, side in zip(rest, sides[1:], strict=True)]
        body.append(element("tr", element("th", first, scope="row"), *cells))
    return element(
        "div",
        element("table", element("caption", caption), element("thead", head), element("tbody", *body)),
        class_="scroll",
        role="region",
        aria_label=caption,
        tabindex="0",
    )

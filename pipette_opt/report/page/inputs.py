"""Panels of the plan's inputs, its assumptions, and the options that its predictions leave out."""

from collections.abc import Iterator, Mapping
from typing import Any
from xml.etree.ElementTree import Element

from pipette_opt.base.table import Cell, Table
from pipette_opt.base.units import words
from pipette_opt.plans.plan import Plan
from pipette_opt.report.cells import value_text
from pipette_opt.report.left_out import left_out
from pipette_opt.report.page.markup import Panel, as_html, bullets, element, html_tables, paragraph

FIELDS = ("field", "value")
"""Headers of the tables of inputs."""

MAX_VALUES = 24
"""Maximum number of values shown of a list. Chosen."""


def assumptions_panel(plan: Plan) -> Panel:
    """Panel of the plan's notes, and of options that the predictions leave out."""
    body = [bullets(map(_with_code, plan.notes)) if plan.notes else paragraph("Nothing is noted.")]
    body += html_tables(left_out(plan.not_modelled))
    return Panel(name="assumptions", title="Assumptions", body=body)


def _with_code(note: str) -> Element:
    """Return a note as an element; text between backticks becomes code."""
    parts = note.split("`")
    return element("span", *(element("code", part) if place % 2 else part for place, part in enumerate(parts)))


def inputs_panel(plan: Plan, file: str, sha256: str) -> Panel:
    """Panel of input files with their hashes, options and versions."""
    made: dict[str, Any] = {"seed": plan.seed, "created": plan.created, "versions": plan.versions}
    plain = {name: value for name, value in plan.inputs.items() if not isinstance(value, Mapping)}
    tables = [
        Table(title="The plan", headers=FIELDS, rows=[("file", file), ("sha256", sha256), *_rows(made, "")]),
        Table(title="The job", headers=FIELDS, rows=list(_rows(plain, "inputs"))),
        *_tables(plan.inputs),
    ]
    return Panel(
        name="inputs",
        title="Inputs and hashes",
        body=[
            paragraph(
                "Every figure of the plan can be derived again from these, without the solver: ",
                element("code", "pipette-opt verify plan.json"),
                ".",
            )
        ],
        details=[as_html(table) for table in tables],
    )


def _tables(inputs: Mapping[str, Any]) -> Iterator[Table]:
    for name, value in inputs.items():
        if isinstance(value, Mapping) and value:
            yield Table(title=f"Input: {words(name)}", headers=FIELDS, rows=list(_rows(value, f"inputs.{name}")))


def _rows(value: Mapping[str, Any], at: str) -> Iterator[tuple[str, Cell | str]]:
    """Yield fields and values; nested fields have their path, and unset fields are listed last."""
    for name, item in value.items():
        field = f"{at}.{name}" if at else name
        if isinstance(item, Mapping):
            yield from ((f"{name}.{inner}", cell) for inner, cell in _rows(item, field))
        elif isinstance(item, int | float) and not isinstance(item, bool):
            yield name, Cell(f"{item:,}" if isinstance(item, int) else f"{item:g}", item, field)
        elif item is not None:
            yield name, _text(item)
    unset = [name for name, item in value.items() if item is None]
    if unset:
        yield "not set", ", ".join(unset)


def _text(value: object) -> str:
    if isinstance(value, list | tuple):
        shown = ", ".join(_text(item) for item in value[:MAX_VALUES])
        return f"{shown}, ... ({len(value):,} values)" if len(value) > MAX_VALUES else shown or "none"
    return value_text(value)

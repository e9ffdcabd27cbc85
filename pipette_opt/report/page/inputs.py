"""What the plan was made from, what it assumes, and what its numbers leave out."""

from collections.abc import Iterator, Mapping
from typing import Any
from xml.etree.ElementTree import Element

from pipette_opt.plans.plan import Plan
from pipette_opt.report.cells import words
from pipette_opt.report.page.markup import Child, Panel, bullets, element, number, paragraph, table

MAX_VALUES = 24
"""Values of a list that are shown."""


def assumptions_panel(plan: Plan) -> Panel:
    """Notes, and options of the job that no number counts."""
    body = [bullets(map(_with_code, plan.notes)) if plan.notes else paragraph("Nothing is noted.")]
    if plan.not_modelled:
        rows = [
            (f"{one.option} {one.value}".strip(), f"{one.direction} {one.effect}", one.why) for one in plan.not_modelled
        ]
        body.append(table("Not modelled", ("option", "the real job takes", "why"), rows))
    return Panel(name="assumptions", title="Assumptions", body=body)


def _with_code(note: str) -> Element:
    """A note; what is between backticks is typed."""
    parts = note.split("`")
    return element("span", *(element("code", one) if place % 2 else one for place, one in enumerate(parts)))


def inputs_panel(plan: Plan, file: str, sha256: str) -> Panel:
    """Files with their hashes, options, versions."""
    made: dict[str, Any] = {"seed": plan.seed, "created": plan.created, "versions": plan.versions}
    plain = {name: value for name, value in plan.inputs.items() if not isinstance(value, Mapping)}
    tables = [
        table("The plan", ("field", "value"), [("file", file), ("sha256", sha256), *_rows(made, "")]),
        table("The job", ("input", "value"), _rows(plain, "inputs")),
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
        tables=tables,
    )


def _tables(inputs: Mapping[str, Any]) -> Iterator[Element]:
    for name, value in inputs.items():
        if isinstance(value, Mapping) and value:
            yield table(f"Input: {words(name)}", ("field", "value"), _rows(value, f"inputs.{name}"))


def _rows(value: Mapping[str, Any], at: str) -> Iterator[tuple[str, Child]]:
    """Fields, those of mappings inside by their path; then the names of those that are not set."""
    for name, one in value.items():
        field = f"{at}.{name}" if at else name
        if isinstance(one, Mapping):
            yield from ((f"{name}.{inner}", cell) for inner, cell in _rows(one, field))
        elif isinstance(one, int | float) and not isinstance(one, bool):
            yield name, number(one, f"{one:,}" if isinstance(one, int) else f"{one:g}", field)
        elif one is not None:
            yield name, _text(one)
    unset = [name for name, one in value.items() if one is None]
    if unset:
        yield "not set", ", ".join(unset)


def _text(value: object) -> str:
    if isinstance(value, list | tuple):
        some = ", ".join(_text(one) for one in value[:MAX_VALUES])
        return f"{some}, ... ({len(value):,} values)" if len(value) > MAX_VALUES else some or "none"
    return (
        {None: "none", True: "yes", False: "no"}.get(value, str(value))
        if value is None or isinstance(value, bool)
        else str(value)
    )

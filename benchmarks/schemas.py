"""
JSON Schemas of ``plan.json`` and of stacks, from the types that read them: ``python -m benchmarks.schemas``.

Types, limits and required fields are those of the dataclasses and records. Descriptions are their docstrings, and the
docstrings of the parts of a plan that a record represents::

    python -m benchmarks.schemas           # compare with data/schemas; exit code 1 if a schema is stale
    python -m benchmarks.schemas --write   # write them anew
"""

import argparse
import re
import sys
from pathlib import Path
from typing import Any

import msgspec

from pipette_opt.base.files import write_atomically
from pipette_opt.base.shipped import shipped_path
from pipette_opt.parallel import ParallelConfig
from pipette_opt.plans.plan import Alternative, Band, Certificate, IterationTime, Plan, StageMemory
from pipette_opt.report import plan_file
from pipette_opt.report.json_text import json_text
from pipette_opt.specs import StackSpec
from pipette_opt.specs.stack import CONSTANTS

DIALECT = "https://json-schema.org/draft/2020-12/schema"

RECORDS: dict[type, type] = {
    plan_file.AlternativeFields: Alternative,
    plan_file.BandFields: Band,
    plan_file.Estimate: IterationTime,
    plan_file.Memory: StageMemory,
    plan_file.PlanFile: Plan,
}
"""Part of a plan whose docstring describes most fields of a record, by the record."""

OTHER_NAMES = {"from": "source", "components_gib": "components"}
"""Names in a part of a plan for fields that have other names in the record, besides GiB for bytes."""


def plan_schema() -> dict[str, Any]:
    """Return the schema of ``plan.json`` as it is written today, with all fields required."""
    parts = _parts(plan_file.PlanFile, ParallelConfig, Certificate)
    gap = {"type": "number", "minimum": 0, "maximum": 1, "description": _text(Certificate.shown_gap.__doc__ or "")}
    parts["Certificate"]["properties"]["shown_gap"] = gap
    for part in parts.values():
        if "properties" in part:
            part["required"] = list(part["properties"])
    top = parts.pop("PlanFile")
    for name in ("hosts", "placement"):
        top["properties"][name]["minItems"] = 1
    top["properties"]["hosts"]["uniqueItems"] = True
    return {"$schema": DIALECT, "$id": "urn:pipette-opt:plan:2", "title": "pipette-opt plan", **top, "$defs": parts}


def stack_schema() -> dict[str, Any]:
    """Return the schema of a stack file; all fields are optional, and a bare number counts as text."""
    parts = _parts(StackSpec)
    top = parts.pop("StackSpec")
    fields = top["properties"]
    for name in ("name", "source"):
        fields[name]["type"] = ["string", "integer"]
    fields["origins"]["propertyNames"] = {"enum": [*CONSTANTS, "memory"]}
    return {
        "$schema": DIALECT,
        "$id": "urn:pipette-opt:stack:1",
        "title": "pipette-opt software stack",
        **top,
        "$defs": parts,
    }


SCHEMAS = {"plan": plan_schema, "stack": stack_schema}
"""Functions that make the schemas, by the name of the schema's file."""


def _parts(*kinds: type) -> dict[str, dict[str, Any]]:
    """Return the schemas of these types and of all types that they contain, by name."""
    _, parts = msgspec.json.schema_components(kinds, ref_template="#/$defs/{name}")
    types = {kind.__name__: kind for kind in _types(kinds)}
    return {name: _described(part, types[name]) for name, part in parts.items()}


def _types(kinds: tuple[type, ...]) -> set[type]:
    """Return the types with fields that are contained in ``kinds``, including ``kinds``."""
    found: set[type] = set()
    waiting: list[Any] = [msgspec.inspect.type_info(kind) for kind in kinds]
    while waiting:
        info = waiting.pop()
        if isinstance(info, msgspec.inspect.StructType | msgspec.inspect.DataclassType | msgspec.inspect.EnumType):
            if info.cls in found:
                continue
            found.add(info.cls)
        waiting += [field.type for field in getattr(info, "fields", ())]
        waiting += [getattr(info, name) for name in ("type", "item_type", "value_type") if hasattr(info, name)]
        waiting += [*getattr(info, "types", ()), *getattr(info, "item_types", ())]
    return found


def _described(part: dict[str, Any], kind: type) -> dict[str, Any]:
    """Return the schema of a type without further fields, with the descriptions of its docstring."""
    part = {name: value for name, value in part.items() if name not in ("title", "description", "required")}
    of = RECORDS.get(kind, kind)
    texts = _parameters(of.__doc__ or "") | _parameters(kind.__doc__ or "")
    for name, field in part.get("properties", {}).items():
        field.pop("default", None)
        derived = getattr(of, name, None)
        names = (name, re.sub("_gib$", "_bytes", name), OTHER_NAMES.get(name, ""))
        text = next((texts[known] for known in names if known in texts), None)
        if text is None and isinstance(derived, property):
            text = _text(derived.__doc__ or "")
        if text:
            field["description"] = text
    closed = {"additionalProperties": False} if "properties" in part else {}
    summary = kind.__doc__ if kind not in RECORDS or kind is plan_file.PlanFile else of.__doc__
    return {"description": _text((summary or "").split("\n\n")[0]), **part, **closed}


def _parameters(docstring: str) -> dict[str, str]:
    """Return the text of each parameter of a numpy docstring, by name."""
    section = docstring.partition("----------\n")[2]
    found = re.findall(r"^    (\w[\w, ]*)\n((?:        .*\n|\n)+)", section, flags=re.MULTILINE)
    return {name: _text(text) for names, text in found for name in names.split(", ")}


def _text(docstring: str) -> str:
    """Return a docstring as plain text on one line."""
    text = re.sub(r":\w+:`~?(?:[\w.]*\.)?(\w+)`", r"\1", docstring)
    return " ".join(text.replace("``None``", "null").replace("``", "").split())


def main() -> None:
    """Compare or write the schemas."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true", help="write the schemas instead of comparing them")
    write, stale = parser.parse_args().write, []
    for name, make in SCHEMAS.items():
        path, text = schema_path(name), json_text(make()) + "\n"
        if path.read_text() != text:
            stale.append(path.name)
            if write:
                write_atomically(path, text)
    print("\n".join(f"{name} {'written' if write else 'is stale: run with --write'}" for name in stale) or "up to date")
    sys.exit(1 if stale and not write else 0)


def schema_path(name: str) -> Path:
    """Return the path of a published schema."""
    return shipped_path("data", "schemas", f"{name}.schema.json")


if __name__ == "__main__":
    main()

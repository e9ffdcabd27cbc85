"""Published schemas that are made from the types that read the files."""

from types import ModuleType

import pytest
from benchmark_modules import loaded

from pipette_opt.report.json_text import json_text


@pytest.fixture(scope="module")
def schemas() -> ModuleType:
    """The benchmark's module."""
    return loaded("schemas", ".")


@pytest.mark.parametrize("name", ["plan", "stack"])
def test_the_published_schema_is_that_of_the_types(schemas: ModuleType, name: str) -> None:
    """Otherwise ``python -m benchmarks.schemas --write`` makes it anew."""
    assert schemas.schema_path(name).read_text() == json_text(schemas.SCHEMAS[name]()) + "\n"


def test_descriptions_come_from_docstrings(schemas: ModuleType) -> None:
    """Of the record, of the part of the plan that it stands for, and of its properties."""
    parts = schemas.plan_schema()["$defs"]
    assert parts["Memory"]["properties"]["components_gib"]["description"].startswith("Bytes of the predicted peak")
    assert "seconds of an iteration" in parts["Estimate"]["properties"]["expected_s"]["description"].lower()
    assert "``" not in str(parts)
    assert ":class:" not in str(parts)

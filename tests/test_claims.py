"""The page of claims leads from the README's words to code, tests, commands and pages that exist."""

import ast
import importlib.util
import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "claims.md"

NAMED = re.compile(r"\[`(\w+)`\]\(([^)]+\.py)\)")
"""Function, class or constant, and the file that defines it."""

LINK = re.compile(r"\]\(([^)#]+)[^)]*\)")
"""Target of a link."""

COMMAND = re.compile(r"`(python (?:-m )?(\S+))`")
"""Command of a figure, and its module or file."""


def claims() -> list[list[str]]:
    """Return the cells of each row of the table: claim, code, tests, figure."""
    rows = re.findall(r"^\| (.*) \|$", PAGE.read_text("utf-8"), re.MULTILINE)
    return [row.split(" | ") for row in rows if not row.startswith("claim |")]


@cache
def defined(file: Path) -> frozenset[str]:
    """Return the functions, classes and constants at the top of a file."""
    found = set[str]()
    for node in ast.parse(file.read_text("utf-8")).body:
        match node:
            case ast.FunctionDef(name=name) | ast.ClassDef(name=name):
                found.add(name)
            case ast.Assign(targets=[ast.Name(id=name)]) | ast.AnnAssign(target=ast.Name(id=name)):
                found.add(name)
    return frozenset(found)


def test_the_table_is_read() -> None:
    """Degrees, hosts, links, memory (3), simulator, annealing, proof, verify, ranks, times."""
    assert len(claims()) == 12
    assert {len(row) for row in claims()} == {4}


@pytest.mark.parametrize("row", claims(), ids=lambda row: row[0][:40])
def test_a_claim_has_code_tests_and_a_figure(row: list[str]) -> None:
    """The words are the README's; what each cell names is defined where its link leads; the page names its command."""
    claim, code, tests, figure = row
    assert claim in " ".join((ROOT / "README.md").read_text("utf-8").split())
    for cell, folder in ((code, "pipette_opt"), (tests, "tests")):
        named = NAMED.findall(cell)
        assert len(named) == cell.count("](") > 0
        for name, target in named:
            file = (PAGE.parent / target).resolve()
            assert file.is_relative_to(ROOT / folder)
            assert name in defined(file), f"{target} has no {name}"
    assert all(name.startswith("test_") for name, _ in NAMED.findall(tests))
    ((command, program),) = COMMAND.findall(figure)
    (page,) = LINK.findall(figure)
    assert command in " ".join((PAGE.parent / page).resolve().read_text("utf-8").split())
    is_module = command.startswith("python -m")
    assert importlib.util.find_spec(program) if is_module else (ROOT / program).is_file()


def test_other_links_lead_to_files() -> None:
    """Those of the caveats below the table."""
    targets = LINK.findall(PAGE.read_text("utf-8").split("## What these words do not say")[1])
    assert len(targets) > 5
    assert [target for target in targets if not (PAGE.parent / target).exists()] == []


@pytest.mark.parametrize("name", ["no_such_function", "test_edge_of_one_byte"])
def test_names_of_elsewhere_are_not_defined(name: str) -> None:
    """The check can fail: a function of a test is none of the filter."""
    assert name not in defined(ROOT / "pipette_opt" / "memory" / "filter.py")

"""No room of the package has more statements than its ceiling in ``CONTRIBUTING.md``."""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "pipette_opt"
ROW = re.compile(r"^\| `([\w./]+)` \| .* \| ([\d,]+) \|$", re.MULTILINE)
"""Row of the table of rooms: the room, what is in it, its ceiling."""
SLACK = 20
"""Statements that a room may be below its ceiling. Chosen."""


def statements(text: str) -> int:
    """Return the number of statements, without docstrings and imports; a denser line has as many."""
    return sum(
        isinstance(node, ast.stmt)
        and not isinstance(node, (ast.Import, ast.ImportFrom))
        and not (isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant))
        for node in ast.walk(ast.parse(text))
    )


def sizes() -> dict[str, int]:
    """Return the statements of each room, and of each module beside the rooms."""
    found: dict[str, int] = {}
    for file in PACKAGE.rglob("*.py"):
        top, *below = file.relative_to(PACKAGE).parts
        room = f"{top}/" if below else top
        found[room] = found.get(room, 0) + statements(file.read_text("utf-8"))
    return {room: number for room, number in found.items() if number}


def ceilings() -> dict[str, int]:
    """Return the ceiling of each room."""
    found = ROW.findall((ROOT / "CONTRIBUTING.md").read_text("utf-8"))
    return {room: int(number.replace(",", "")) for room, number in found}


@pytest.mark.search
def test_no_room_is_above_its_ceiling() -> None:
    """Each room has a ceiling, is not above it, and not so far below that the ceiling says nothing."""
    found, most = sizes(), ceilings()
    assert found.keys() == most.keys()
    above = {
        room: f"{number} statements, at most {most[room]}" for room, number in found.items() if number > most[room]
    }
    assert not above, "delete what the room no longer needs; or raise the ceiling and say which capability it buys"
    below = {room: number for room, number in found.items() if number < most[room] - SLACK}
    assert not below, "lower these ceilings in CONTRIBUTING.md"


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ('"""Words."""\nimport ast\nfrom os import path\n', 0),
        ("a = 1; b = 2\n", 2),
        ('def f():\n    """Words."""\n    if a:\n        return [x for x in a]\n', 3),
    ],
)
def test_statements(text: str, number: int) -> None:
    """Docstrings and imports do not count; statements of one line count each."""
    assert statements(text) == number

"""Docstrings begin with a verb or a noun of the field, and names say what they hold."""

import ast
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
VAGUE = (
    r"(?:The same|Of|What|So|All that|All there|Those|These|Which|Where|How|Such|As|That|There|Some|It|Everything"
    r"|Nothing|Who|Why|One (?:that|of|which|more))\b"
)
"""First words that name nothing: a reader needs the function above, or a second reading."""
SUMMARY = re.compile(rf"\s*(?:{VAGUE}|Whether\b)")
PARAMETER = re.compile(rf"^ *\*{{0,2}}[a-z_]\w*(?:, [a-z_]\w*)*\n +{VAGUE}", re.MULTILINE)
"""A line of names in a section of a docstring, with a vague description; "Whether" is plain for a yes or no."""
NAMES = {"one", "some", "there", "said", "told", "what"}
"""Variables, parameters and attributes that say nothing of what they hold."""


def room_of(file: Path) -> str:
    """Return the folder or module of the package, or the top folder of research code."""
    parts = file.relative_to(ROOT).with_suffix("").parts
    return parts[1] if parts[0] == "pipette_opt" else parts[0]


def docstrings(tree: ast.AST) -> Iterator[str]:
    """Yield docstrings of modules, classes and functions, and those below constants and fields."""
    for node in ast.walk(tree):
        body = getattr(node, "body", None)
        for statement in body if isinstance(body, list) else ():
            match statement:
                case ast.Expr(value=ast.Constant(value=str(text))):
                    yield text


def names(tree: ast.AST) -> Iterator[str]:
    """Yield names where a variable, a parameter or a field is made."""
    for node in ast.walk(tree):
        match node:
            case ast.Name(id=name, ctx=ast.Store()) | ast.arg(arg=name) | ast.Attribute(attr=name, ctx=ast.Store()):
                yield name


def counts() -> dict[str, tuple[int, int]]:
    """Count vague docstrings and vague names of each room that has any."""
    words, vague_names = Counter[str](), Counter[str]()
    for folder in ("pipette_opt", "benchmarks", "models"):
        for file in (ROOT / folder).rglob("*.py"):
            tree, room = ast.parse(file.read_text("utf-8")), room_of(file)
            texts = list(docstrings(tree))
            words[room] += sum(bool(SUMMARY.match(text)) + len(PARAMETER.findall(text)) for text in texts)
            vague_names[room] += sum(name in NAMES for name in names(tree))
    return {room: (words[room], vague_names[room]) for room in words if words[room] or vague_names[room]}


@pytest.mark.search
def test_no_word_is_vague() -> None:
    """No room has a vague docstring or name."""
    assert counts() == {}


@pytest.mark.parametrize(
    ("text", "vague"),
    [("What a stage takes.", 1), ("Seconds of a stage.", 0), ("Time.\n\n    seconds\n        Of a stage.\n", 1)],
)
def test_vague_docstrings(text: str, vague: int) -> None:
    """First words of a docstring and of its parameters are read."""
    assert bool(SUMMARY.match(text)) + len(PARAMETER.findall(text)) == vague

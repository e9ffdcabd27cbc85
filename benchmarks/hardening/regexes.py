"""
Test of every regular expression of the package with texts made from its own parts.

``python benchmarks/hardening/regexes.py`` lists the patterns whose time grows faster than linearly, each with the text
that shows it. Patterns are globals, or literals in calls; each is tested with the methods that the source calls on it.
An argument such as ``read/nics`` starts the list at that place. The exit code is 1 if a pattern is slow.
"""

import ast
import importlib
import re
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pipette_opt

parser: Any = importlib.import_module("re._parser")

LENGTHS = (20, 1_000, 2_000, 4_000)
"""Characters of an attack; at 20, an exponential pattern already takes too long. Chosen."""

MAX_S = 0.005
"""CPU seconds at the longest length below which growth does not matter. Chosen."""

MAX_RATIO = 3.0
"""Growth per doubling from which a pattern is worse than linear: 2 is linear, 4 quadratic. Chosen."""

METHODS = ("search", "match", "fullmatch", "sub", "findall", "finditer", "split")
_SIGNS = "a0 _-=.,:/\"'[(\\\n\tAZ#%\u00e9"
"""Characters that represent the members of a character class."""


def patterns() -> Iterator[tuple[str, "re.Pattern[str]", str]]:
    """Yield place, pattern and method of each regular expression in the source of the package."""
    root = Path(pipette_opt.__file__).parent
    called = rf"\b([A-Za-z_]+)\.({'|'.join(METHODS)})\("
    calls = {found for file in root.rglob("*.py") for found in re.findall(called, file.read_text(encoding="utf-8"))}
    for file in sorted(root.rglob("*.py")):
        source = file.read_text(encoding="utf-8")
        if "import re\n" not in source:
            continue
        module_name = ".".join(file.relative_to(root.parent).with_suffix("").parts)
        tree = ast.parse(source)
        yield from _written_in_calls(f"{file.relative_to(root)}", tree)
        yield from _global(f"{file.relative_to(root)}", importlib.import_module(module_name), calls)


def _written_in_calls(file: str, tree: ast.AST) -> Iterator[tuple[str, "re.Pattern[str]", str]]:
    """Yield the patterns that are literals in calls such as ``re.search(r"...", text)``."""
    for node in ast.walk(tree):
        if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in METHODS):
            continue
        is_module = isinstance(node.func.value, ast.Name) and node.func.value.id == "re"
        if is_module and isinstance(node.args[0], ast.Constant):
            flags = [
                getattr(re, name.attr)
                for name in ast.walk(node)
                if isinstance(name, ast.Attribute) and name.attr.isupper()
            ]
            yield f"{file}:{node.lineno}", re.compile(node.args[0].value, sum(flags)), node.func.attr


def _global(file: str, module: Any, calls: set[tuple[str, str]]) -> Iterator[tuple[str, "re.Pattern[str]", str]]:
    """Yield the patterns that are globals of a module, or in a global tuple or table."""
    for name, value in vars(module).items():
        held = list(value.values()) if isinstance(value, dict) else [value]
        held = [member for members in held for member in (members if isinstance(members, tuple | list) else [members])]
        used = [method for method in METHODS if (name, method) in calls] or ["match"]
        for pattern in held:
            if isinstance(pattern, re.Pattern) and isinstance(pattern.pattern, str):
                yield from ((f"{file}:{name}", pattern, method) for method in used)


def attacks(pattern: "re.Pattern[str]", most: int) -> Iterator[tuple[str, str, str]]:
    """Yield start, repeated part and end of texts that make a pattern backtrack."""
    starts: dict[str, None] = {"": None}
    parts: dict[str, None] = {}
    _collect(parser.parse(pattern.pattern, pattern.flags & ~re.DEBUG), "", starts, parts)
    for start in list(starts)[:most]:
        for part in list(parts)[: 2 * most]:
            yield from ((start, part, end) for end in ("", "\n\0"))


def _collect(tree: Any, before: str, starts: dict[str, None], parts: dict[str, None]) -> str:
    """Collect texts before each repeat, and texts that it repeats; return a text that the tree matches."""
    text = ""
    for operation, argument in tree:
        name = str(operation)
        if name == "LITERAL":
            text += chr(argument)
            parts.setdefault(chr(argument))
        elif name in ("IN", "ANY", "NOT_LITERAL", "CATEGORY"):
            members = _members(name, argument)
            parts.update(dict.fromkeys(members))
            text += members[0]
        elif name in ("MAX_REPEAT", "MIN_REPEAT", "POSSESSIVE_REPEAT"):
            starts.setdefault(before + text)
            least, _most, body = argument
            inside = _collect(body, before + text, starts, parts)
            if inside:
                parts.setdefault(inside)
            text += inside * max(least, 1)
        elif name == "SUBPATTERN":
            text += _collect(argument[-1], before + text, starts, parts)
        elif name == "BRANCH":
            first, *_others = [_collect(branch, before + text, starts, parts) for branch in argument[1]]
            text += first
        elif name in ("ASSERT", "ASSERT_NOT"):
            _collect(argument[1], before + text, starts, parts)
        elif name == "ATOMIC_GROUP":
            text += _collect(argument, before + text, starts, parts)
    if text:
        parts.setdefault(text)
    return text


def _members(name: str, argument: Any) -> list[str]:
    """Return the characters of ``_SIGNS`` and of the class's own members that a class matches."""
    if name == "ANY":
        return ["a", " ", "0"]
    if name == "NOT_LITERAL":
        return [sign for sign in _SIGNS if sign != chr(argument)]
    items = [(str(kind), value) for kind, value in argument]
    literals = [chr(value) for kind, value in items if kind == "LITERAL"]
    literals += [chr(value[0]) for kind, value in items if kind == "RANGE"]
    signs = dict.fromkeys((*_SIGNS, *literals))
    takes = items[0][0] != "NEGATE"
    return [sign for sign in signs if any(_takes(kind, value, sign) for kind, value in items) == takes] or [" "]


def _takes(kind: str, value: Any, sign: str) -> bool:
    """Return whether an item of a class matches a character."""
    if kind == "LITERAL":
        return chr(value) == sign
    if kind == "RANGE":
        return bool(value[0] <= ord(sign) <= value[1])
    short = {"WORD": r"\w", "DIGIT": r"\d", "SPACE": r"\s"}.get(str(value).rpartition("_")[2], r"(?!)")
    if kind != "CATEGORY":
        return False
    return (re.match(short, sign) is None) == ("_NOT_" in str(value))


def worse_than_linear(pattern: "re.Pattern[str]", method: str, most: int = 40) -> str | None:
    """Return the first text on which a pattern is slower than linear, with its times; ``None`` if there is none."""
    return next((found for attack in attacks(pattern, most) if (found := _growth(pattern, method, *attack))), None)


def _growth(pattern: "re.Pattern[str]", method: str, start: str, part: str, end: str) -> str | None:
    """Return the times of an attack as text if they grow faster than linearly, otherwise ``None``."""
    if _seconds(pattern, method, start, part, end, LENGTHS[0]) > MAX_S:
        return f"{start!r} + {part!r} * n + {end!r}: exponential"
    if _seconds(pattern, method, start, part, end, LENGTHS[1]) < MAX_S / 20:
        return None
    times = [min(_seconds(pattern, method, start, part, end, length) for _ in range(3)) for length in LENGTHS[1:]]
    if times[-1] < MAX_S or times[-1] / times[-2] < MAX_RATIO:
        return None
    return f"{start!r} + {part!r} * n + {end!r}: {', '.join(f'{1000 * seconds:.1f}' for seconds in times)} ms"


def _seconds(pattern: "re.Pattern[str]", method: str, start: str, part: str, end: str, length: int) -> float:
    """Return the CPU seconds of a method on an attack of this length."""
    text = start + part * (length // len(part) + 1) + end
    call = getattr(pattern, method)
    begin = time.process_time()
    if method == "sub":
        call("", text)
    elif method == "finditer":
        list(call(text))
    else:
        call(text)
    return time.process_time() - begin


def main() -> int:
    """Print the patterns that are worse than linear; return the exit code."""
    found = 0
    for place, pattern, method in patterns():
        if place < "".join(sys.argv[1:2]):
            continue
        attack = worse_than_linear(pattern, method)
        if attack is not None:
            found += 1
            print(f"{place}: {method} {pattern.pattern[:80]!r}\n    {attack}", flush=True)
    print(f"{found} patterns are worse than linear.")
    return 1 if found else 0


if __name__ == "__main__":
    raise SystemExit(main())

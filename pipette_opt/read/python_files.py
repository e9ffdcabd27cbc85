"""Literal values of configurations in Python, which is parsed and never run."""

import ast
from collections.abc import Mapping
from typing import Any

from pipette_opt.base.errors import InputError

CALL = "()"
"""Key of the dotted name of the function in the values of a call."""

MAX_DEPTH = 20
"""Most functions that call each other and are followed. Chosen."""


def configurations(text: str, where: str) -> dict[str, dict[str, Any]]:
    """
    Return the calls that a program's functions without arguments return, by the function's name.

    A call is a map: its function's name under ``()``, positional arguments under ``0``, ``1``, ..., and its keywords.
    Calls of functions of the file are followed, and so are changes of what they return (``config.training.steps = 1``).
    Arithmetic of numbers is done; the value of any other expression is left out.

    Raises
    ------
    InputError
        If the text is no valid Python.
    """
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise InputError(where, f"is not valid Python: {error}.") from None
    functions = {node.name: node for node in tree.body if isinstance(node, ast.FunctionDef) and not node.args.args}
    reader = _Reader(functions)
    found = {name: reader.returned(name, 0) for name in functions}
    return {name: value for name, value in found.items() if isinstance(value, dict)}


def imported_modules(text: str) -> list[tuple[str, str]]:
    """Return the names that a program imports from modules, each as module and name."""
    nodes = [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.ImportFrom)]
    return [(node.module or "", alias.name) for node in nodes for alias in node.names]


class _Reader:
    def __init__(self, functions: Mapping[str, ast.FunctionDef]) -> None:
        self.functions = functions

    def returned(self, name: str, depth: int) -> Any:
        """Return the value that a function returns; ``None`` if it cannot be told without running it."""
        names: dict[str, Any] = {}
        for statement in self.functions[name].body:
            if isinstance(statement, ast.Assign):
                value = self.value(statement.value, names, depth)
                for target in statement.targets:
                    _assign(target, value, names)
            elif isinstance(statement, ast.Return) and statement.value is not None:
                return self.value(statement.value, names, depth)
        return None

    def value(self, node: ast.expr, names: Mapping[str, Any], depth: int) -> Any:
        if isinstance(node, ast.Constant):
            return node.value
        if isinstance(node, ast.Name):
            return names.get(node.id)
        if isinstance(node, ast.List | ast.Tuple):
            return [self.value(each, names, depth) for each in node.elts]
        if isinstance(node, ast.UnaryOp | ast.BinOp):
            return self._number(node, names, depth)
        if not isinstance(node, ast.Call):
            return None
        function = ast.unparse(node.func)
        if function in self.functions and depth < MAX_DEPTH:
            return self.returned(function, depth + 1)
        found: dict[str, Any] = {CALL: function}
        found |= {str(place): self.value(each, names, depth) for place, each in enumerate(node.args)}
        return found | {each.arg: self.value(each.value, names, depth) for each in node.keywords if each.arg}

    def _number(self, node: ast.UnaryOp | ast.BinOp, names: Mapping[str, Any], depth: int) -> Any:
        if isinstance(node, ast.UnaryOp):
            value = self.value(node.operand, names, depth)
            return -value if isinstance(node.op, ast.USub) and isinstance(value, int | float) else None
        left, right = self.value(node.left, names, depth), self.value(node.right, names, depth)
        if not isinstance(left, int | float) or not isinstance(right, int | float):
            return None
        if isinstance(node.op, ast.Mult):
            return left * right
        if isinstance(node.op, ast.Add):
            return left + right
        return left // right if isinstance(node.op, ast.FloorDiv) and right else None


def _assign(target: ast.expr, value: Any, names: dict[str, Any]) -> None:
    """Keep the value of a name, or of an attribute of a call that a name holds."""
    path: list[str] = []
    while isinstance(target, ast.Attribute):
        path.insert(0, target.attr)
        target = target.value
    if not isinstance(target, ast.Name):
        return
    if not path:
        names[target.id] = value
        return
    place = names.get(target.id)
    for name in path[:-1]:
        if not isinstance(place, dict):
            return
        place = place.setdefault(name, {})
    if isinstance(place, dict):
        place[path[-1]] = value

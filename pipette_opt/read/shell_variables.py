"""Variables of a shell script, as far as the script itself sets them."""

import ast
import operator
import re
from collections.abc import Mapping, Sequence

_VARIABLE = re.compile(r"\$(?:(\w+)|\{(\w+)(?::?[-=]([^}$]*))?\})")
_ARITHMETIC = re.compile(r"\$\(\(([^$]*?)\)\)")
_OPERATORS = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.floordiv,
    ast.Mod: operator.mod,
}


def variables(words: Sequence[str]) -> dict[str, str | None]:
    """Values of the variables that the words set; ``None`` where they are set to several."""
    values: dict[str, str | None] = {}
    for word, following in zip(words, [*words[1:], ""], strict=False):
        if not re.fullmatch(r"[A-Za-z_]\w*=", word):
            continue
        value = replaced(following, values)
        name = word[:-1]
        simple = not value.startswith(("(", "--", "$")) and not value.endswith("=")
        if name in values and values[name] != value:
            values[name] = None
        else:
            values[name] = value if simple else None
    return values


def replaced(word: str, values: Mapping[str, str | None]) -> str:
    """A word with the variables and the arithmetic that are known; a default in the word itself is known, too."""

    def value_of(found: re.Match[str]) -> str:
        name = found[1] or found[2]
        value = values.get(name, found[3] if name not in values else None)
        return found[0] if value is None else value

    def result_of(found: re.Match[str]) -> str:
        number = _number(re.sub(r"[A-Za-z_]\w*", lambda name: values.get(name[0]) or name[0], found[1]))
        return found[0] if number is None else str(number)

    return _ARITHMETIC.sub(result_of, _VARIABLE.sub(value_of, word))


def _number(text: str) -> int | None:
    """Value of sums, products and quotients of whole numbers; ``None`` for anything else."""
    try:
        return _value_of(ast.parse(text.strip(), mode="eval").body)
    except (SyntaxError, KeyError, ValueError, ZeroDivisionError):
        return None


def _value_of(node: ast.expr) -> int:
    if isinstance(node, ast.BinOp):
        value: int = _OPERATORS[type(node.op)](_value_of(node.left), _value_of(node.right))
        return value
    if isinstance(node, ast.Constant) and isinstance(node.value, int):
        return node.value
    raise ValueError("no whole number")

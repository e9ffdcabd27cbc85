"""Parser and writer of Megatron-LM's layer lists, such as ``([0]*3+[1])*4`` (``megatron/training/arguments.py``)."""

import ast

from pipette_opt.base.errors import InputError, shown
from pipette_opt.specs.model_checks import MAX_LAYERS


def layer_frequency(text: str, option: str, where: str) -> int | tuple[int, ...]:
    """
    Return the value of an option that selects layers: a whole number, or a list of 0 and 1.

    A list consists of ``[...]``, ``+``, ``* N`` and parentheses, evaluated as Megatron does.
    """
    try:
        value = _value(ast.parse(text.strip(), mode="eval").body)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        raise InputError(
            where, f"{option} must be a whole number or a list such as ([0]*3+[1])*4, got {shown(text)}."
        ) from None
    return tuple(value) if isinstance(value, list) else value


def layer_list(value: int | tuple[int, ...]) -> str:
    """Return a layer selection as an option's text: runs of equal numbers, ``[0]*3+[1]*9``, ``([0]*1+[1]*1)*24``."""
    if isinstance(value, int):
        return str(value)
    size = next(n for n in range(1, len(value) + 1) if value == value[:n] * (len(value) // n))
    if 1 < size < len(value):
        return f"({layer_list(value[:size])})*{len(value) // size}"
    runs: list[list[int]] = []
    for number in value:
        if runs and runs[-1][0] == number:
            runs[-1][1] += 1
        else:
            runs.append([number, 1])
    return "+".join(f"[{number}]*{count}" for number, count in runs)


def _value(node: ast.expr) -> int | list[int]:
    """Return the value of an expression of whole numbers, lists of them, sums of lists and multiples of lists."""
    if isinstance(node, ast.Constant) and type(node.value) is int:
        return node.value
    if isinstance(node, ast.List):
        items = [_value(item) for item in node.elts]
        return [item for item in items if isinstance(item, int)] if all(isinstance(i, int) for i in items) else _wrong()
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add | ast.Mult):
        left, right = _value(node.left), _value(node.right)
        if isinstance(node.op, ast.Add):
            return left + right if isinstance(left, list) and isinstance(right, list) else _wrong()
        if isinstance(left, list) and isinstance(right, int) and len(left) * right <= MAX_LAYERS:
            return left * right
    return _wrong()


def _wrong() -> int:
    raise ValueError

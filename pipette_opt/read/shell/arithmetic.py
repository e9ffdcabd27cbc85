"""Arithmetic of bash: 64-bit whole numbers, assignments, and variables whose values are expressions themselves."""

import re
from collections.abc import Callable, Mapping
from typing import Protocol

from pipette_opt.read.shell.limits import Budget, RefusalError
from pipette_opt.read.shell.unknowns import is_marker

_TOKEN = re.compile(
    r"\s*(?:(?P<number>[0-9]+#[0-9A-Za-z@_]+|0[xX][0-9A-Fa-f]+|[0-9]+)(?![0-9A-Za-z_.])"
    r"|(?P<name>[A-Za-z_]\w*)"
    r"|(?P<unknown>[\U000f0000-\U0010ffff])"
    r"|(?P<sign><<=|>>=|\*\*|\+\+|--|<<|>>|<=|>=|==|!=|&&|\|\||[-+*/%&|^]=|[-+*/%<>=!~&^|?:,()\[\]]))",
    re.ASCII,
)
_DIGITS = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ@_"
_LEVELS: Mapping[str, int] = {
    "||": 1, "&&": 2, "|": 3, "^": 4, "&": 5, "==": 6, "!=": 6, "<": 7, ">": 7, "<=": 7, ">=": 7,
    "<<": 8, ">>": 8, "+": 9, "-": 9, "*": 10, "/": 10, "%": 10, "**": 11,
}  # fmt: skip
_ASSIGNING = ("=", "+=", "-=", "*=", "/=", "%=", "<<=", ">>=", "&=", "^=", "|=")
_MAX_NESTED = 25
"""Largest number of nested brackets and variables of an expression; each takes several stack frames. Chosen."""


class Variables(Protocol):
    """Variables of a shell, as arithmetic uses them."""

    budget: Budget

    def number_text(self, name: str, subscript: str | None) -> str:
        """Return the value of a variable as text; empty if unset."""

    def set_number(self, name: str, subscript: str | None, value: str) -> None:
        """Set a variable, or an element of an array."""

    def unknown_number(self, text: str) -> str:
        """Return a marker: a character that stands for a number known only when the script runs."""


def evaluate_arithmetic(text: str, shell: Variables, depth: int = 0) -> int | None:
    """
    Return the value of an arithmetic expression; ``None`` if it depends on a value known only when the script runs.

    Raises
    ------
    RefusalError
        If bash would report an error, such as for a division by zero, ``1.5`` or ``8b``.
    """
    if text.strip().isdecimal() and text.isascii() and len(text) < 18 and not text.strip().startswith("0"):
        return int(text)
    return _Expression(text, shell, depth).value()


class _Expression:
    """
    Parser that evaluates an expression while reading it.

    ``skipped`` counts the enclosing branches whose result is not used, such as ``b`` in ``0 && b``.
    """

    def __init__(self, text: str, shell: Variables, depth: int) -> None:
        if depth > _MAX_NESTED:
            raise RefusalError(f"has variables whose values name each other more than {_MAX_NESTED} deep.")
        self.text, self.shell, self.depth = text, shell, depth
        self.tokens = _tokens(text)
        shell.budget.step(len(self.tokens) // 4)
        self.index = 0
        self.skipped = 0
        self.nested = depth

    def value(self) -> int | None:
        if not self.tokens:
            return 0
        result = self._comma()
        if self.index < len(self.tokens):
            self._fail()
        return result

    def _fail(self, problem: str = "is no arithmetic that bash can evaluate") -> None:
        raise RefusalError(f"has $(({_short(self.text)})), which {problem}.")

    def _peek(self) -> str:
        return self.tokens[self.index][1] if self.index < len(self.tokens) else ""

    def _take(self, sign: str) -> bool:
        if self._peek() == sign and self.tokens[self.index][0] == "sign":
            self.index += 1
            return True
        return False

    def _enter(self) -> None:
        self.nested += 1
        if self.nested > _MAX_NESTED:
            self._fail(f"has more than {_MAX_NESTED} brackets inside each other")

    def _comma(self) -> int | None:
        result = self._assignment()
        while self._take(","):
            result = self._assignment()
        return result

    def _assignment(self) -> int | None:
        begin = self.index
        target = self._target()
        sign = self._peek()
        if target is None or sign not in _ASSIGNING or self.tokens[self.index][0] != "sign":
            self.index = begin
            return self._condition()
        self.index += 1
        self._enter()
        right = self._assignment()
        self.nested -= 1
        if sign != "=":
            right = self._combine(sign[:-1], self._read(*target), right)
        self._write(target, right)
        return right

    def _target(self) -> tuple[str, str | None] | None:
        """Read a variable's name and subscript; ``None`` if the next token is no name."""
        if self.index >= len(self.tokens) or self.tokens[self.index][0] != "name":
            return None
        name = self.tokens[self.index][1]
        self.index += 1
        if not self._take("["):
            return name, None
        self._enter()
        subscript = self._comma()
        self.nested -= 1
        if not self._take("]"):
            self._fail()
        return name, "" if subscript is None else str(subscript)

    def _condition(self) -> int | None:
        condition = self._binary(1)
        if not self._take("?"):
            return condition
        self._enter()
        first = self._branch(condition is None or condition != 0, self._comma)
        if not self._take(":"):
            self._fail()
        second = self._branch(condition is None or condition == 0, self._condition)
        self.nested -= 1
        if condition is None:
            return first if first == second else None
        return first if condition else second

    def _branch(self, used: bool, parse: Callable[[], int | None]) -> int | None:
        self.skipped += not used
        result = parse()
        self.skipped -= not used
        return result

    def _binary(self, level: int) -> int | None:
        left = self._unary()
        while True:
            sign = self._peek()
            if _LEVELS.get(sign, 0) < level or self.tokens[self.index][0] != "sign":
                return left
            self.index += 1
            decided = left is not None and ((sign == "&&" and left == 0) or (sign == "||" and left != 0))
            right_level = _LEVELS[sign] + (sign != "**")
            self._enter()
            right = self._branch(not decided, lambda wanted=right_level: self._binary(wanted))  # type: ignore[misc]
            self.nested -= 1
            left = self._combine(sign, left, right)

    def _unary(self) -> int | None:
        signs: list[str] = []
        while self.index < len(self.tokens) and self.tokens[self.index][0] == "sign":
            sign = self._peek()
            if sign in ("+", "-", "!", "~"):
                signs.append(sign)
            elif sign in ("++", "--"):
                following = self.tokens[self.index + 1 : self.index + 2]
                if following and following[0][0] == "name":
                    self.index += 1
                    result = self._step(sign, before=True)
                    return _with_signs(signs, result)
                signs += [sign[0], sign[0]]
            else:
                break
            self.index += 1
        return _with_signs(signs, self._operand())

    def _operand(self) -> int | None:
        if self.index >= len(self.tokens):
            self._fail()
        kind, text = self.tokens[self.index]
        if kind == "unknown":
            self.index += 1
            return None
        if kind == "number":
            self.index += 1
            return self._number(text)
        if kind == "name":
            following = self.tokens[self.index + 1 : self.index + 2]
            if following and following[0][1] in ("++", "--"):
                return self._step(following[0][1], before=False)
            target = self._target()
            assert target is not None
            if self._peek() in ("++", "--"):
                self._fail("changes an element of an array, which cannot be evaluated here")
            return self._read(*target)
        if not self._take("("):
            self._fail()
        self._enter()
        result = self._comma()
        self.nested -= 1
        if not self._take(")"):
            self._fail()
        return result

    def _number(self, text: str) -> int:
        base, sign, digits = text.partition("#")
        if sign:
            radix = int(base) if len(base) < 3 else 0
            if not 2 <= radix <= 64:
                self._fail("has a base that is not from 2 to 64")
            digits = digits.lower() if radix <= 36 else digits
        elif text[:2] in ("0x", "0X"):
            radix, digits = 16, text[2:].lower()
        else:
            radix, digits = (8, text) if text.startswith("0") else (10, text)
        if len(digits) > 4000:
            self._fail("has a number of thousands of digits")
        if radix == 10:
            return _wrapped(int(digits))
        result = 0
        for digit in digits:
            worth = _DIGITS.index(digit)
            if worth >= radix:
                self._fail(f"has a digit {digit!r} that base {radix} does not have")
            result = (result * radix + worth) & 0xFFFFFFFFFFFFFFFF
        return _wrapped(result)

    def _step(self, sign: str, before: bool) -> int | None:
        """Return the value of ``x++``, ``++x``, ``x--`` or ``--x``, and change the variable."""
        if before:
            target = self._target()
            assert target is not None
        else:
            target = (self.tokens[self.index][1], None)
            self.index += 2
        old = self._read(*target)
        new = self._combine(sign[0], old, 1)
        self._write(target, new)
        return new if before else old

    def _read(self, name: str, subscript: str | None) -> int | None:
        if self.skipped:
            return 0
        if subscript == "":
            return None
        text = self.shell.number_text(name, subscript)
        return evaluate_arithmetic(text, self.shell, self.nested + 1) if text else 0

    def _write(self, target: tuple[str, str | None], value: int | None) -> None:
        if self.skipped:
            return
        if target[1] == "":
            self._fail("assigns to an unknown element")
        text = self.shell.unknown_number(self.text) if value is None else str(value)
        self.shell.set_number(*target, text)

    def _combine(self, sign: str, left: int | None, right: int | None) -> int | None:
        if self.skipped:
            return 0
        if sign == "&&":
            return _and(left, right)
        if sign == "||":
            return _or(left, right)
        if left is None or right is None:
            return None
        if sign in ("/", "%"):
            if right == 0:
                self._fail("divides by zero")
            quotient = abs(left) // abs(right)
            quotient = quotient if (left < 0) == (right < 0) else -quotient
            return _wrapped(quotient if sign == "/" else left - quotient * right)
        if sign == "**":
            if right < 0:
                self._fail("has a negative exponent")
            return _wrapped(pow(left, right, 1 << 64))
        return _wrapped(_OPERATORS[sign](left, right))


_OPERATORS: Mapping[str, Callable[[int, int], int]] = {
    "+": lambda a, b: a + b,
    "-": lambda a, b: a - b,
    "*": lambda a, b: a * b,
    "<<": lambda a, b: a << (b & 63),
    ">>": lambda a, b: a >> (b & 63),
    "<": lambda a, b: int(a < b),
    ">": lambda a, b: int(a > b),
    "<=": lambda a, b: int(a <= b),
    ">=": lambda a, b: int(a >= b),
    "==": lambda a, b: int(a == b),
    "!=": lambda a, b: int(a != b),
    "&": lambda a, b: a & b,
    "|": lambda a, b: a | b,
    "^": lambda a, b: a ^ b,
}


def _tokens(text: str) -> list[tuple[str, str]]:
    found: list[tuple[str, str]] = []
    index = 0
    text = text.rstrip()
    while index < len(text):
        match = _TOKEN.match(text, index)
        if match is None:
            raise RefusalError(f"has $(({_short(text)})), which is no arithmetic that bash can evaluate.")
        kind = str(match.lastgroup)
        found.append((kind, match[kind]))
        index = match.end()
    return found


def _with_signs(signs: list[str], value: int | None) -> int | None:
    for sign in reversed(signs):
        if value is not None:
            value = {"+": value, "-": -value, "!": int(not value), "~": ~value}[sign]
    return None if value is None else _wrapped(value)


def _and(left: int | None, right: int | None) -> int | None:
    if left == 0 or right == 0:
        return 0
    return None if left is None or right is None else 1


def _or(left: int | None, right: int | None) -> int | None:
    if left not in (None, 0) or right not in (None, 0):
        return 1
    return None if left is None or right is None else 0


def _wrapped(value: int) -> int:
    return (value + (1 << 63)) % (1 << 64) - (1 << 63)


def _short(text: str) -> str:
    shown = "".join("?" if is_marker(character) else character for character in " ".join(text[:200].split()))
    return shown if len(shown) <= 60 else f"{shown[:57]}..."

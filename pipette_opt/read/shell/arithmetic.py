"""Arithmetic of bash: 64-bit whole numbers, and variables whose values are expressions themselves."""

import re
from collections.abc import Callable, Mapping
from typing import NoReturn

from pipette_opt.read.shell.limits import RefusalError

_TOKEN = re.compile(
    r"\s*(?:(?P<number>[0-9]+#[0-9A-Za-z]+|0[xX][0-9A-Fa-f]+|[0-9]+)(?![0-9A-Za-z_.])"
    r"|(?P<name>[A-Za-z_]\w*)"
    r"|(?P<unknown>[\U000f0000-\U0010ffff])"
    r"|(?P<sign>\*\*|<<|>>|<=|>=|==|!=|&&|\|\||[-+*/%<>!~&^|?:()]))",
    re.ASCII,
)
_CHANGE = re.compile(
    r"(?<!\w)([A-Za-z_]\w*)\s*+(?:\[[^\]]*\]\s*+)?(?:(?:<<|>>|[-+*/%&^|])?=(?!=)|\+\+|--)|(?:\+\+|--)\s*([A-Za-z_]\w*)",
    re.ASCII,
)
_LEVELS: Mapping[str, int] = {
    "||": 1, "&&": 2, "|": 3, "^": 4, "&": 5, "==": 6, "!=": 6, "<": 7, ">": 7, "<=": 7, ">=": 7,
    "<<": 8, ">>": 8, "+": 9, "-": 9, "*": 10, "/": 10, "%": 10, "**": 11,
}  # fmt: skip
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
_SIGNS: Mapping[str, Callable[[int], int]] = {
    "+": int,
    "-": lambda a: -a,
    "!": lambda a: int(a == 0),
    "~": lambda a: ~a,
}

Number = Callable[[], int]
"""Function that returns the value of a part of an expression; it is called only if bash would evaluate the part."""


class UnknownNumberError(Exception):
    """An expression depends on a value that is known only when the script runs."""


def changed_names(text: str) -> list[str]:
    """Return the variables that an expression such as ``x += 2`` or ``x++`` changes."""
    return [found[1] or found[2] for found in _CHANGE.finditer(text)]


def evaluate_arithmetic(text: str, value_of: Callable[[str], str]) -> int:
    """
    Return the value of an arithmetic expression without assignments and commas.

    Parameters
    ----------
    value_of
        Function that returns the value of a variable as text; empty if unset.

    Raises
    ------
    RefusalError
        If bash would report an error, such as for a division by zero, ``1.5`` or ``8b``.
    UnknownNumberError
        If the value is known only when the script runs.
    """
    return _Expression(text, value_of).value()


class _Expression:
    """Parser of an expression: each part becomes a function, so that unused branches are not evaluated."""

    def __init__(self, text: str, value_of: Callable[[str], str]) -> None:
        self.text, self.value_of, self.index = text, value_of, 0
        self.tokens: list[tuple[str, str]] = []
        place, text = 0, text.rstrip()
        while place < len(text):
            found = _TOKEN.match(text, place)
            if found is None:
                self._fail()
            self.tokens.append((str(found.lastgroup), found[str(found.lastgroup)]))
            place = found.end()

    def value(self) -> int:
        """Return the value; 0 for an empty expression."""
        if not self.tokens:
            return 0
        result = self._condition()
        if self.index < len(self.tokens):
            self._fail()
        return result()

    def _fail(self, problem: str = "is no arithmetic that is evaluated") -> NoReturn:
        shown = re.sub("[\U000f0000-\U0010ffff]", "?", " ".join(self.text[:60].split()))
        raise RefusalError(f"has $(({shown})), which {problem}.")

    def _peek(self) -> str:
        return self.tokens[self.index][1] if self.index < len(self.tokens) else ""

    def _take(self, *signs: str) -> str:
        sign = self._peek()
        if sign not in signs:
            return ""
        self.index += 1
        return sign

    def _condition(self) -> Number:
        condition = self._binary(1)
        if not self._take("?"):
            return condition
        first = self._condition()
        if not self._take(":"):
            self._fail()
        second = self._condition()
        return lambda: first() if condition() else second()

    def _binary(self, level: int) -> Number:
        left = self._unary()
        while _LEVELS.get(sign := self._peek(), 0) >= level:
            self.index += 1
            right = self._binary(_LEVELS[sign] + (sign != "**"))
            left = self._combined(sign, left, right)
        return left

    def _combined(self, sign: str, left: Number, right: Number) -> Number:
        if sign == "&&":
            return lambda: int(bool(left() and right()))
        if sign == "||":
            return lambda: int(bool(left() or right()))
        if sign in ("/", "%"):
            return lambda: self._divided(sign, left(), right())
        if sign == "**":
            return lambda: self._power(left(), right())
        return lambda: _wrapped(_OPERATORS[sign](left(), right()))

    def _divided(self, sign: str, left: int, right: int) -> int:
        if right == 0:
            self._fail("divides by zero")
        quotient = abs(left) // abs(right)
        quotient = quotient if (left < 0) == (right < 0) else -quotient
        return _wrapped(quotient if sign == "/" else left - quotient * right)

    def _power(self, left: int, right: int) -> int:
        if right < 0:
            self._fail("has a negative exponent")
        return _wrapped(pow(left, right, 1 << 64))

    def _unary(self) -> Number:
        sign = self._take("+", "-", "!", "~")
        if not sign:
            return self._operand()
        inner = self._unary()
        return lambda: _wrapped(_SIGNS[sign](inner()))

    def _operand(self) -> Number:
        if self.index >= len(self.tokens):
            self._fail()
        kind, text = self.tokens[self.index]
        self.index += 1
        if kind == "unknown":
            return _unknown
        if kind == "number":
            number = self._number(text)
            return lambda: number
        if kind == "name":
            return lambda: evaluate_arithmetic(self.value_of(text), self.value_of)
        if text != "(":
            self._fail()
        result = self._condition()
        if not self._take(")"):
            self._fail()
        return result

    def _number(self, text: str) -> int:
        base, sign, digits = text.partition("#")
        if not sign:
            base, digits = ("16", text[2:]) if text[:2] in ("0x", "0X") else ("8" if text[0] == "0" else "10", text)
        try:
            return _wrapped(int(digits, int(base[:4])))
        except ValueError:
            self._fail(f"has the number {text[:40]}, which bash cannot read")


def _unknown() -> int:
    raise UnknownNumberError


def _wrapped(value: int) -> int:
    return (value + (1 << 63)) % (1 << 64) - (1 << 63)

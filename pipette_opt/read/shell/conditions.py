"""Conditions: ``[ ... ]`` with expanded words, and ``[[ ... ]]``."""

import re
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TypeVar

from pipette_opt.read.shell.expansion import Expander
from pipette_opt.read.shell.limits import RefusalError
from pipette_opt.read.shell.syntax import Word
from pipette_opt.read.shell.unknowns import all_known, is_known, may_split

_NUMBERS: Mapping[str, Callable[[int, int], bool]] = {
    "-eq": lambda a, b: a == b,
    "-ne": lambda a, b: a != b,
    "-gt": lambda a, b: a > b,
    "-ge": lambda a, b: a >= b,
    "-lt": lambda a, b: a < b,
    "-le": lambda a, b: a <= b,
}
_FILES = ("-nt", "-ot", "-ef")
_BINARY = ("=", "==", "!=", "<", ">", *_NUMBERS, *_FILES)
_UNARY = tuple(f"-{letter}" for letter in "abcdefghkprstuwxGLNOSnzvoR")

Token = TypeVar("Token", str, Word | str)
Holds = bool | None
"""Truth of a condition; ``None`` if unknown."""


class _WrongTestError(Exception):
    """Error in a test, for which ``[`` returns status 2."""


def test_status(shell: Expander, words: Sequence[str]) -> int | None:
    """Return the exit status of ``[`` with these arguments; ``None`` if unknown."""
    if any(map(may_split, words)):
        return None
    shell.budget.work(len(words) ** 2)
    try:
        holds = _single(shell, words) if len(words) <= 4 else _joined(words, "-o", "-a", partial(_single, shell))
    except _WrongTestError:
        return 2
    return None if holds is None else int(not holds)


def condition_holds(shell: Expander, tokens: Sequence[Word | str]) -> Holds:
    """Return whether ``[[ tokens ]]`` holds; ``None`` if unknown."""
    shell.budget.work(len(tokens) ** 2)
    return _joined(tokens, "||", "&&", partial(_condition, shell))


def _joined(tokens: Sequence[Token], either: str, both: str, single: Callable[[Sequence[Token]], Holds]) -> Holds:
    """Return whether tests joined by ``either`` and ``both`` hold; the later ones count only if bash reads them."""
    for sign in (either, both):
        parts: list[list[Token]] = [[]]
        depth = 0
        for token in tokens:
            depth += (token == "(") - (token == ")")
            if token == sign and not depth:
                parts.append([])
            else:
                parts[-1].append(token)
        found: list[Holds] = []
        for part in parts if len(parts) > 1 else ():
            found.append(_joined(part, either, both, single))
            if found[-1] == (sign == either):
                return found[-1]
        if found:
            return None if None in found else sign == both
    if tokens and tokens[0] == "!":
        return _negated(_joined(tokens[1:], either, both, single))
    if len(tokens) > 2 and tokens[0] == "(" and tokens[-1] == ")":
        return _joined(tokens[1:-1], either, both, single)
    return single(tokens)


def _single(shell: Expander, words: Sequence[str]) -> Holds:
    """Return whether a test of ``[`` holds, by the rules of POSIX, which depend on the number of words."""
    match words:
        case []:
            return False
        case [word]:
            return _not_empty(shell, word)
        case [left, operator, right] if operator in _BINARY:
            return _compared(left, operator, right)
        case ["!", *rest] if len(rest) < 4:
            return _negated(_single(shell, rest))
        case [operator, word] if operator in _UNARY:
            return _unary(shell, operator, word)
        case [left, ("-a" | "-o") as operator, right]:
            return _joined([left, operator, right], "-o", "-a", partial(_single, shell))
        case ["(", *_] | [_, _, _, _, *_]:
            return None
    raise _WrongTestError


def _condition(shell: Expander, tokens: Sequence[Word | str]) -> Holds:
    """Return whether a test in ``[[ ]]`` without signs that join tests holds."""
    sources = [token if isinstance(token, str) else token.source for token in tokens]
    words = [token for token in tokens if isinstance(token, Word)]
    operator = sources[-2] if len(tokens) > 1 else "-n"
    if len(tokens) - len(words) - (operator in ("<", ">")) or len(tokens) not in (1, 2, 3):
        raise RefusalError("has a condition in [[ ]] that cannot be read.")
    if len(tokens) < 3:
        return _unary(shell, operator, shell.text(words[-1]))
    left, right = shell.text(words[0]), words[-1]
    if operator == "=~":
        shell.forget(["BASH_REMATCH"], f"line {shell.line} sets it by a regular expression")
        return None
    if operator in _NUMBERS:
        numbers = shell.arithmetic(left), shell.arithmetic(shell.text(right))
        return None if numbers[0] is None or numbers[1] is None else _NUMBERS[operator](numbers[0], numbers[1])
    if operator not in ("=", "==", "!="):
        return _compared(left, operator, shell.text(right))
    holds = shell.matches(left, right)
    return _negated(holds) if operator == "!=" else holds


def _negated(holds: Holds) -> Holds:
    return holds if holds is None else not holds


def _not_empty(shell: Expander, word: str) -> Holds:
    return None if word and shell.unknowns.may_be_empty(word) else word != ""


def _unary(shell: Expander, operator: str, word: str) -> Holds:
    if operator in ("-n", "-z"):
        holds = _not_empty(shell, word)
        return holds if operator == "-n" else _negated(holds)
    if operator == "-v" and re.fullmatch(r"[A-Za-z_]\w*", word) and not shell.state.unread:
        value = shell.value(word)
        return None if value is not None and not is_known(value) else value is not None
    return False if word == "" and operator not in ("-t", "-v", "-o") else None


def _compared(left: str, operator: str, right: str) -> Holds:
    if operator in _FILES or not all_known((left, right)):
        return None
    if operator in _NUMBERS:
        return _NUMBERS[operator](_whole(left), _whole(right))
    if operator in ("<", ">"):
        return left < right if operator == "<" else left > right
    return (left == right) == (operator != "!=")


def _whole(text: str) -> int:
    """Return a whole number as ``[`` reads it: decimal, within 64 bits."""
    if not re.fullmatch(r"\s*[+-]?[0-9]{1,40}\s*", text) or not -(1 << 63) <= int(text) < 1 << 63:
        raise _WrongTestError
    return int(text)

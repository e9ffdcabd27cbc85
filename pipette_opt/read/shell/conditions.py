"""Conditions of bash: ``[ ... ]`` with expanded words, ``[[ ... ]]`` with words as written."""

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import NoReturn

from pipette_opt.read.shell.limits import RefusalError
from pipette_opt.read.shell.scanner import split_words
from pipette_opt.read.shell.unknowns import all_known, is_known, may_split
from pipette_opt.read.shell.values import Values

_FILE_TESTS = tuple(f"-{letter}" for letter in "abcdefghkprstuwxGLNOS")
_UNARY = (*_FILE_TESTS, "-n", "-z", "-v", "-o", "-R")
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

Holds = bool | None
"""Truth of a condition; ``None`` if unknown."""


class _WrongTestError(Exception):
    """Error in a test, for which ``[`` returns status 2."""


def test_status(shell: Values, words: Sequence[str]) -> int | None:
    """Return the exit status of ``[`` with these arguments; ``None`` if unknown."""
    if any(map(may_split, words)):
        return None
    try:
        holds = _test(shell, list(words))
    except _WrongTestError:
        return 2
    return None if holds is None else int(not holds)


def _test(shell: Values, words: list[str]) -> Holds:
    """Return whether a test holds, by the rules of POSIX, which depend on the number of words."""
    negated = False
    while len(words) in (2, 3, 4) and words[0] == "!" and not (len(words) == 3 and words[1] in (*_BINARY, "-a", "-o")):
        negated, words = not negated, words[1:]
    return _negated(_short_test(shell, words), negated)


def _short_test(shell: Values, words: list[str]) -> Holds:
    match words:
        case []:
            return False
        case [word]:
            return _not_empty(shell, word)
        case [operator, word]:
            if operator in _UNARY:
                return _unary(shell, operator, word)
            raise _WrongTestError
        case [left, operator, right] if operator in _BINARY:
            return _binary(left, operator, right)
        case [left, ("-a" | "-o") as operator, right]:
            return _joined(operator == "-o", [_not_empty(shell, left), _not_empty(shell, right)])
        case ["(", word, ")"]:
            return _not_empty(shell, word)
        case [_, _, _]:
            raise _WrongTestError
        case ["(", first, second, ")"]:
            return _short_test(shell, [first, second])
    return _LongTest(shell, words).value()


class _Tests(ABC):
    """Parser and evaluator of joined tests; ``skipped`` counts enclosing parts whose result is not used."""

    either: str
    both: str
    brackets_first = True

    def __init__(self, shell: Values, words: list[str]) -> None:
        self.shell, self.words, self.index, self.skipped = shell, words, 0, 0

    @abstractmethod
    def _fail(self) -> NoReturn:
        """Raise the error for words that are no test."""

    @abstractmethod
    def _primary(self, word: str) -> Holds:
        """Read a test without negation and brackets, of which ``word`` is the first word."""

    def value(self) -> Holds:
        result = self._either()
        if self.index < len(self.words):
            self._fail()
        return result

    def _peek(self, ahead: int = 0) -> str | None:
        place = self.index + ahead
        return self.words[place] if place < len(self.words) else None

    def _either(self) -> Holds:
        return self._chain(self.either, True, lambda: self._chain(self.both, False, self._term))

    def _chain(self, sign: str, decides: bool, parse: Callable[[], Holds]) -> Holds:
        found = [parse()]
        while self._peek() == sign:
            self.index += 1
            skipped = decides in found
            self.skipped += skipped
            result = parse()
            self.skipped -= skipped
            if not skipped:
                found.append(result)
        return _joined(decides, found)

    def _term(self) -> Holds:
        negated = False
        while self._peek() == "!" and self._peek(1) is not None:
            negated = not negated
            self.index += 1
        word = self._peek()
        if word is None:
            self._fail()
        is_left = not self.brackets_first and self._peek(1) in _BINARY and self._peek(2) is not None
        if word != "(" or is_left:
            return _negated(self._primary(word), negated)
        self.index += 1
        self.shell.budget.enter()
        inside = self._either()
        self.shell.budget.leave()
        if self._peek() != ")":
            self._fail()
        self.index += 1
        return _negated(inside, negated)


class _LongTest(_Tests):
    """Test of more than four words in ``[ ]``."""

    either, both = "-o", "-a"
    brackets_first = False

    def _fail(self) -> NoReturn:
        raise _WrongTestError

    def _primary(self, word: str) -> Holds:
        operator, right = self._peek(1), self._peek(2)
        if operator in _BINARY and right is not None:
            self.index += 3
            return _binary(word, operator or "", right)
        if word in _UNARY and operator is not None:
            self.index += 2
            return _unary(self.shell, word, operator)
        self.index += 1
        return _not_empty(self.shell, word)


def _negated(holds: Holds, negated: bool) -> Holds:
    return holds if holds is None or not negated else not holds


def _joined(by_or: bool, found: Sequence[Holds]) -> Holds:
    if by_or in found:
        return by_or
    return None if None in found else not by_or


def _not_empty(shell: Values, word: str) -> Holds:
    if word and shell.unknowns.may_be_empty(word):
        return None
    return word != ""


def _unary(shell: Values, operator: str, word: str) -> Holds:
    if operator in ("-n", "-z"):
        return _negated(_not_empty(shell, word), operator == "-z")
    if not is_known(word):
        return None
    if operator == "-v":
        return shell.is_set(word)
    if operator == "-o":
        return word in shell.state.options
    return False if word == "" and operator != "-t" else None


def _binary(left: str, operator: str, right: str) -> Holds:
    if operator in _FILES or not all_known((left, right)):
        if left == right and operator in ("=", "==", "!=") and left:
            return operator != "!="
        return None
    if operator in _NUMBERS:
        return _NUMBERS[operator](_whole(left), _whole(right))
    if operator in ("<", ">"):
        return left < right if operator == "<" else left > right
    return (left == right) == (operator != "!=")


def _whole(text: str) -> int:
    """Return a whole number as ``[`` reads it: decimal, within 64 bits."""
    if not re.fullmatch(r"\s*[+-]?[0-9]{1,40}\s*", text):
        raise _WrongTestError
    value = int(text)
    if not -(1 << 63) <= value < 1 << 63:
        raise _WrongTestError
    return value


def bracket_holds(shell: Values, source: str) -> Holds:
    """Return whether ``[[ source ]]`` holds; ``None`` if unknown."""
    words = split_words(source, ("&&", "||", "(", ")", "<", ">"))
    return _Condition(shell, words).value()


class _Condition(_Tests):
    """Words in ``[[ ]]``."""

    either, both = "||", "&&"

    def _fail(self) -> NoReturn:
        raise RefusalError("has a condition in [[ ]] that cannot be read.")

    def _primary(self, word: str) -> Holds:
        operator, right = self._peek(1), self._peek(2)
        if word in ("!", ")", "&&", "||", "<", ">"):
            self._fail()
        if word in _UNARY and operator is not None and operator not in ("&&", "||", ")", *_BINARY):
            self.index += 2
            return None if self.skipped else _unary(self.shell, word, self.shell.expand_text(operator))
        if operator is None or operator in ("&&", "||", ")"):
            self.index += 1
            return None if self.skipped else _not_empty(self.shell, self.shell.expand_text(word))
        if right is None or operator not in (*_BINARY, "=~"):
            self._fail()
        self.index += 3
        return None if self.skipped else self._compare(self.shell.expand_text(word), operator, right)

    def _compare(self, left: str, operator: str, right: str) -> Holds:
        shell = self.shell
        if operator in _NUMBERS:
            first, second = shell.arithmetic_value(left), shell.arithmetic_value(shell.expand_text(right))
            return None if first is None or second is None else _NUMBERS[operator](first, second)
        if operator == "=~":
            return _regex_matches(shell, left, right)
        if operator in ("<", ">", *_FILES):
            return _binary(left, operator, shell.expand_text(right))
        pattern, text = shell.expand_pattern(right)
        if pattern.matches_all:
            return operator != "!="
        if not all_known((left, text)):
            return None
        return pattern.matches(left) == (operator != "!=")


_MAX_SUBJECT = 2000
"""Largest number of characters on which a regular expression is tried, as Python's may be slow. Chosen."""


def _regex_matches(shell: Values, left: str, right: str) -> Holds:
    """Return whether ``left =~ right`` holds; ``None`` if unknown, or if the pattern may differ in Python."""
    pieces = shell.pieces_of(right)
    expression = "".join(re.escape(piece.text) if piece.kind == "quoted" else piece.text for piece in pieces)
    repeats = len(re.findall(r"(?<!\\)[*+{]", expression))
    unlike = re.search(r"\)[*+{]|\(\?|\\[A-Za-z0-9]|\[\[[.=]", expression)
    if not all_known((left, expression)) or unlike or repeats > 3 or len(left) > _MAX_SUBJECT:
        return None
    for name, ranges in (("digit", "0-9"), ("alpha", "A-Za-z"), ("alnum", "0-9A-Za-z"), ("space", r"\s")):
        expression = expression.replace(f"[:{name}:]", ranges)
    try:
        found = re.search(re.sub(r"\$(?=$|\))", r"\\Z", expression), left, re.DOTALL)
    except (re.error, OverflowError, RecursionError):
        return None
    groups = [] if found is None else [found[0], *(group or "" for group in found.groups())]
    shell.set_array("BASH_REMATCH", groups)
    return found is not None

"""Which branches of a shell script are taken, as far as the script itself says."""

import fnmatch
import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from pipette_opt.base.units import whole_number
from pipette_opt.read.shell_variables import replaced, variables

NEW_LINE = "\n"
"""The word between two lines."""

END_OF_CASE = ";;"
"""The word after a branch of ``case``."""

_BRACKETS = ("[", "[[", "]", "]]", "test")
_NUMBERS: Mapping[str, Callable[[int, int], bool]] = {
    "-eq": operator.eq,
    "-ne": operator.ne,
    "-gt": operator.gt,
    "-ge": operator.ge,
    "-lt": operator.lt,
    "-le": operator.le,
}
_SIGNS = {"==": "-eq", "!=": "-ne", ">": "-gt", ">=": "-ge", "<": "-lt", "<=": "-le"}
"""Comparisons of ``(( ... ))``, as those of ``[ ... ]``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Guess:
    """
    Branches that are taken although nothing says that they are.

    Parameters
    ----------
    condition
        As the script has it, without quotes.
    words
        Of the branches.
    """

    condition: str
    words: tuple[str, ...]


def taken_branches(words: Sequence[str]) -> tuple[list[str], list[Guess]]:
    """
    Words without branches of ``if``, ``case`` and ``[ ... ] &&`` whose condition is known to be false.

    Where it is not known, every branch that may be taken stays, and is a guess.

    Parameters
    ----------
    words
        Of a script, with :data:`NEW_LINE` and :data:`END_OF_CASE`, which are left out of the result.
    """
    taken: list[str] = []
    guesses: list[Guess] = []
    _take(words, taken, guesses)
    return taken, guesses


def _take(words: Sequence[str], taken: list[str], guesses: list[Guess]) -> None:
    """Add the words that are taken to those before them, which set the variables."""
    index, begins = 0, True
    while index < len(words):
        word = words[index]
        found = _branching(words, index) if begins else None
        if found is None:
            begins = word in (NEW_LINE, "do", "{")
            if word not in (NEW_LINE, END_OF_CASE):
                taken.append(word)
            index += 1
            continue
        branches, index = found
        _take_branches(branches, taken, guesses)
        begins = True


@dataclass(frozen=True, slots=True, kw_only=True)
class _Branch:
    """One branch, and what must hold; with ``pattern`` that ``condition`` is a word that matches it."""

    condition: Sequence[str]
    body: Sequence[str]
    pattern: str | None = None


def _take_branches(branches: Sequence[_Branch], taken: list[str], guesses: list[Guess]) -> None:
    """The first branch that holds; before it those that may hold."""
    values = variables(taken)
    guessed: list[_Branch] = []
    for branch in branches:
        holds = _holds_branch(branch, values)
        if holds is False:
            continue
        if holds is None or guessed:
            guessed.append(branch)
        else:
            _take(branch.body, taken, guesses)
        if holds:
            break
    for branch in guessed:
        _take(branch.body, taken, guesses)
    if guessed:
        words = tuple(word for branch in guessed for word in branch.body)
        guesses.append(Guess(condition=" ".join(guessed[0].condition).strip(), words=words))


def _branching(words: Sequence[str], start: int) -> tuple[list[_Branch], int] | None:
    """Branches that begin at a word, and the index after them; ``None`` if it begins none."""
    if words[start] == "if":
        return _branches_of_if(words, start)
    if words[start] == "case":
        return _branches_of_case(words, start)
    return _branch_of_line(words, start) if words[start] in ("[", "[[") else None


def _branches_of_if(words: Sequence[str], start: int) -> tuple[list[_Branch], int] | None:
    branches: list[_Branch] = []
    condition: list[str] = []
    part: list[str] = []
    for index, keyword in _outer(words, start, "if", "fi"):
        if keyword == "then":
            condition, part = part, []
        elif keyword in ("elif", "else", "fi"):
            branches.append(_Branch(condition=condition, body=part))
            condition, part = ["true"], []
            if keyword == "fi":
                return branches, index + 1
        else:
            part.append(words[index])
    return None


def _branches_of_case(words: Sequence[str], start: int) -> tuple[list[_Branch], int] | None:
    branches: list[_Branch] = []
    if words[start + 2 : start + 3] != ["in"]:
        return None
    pattern: str | None = None
    part: list[str] = []
    for index, keyword in _outer(words, start, "case", "esac"):
        if index <= start + 2:
            continue
        if pattern is None and keyword == ")":
            pattern, part = "".join(part), []
        elif keyword in (END_OF_CASE, "esac"):
            if pattern is not None:
                branches.append(_Branch(condition=words[start + 1 : start + 2], body=part, pattern=pattern))
            pattern, part = None, []
            if keyword == "esac":
                return branches, index + 1
        elif pattern is not None or keyword not in (NEW_LINE, "("):
            part.append(words[index])
    return None


def _branch_of_line(words: Sequence[str], start: int) -> tuple[list[_Branch], int] | None:
    """``[ condition ] && command`` or ``[ condition ] || command``."""
    end = next((index for index in range(start, len(words)) if words[index] == NEW_LINE), len(words))
    line = words[start:end]
    last = max((index for index, word in enumerate(line[:-1]) if word in ("]", "]]")), default=None)
    if last is None or line[last + 1] not in ("&&", "||"):
        return None
    condition, body = line[: last + 1], line[last + 2 :]
    if line[last + 1] == "&&":
        return [_Branch(condition=condition, body=body)], end
    return [_Branch(condition=condition, body=()), _Branch(condition=["true"], body=body)], end


def _outer(words: Sequence[str], start: int, opens: str, closes: str) -> Iterator[tuple[int, str]]:
    """Indices after the first word, each with its word, or with nothing inside a nested branching of the kind."""
    depth = 0
    for index in range(start + 1, len(words)):
        nested = depth > 0
        if words[index] == opens and words[index - 1] in (NEW_LINE, "then", "else", "do", ")"):
            depth, nested = depth + 1, True
        elif words[index] == closes and nested:
            depth -= 1
        yield index, "" if nested else words[index]


def _holds_branch(branch: _Branch, values: Mapping[str, str | None]) -> bool | None:
    if branch.pattern is None:
        return _holds(branch.condition, values)
    if branch.pattern == "*":
        return True
    word = replaced(branch.condition[0], values)
    if "$" in word:
        return None
    return any(fnmatch.fnmatchcase(word, pattern) for pattern in branch.pattern.split("|"))


def _holds(condition: Sequence[str], values: Mapping[str, str | None]) -> bool | None:
    """Whether a condition holds; ``None``: not known."""
    words = [word for word in condition if word != NEW_LINE]
    for joins, whole in ((("||", "-o"), any), (("&&", "-a"), all)):
        parts = _split(words, joins)
        if len(parts) > 1:
            found = [_holds(part, values) for part in parts]
            return _joined(found, decides=whole is any)
    if words and words[0] == "!":
        inner = _holds(words[1:], values)
        return None if inner is None else not inner
    if words[:2] == ["(", "("] and words[-2:] == [")", ")"]:
        inside = [_SIGNS.get(word, values.get(word) or word) for word in words[2:-2]]
        return _test([replaced(word, values) for word in inside], tested=False)
    tested = any(word in _BRACKETS for word in words)
    return _test([replaced(word, values) for word in words if word not in _BRACKETS], tested)


def _split(words: Sequence[str], joins: Sequence[str]) -> list[list[str]]:
    parts: list[list[str]] = [[]]
    for word in words:
        if word in joins:
            parts.append([])
        else:
            parts[-1].append(word)
    return parts


def _joined(found: Sequence[bool | None], decides: bool) -> bool | None:
    """``or`` is decided by one that holds, ``and`` by one that does not."""
    if decides in found:
        return decides
    return None if None in found else not decides


def _test(words: Sequence[str], tested: bool) -> bool | None:
    """A test of one, two or three words."""
    if words and words[0] == "!":
        inner = _test(words[1:], tested)
        return None if inner is None else not inner
    if any("$" in word for word in words):
        return None
    match list(words):
        case ["true" | ":"]:
            return True
        case ["false"] if not tested:
            return False
        case [word] if tested:
            return bool(word)
        case ["-n", word]:
            return bool(word)
        case ["-z", word]:
            return not word
        case [left, "=" | "==", right]:
            return fnmatch.fnmatchcase(left, right)
        case [left, "!=", right]:
            return not fnmatch.fnmatchcase(left, right)
        case [left, sign, right] if sign in _NUMBERS:
            first, second = whole_number(left), whole_number(right)
            return None if first is None or second is None else _NUMBERS[sign](first, second)
    return None

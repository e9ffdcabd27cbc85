"""Errors that users can cause, each class with the exit code of the command line."""

import re
import reprlib
from collections.abc import Callable, Iterable, Sequence
from itertools import islice
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


class PipetteError(Exception):
    """Base of all errors that a user can cause or fix."""

    exit_code = 2


class InputError(PipetteError, ValueError):
    """
    File, field or option with a wrong value.

    The message names the place, the value found and the values allowed.
    """

    def __init__(self, where: str, problem: str) -> None:
        self.where = _within(where)
        self.problem = _within(problem)
        super().__init__(f"{self.where}: {self.problem}")


class Errors(list[InputError]):
    """Errors of an input, collected so that all of them can be named :func:`together`."""

    def of(self, call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T | None:
        """Return the result of a call; ``None`` if it raised ``InputError``, which is kept."""
        try:
            return call(*args, **kwargs)
        except InputError as error:
            self.append(error)
            return None

    def fails(self, call: Callable[P, object], *args: P.args, **kwargs: P.kwargs) -> bool:
        """Return whether a call raises ``InputError``, which is kept."""
        before = len(self)
        self.of(call, *args, **kwargs)
        return len(self) > before


def made_at(where: str, make: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
    """Return the result of a call; a ``ValueError`` becomes an ``InputError`` that names the place ``where``."""
    try:
        return make(*args, **kwargs)
    except InputError:
        raise
    except ValueError as error:
        raise InputError(where, str(error)) from None


def together(errors: Sequence[InputError]) -> InputError:
    """Return one error that names all problems of an input, in order; a file that they share is named once."""
    first = errors[0]
    file = first.where.partition(", line ")[0]
    problems = [first.problem]
    for error in errors[1:]:
        place = error.where.removeprefix(f"{file}, ")
        problem = error.problem if place in (first.where, file) else f"{place}: {error.problem}"
        if problem not in problems:
            problems.append(problem)
    return type(first)(first.where, " Also: ".join(problems))


class OverwriteError(PipetteError):
    """Output file that is also an input of the command. No ``InputError``: the file's content is not at fault."""

    def __init__(self, where: str, problem: str) -> None:
        super().__init__(f"{where}: {problem}")
        self.where = where
        self.problem = problem


class MissingLinkError(InputError):
    """Link that a placement uses but that has no measurement."""


class InfeasibleError(PipetteError):
    """No plan satisfies all constraints; the message says how many configurations each constraint rules out."""

    exit_code = 3


class NoPlanInTimeError(InfeasibleError):
    """No plan was found within the time limit; a plan may still exist."""

    exit_code = 5


class PlanError(PipetteError):
    """A plan breaks a rule; raised by ``verify``."""


MAX_MESSAGE = 2_000
"""Longest place or problem in an error message, characters; the middle of a longer text is left out. Chosen."""

INVISIBLE = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\xad\u061c\u115f\u1160\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f\u3164\ufeff"
    "\ufff9-\ufffb\ud800-\udfff\U000e0000-\U000e007f]"
)
"""Characters that move a terminal's cursor, reorder or hide text, cannot be seen, or cannot be encoded."""


def visible(name: str, where: str) -> str:
    """Return a name; ``InputError`` for one with an invisible character, which would pass for another name."""
    if found := INVISIBLE.search(name):
        place = f"has the invisible character {found[0]!r} behind {shown(name[: found.start()])}"
        raise InputError(where, f"{place}; remove the character.")
    return name


def printable(text: str) -> str:
    """Return a text with its control characters escaped, except tabs and line ends."""
    return INVISIBLE.sub(lambda found: repr(found[0])[1:-1], text)


def _within(text: str) -> str:
    return text if len(text) <= MAX_MESSAGE else f"{text[: MAX_MESSAGE - 500]} ... {text[-400:]}"


MAX_SHOWN = 60
"""Longest value in an error message, characters. Chosen so that a message stays one line."""


def shown(value: object) -> str:
    """
    Return a short text of a value for an error message; ``None`` is written as ``nothing``.

    A large or deeply nested value takes no longer than a small value.
    """
    if value is None:
        return "nothing"
    try:
        text = _SHORT.repr(value)
    except ValueError:  # Python prints no whole number of more than 4,300 digits
        return "a number of thousands of digits"
    return text if len(text) <= MAX_SHOWN else f"{text[: MAX_SHOWN - 3]}..."


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """
    Return the near matches of a name as a sentence " Did you mean ...?", or an empty text.

    Names that differ only in leading zeros, such as ``node5`` and ``node05``, come before all other matches.
    """
    import difflib  # 3 ms that most commands do not need

    known = list(known)
    name = name[:MAX_SHOWN].lower()
    near = [candidate for candidate in known if _unpadded(candidate) == _unpadded(name)]
    return meant(near or difflib.get_close_matches(name, known, n=3, cutoff=0.6))


def meant(names: Sequence[str]) -> str:
    """Return the sentence " Did you mean ...?" for names; an empty text without any."""
    return f" Did you mean {' or '.join(names)}?" if names else ""


def _unpadded(name: str) -> str:
    """Return a name in lower case without leading zeros in its numbers."""
    return re.sub(r"(?<![0-9])0+(?=[0-9])", "", name.lower())


class _Short(reprlib.Repr):
    """``repr`` that reads only the first items of a container and the first characters of a text."""

    def __init__(self) -> None:
        super().__init__()
        self.maxlevel = 4
        self.maxlist = self.maxtuple = self.maxdict = self.maxset = 12
        self.maxother = 2 * MAX_SHOWN

    def repr_str(self, x: str, level: int) -> str:
        return repr(x[: 2 * MAX_SHOWN])

    def repr_dict(self, x: dict[object, object], level: int) -> str:
        if level <= 0:
            return "{...}"
        entries = islice(x.items(), self.maxdict)
        return (
            "{"
            + ", ".join(f"{self.repr1(key, level - 1)}: {self.repr1(item, level - 1)}" for key, item in entries)
            + "}"
        )


_SHORT = _Short()

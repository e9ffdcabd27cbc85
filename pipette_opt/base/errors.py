"""What can go wrong for a user, each class with the exit code that the command line gives it."""

import re
import reprlib
from collections.abc import Iterable
from itertools import islice


class PipetteError(Exception):
    """Base of all errors that a user can cause or fix."""

    exit_code = 2


class InputError(PipetteError, ValueError):
    """
    A file, field or option is wrong.

    The message names the place, the value found and what would be right.
    """

    def __init__(self, where: str, problem: str) -> None:
        self.where = _within(where)
        self.problem = _within(problem)
        super().__init__(f"{self.where}: {self.problem}")


class OverwriteError(PipetteError):
    """An output is an input of the command, too; no reader takes this for a fault of the file."""

    def __init__(self, where: str, problem: str) -> None:
        super().__init__(f"{where}: {problem}")
        self.where = where
        self.problem = problem


class MissingLinkError(InputError):
    """A placement uses a link without a measurement."""


class InfeasibleError(PipetteError):
    """No plan satisfies every constraint; the message says which constraint rules out how many candidates."""

    exit_code = 3


class NoPlanInTimeError(InfeasibleError):
    """The time limit came before any plan was found; there may be one."""

    exit_code = 5


class PlanError(PipetteError):
    """A finished plan breaks a rule; raised by ``verify``."""


MAX_MESSAGE = 2_000
"""Longest place or problem of a message, characters; the middle of a longer text is left out. Chosen."""

_CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ud800-\udfff]")
"""Characters that move a terminal's cursor, reorder or hide its text, or cannot be written at all."""


def printable(text: str) -> str:
    """Return a text with its control characters escaped; tabs and line ends stay."""
    return _CONTROL.sub(lambda found: repr(found[0])[1:-1], text)


def _within(text: str) -> str:
    return text if len(text) <= MAX_MESSAGE else f"{text[: MAX_MESSAGE - 500]} ... {text[-400:]}"


MAX_SHOWN = 60
"""Longest value in an error message, characters. Chosen so that a message stays one line."""


def shown(value: object) -> str:
    """
    Return a value for an error message, short; empty fields are called so.

    Takes no longer for a large value, or for lists inside each other, than for a small one.
    """
    if value is None:
        return "nothing"
    try:
        text = _SHORT.repr(value)
    except ValueError:  # Python prints no whole number of more than 4,300 digits
        return "a number of thousands of digits"
    return text if len(text) <= MAX_SHOWN else f"{text[: MAX_SHOWN - 3]}..."


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Near matches as a phrase that follows a full stop, or nothing; ``node5`` is ``node05`` before all others."""
    import difflib  # 3 ms that most commands do not need

    known = list(known)
    name = name[:MAX_SHOWN].lower()
    near = [candidate for candidate in known if _unpadded(candidate) == _unpadded(name)]
    near = near or difflib.get_close_matches(name, known, n=3, cutoff=0.6)
    return f" Did you mean {' or '.join(near)}?" if near else ""


def _unpadded(name: str) -> str:
    """A name without the zeros that its numbers begin with."""
    return re.sub(r"(?<![0-9])0+(?=[0-9])", "", name.lower())


class _Short(reprlib.Repr):
    """``repr`` that looks at the first few parts only."""

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

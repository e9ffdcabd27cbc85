"""What can go wrong for a user, each class with the exit code that the command line gives it."""


class PipetteError(Exception):
    """Base of all errors that a user can cause or fix."""

    exit_code = 2


class InputError(PipetteError, ValueError):
    """
    A file, field or option is wrong.

    The message names the place, the value found and what would be right.
    """

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


def shown(value: object) -> str:
    """A value for an error message, short; empty fields are called so."""
    if value is None:
        return "nothing"
    try:
        text = repr(value)
    except ValueError:  # Python prints no whole number of more than 4,300 digits
        return "a number of thousands of digits"
    return text if len(text) <= 60 else f"{text[:57]}..."

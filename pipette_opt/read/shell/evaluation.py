"""Evaluation of a script: the external commands that bash would start, and the assumptions made on the way."""

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from pipette_opt.base.errors import InputError
from pipette_opt.read.sbatch_header import job_variables, sbatch_options
from pipette_opt.read.shell.interpreter import ExternalCommand, Shell
from pipette_opt.read.shell.limits import MAX_SCRIPT_CHARACTERS, Budget, RefusalError
from pipette_opt.read.shell.state import State, Variable
from pipette_opt.read.shell.unknowns import Unknowns, is_known

__all__ = ["INSTEAD", "Evaluation", "ExternalCommand", "evaluate", "missing_variables"]

INSTEAD = "`pipette-opt capture` runs the script and records its launch instead."
"""Hint behind an error of a script that cannot be evaluated."""

ON_A_MAC = "On a Mac, run it in a Linux container: only Linux lets a script's programs be watched."
"""Sentence behind :data:`INSTEAD` on macOS."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluation:
    """
    Result of the evaluation of a script.

    Parameters
    ----------
    launches
        Numbers of launches that ``starts`` returned, in the order in which bash would start the commands.
    unknowns
        Values known only when the script runs; a marker character in a word stands for each value.
    unset
        Variables that were used but never set, each with the line of first use.
    defaults
        Variables whose default was used, each with the line of first use.
    missing
        Variables and arguments without which the script stops, each with its line and the script's message.
    header
        Options of ``#SBATCH`` lines.
    notes
        Assumptions, each with its line.
    lists
        Variables that the script sets, as words: elements of an array, or a text split at blanks.
    """

    launches: tuple[int, ...]
    unknowns: Unknowns
    unset: Mapping[str, int]
    defaults: Mapping[str, int]
    missing: Mapping[str, tuple[int, str]] = field(default_factory=dict)
    header: Mapping[str, str] = field(default_factory=dict)
    notes: tuple[tuple[int, str], ...] = ()
    lists: Mapping[str, tuple[str, ...]] = field(default_factory=dict)


Starts = Callable[[ExternalCommand, Shell], int | None]
"""Function that returns the number of the launch if a command starts a training program, else ``None``."""


def _numbered(environment: Mapping[str, str]) -> tuple[str, ...]:
    """Return the arguments of a script that are named by their numbers; ``InputError`` if a number is missing."""
    numbers = sorted(int(name) for name in environment if name.isdecimal())
    if numbers != list(range(1, len(numbers) + 1)):
        raise InputError("--env", f"gives the script's argument {numbers[-1]}, but not all before it; give 1=VALUE on.")
    return tuple(environment[str(number)] for number in numbers)


def evaluate(
    text: str,
    where: str,
    starts: Starts,
    *,
    environment: Mapping[str, str] | None = None,
    arguments: Sequence[str] = (),
) -> Evaluation:
    """
    Evaluate ``bash script arguments`` with only the variables of ``environment``, without running anything.

    Parameters
    ----------
    environment
        Variables by name, and arguments by number if ``arguments`` is empty.
    where
        Name of the script in errors.
    starts
        Function called for each external command, in order, with the shell that would start the command.

    Raises
    ------
    InputError
        If a line cannot be evaluated; the message names the line.
    """
    if len(text) > MAX_SCRIPT_CHARACTERS:
        raise InputError(where, f"has {len(text):,} characters; a launch script may have {MAX_SCRIPT_CHARACTERS:,}.")
    for value in (text, *(environment or {}).values(), *arguments):
        if not is_known(value) or "\0" in value:
            raise InputError(where, "has characters of Unicode's private planes or zero bytes, which no script needs.")
    if "\r\n" in text:
        line = text[: text.index("\r\n")].count("\n") + 1
        problem = "has line ends of Windows, which bash reads as part of a word; convert the script (dos2unix)."
        raise InputError(f"{where}, line {line}", problem)
    header = sbatch_options(text, where)
    named = {name: value for name, value in (environment or {}).items() if not name.isdecimal()}
    given = {**job_variables(header), **named}
    numbered = _numbered(environment or {})
    if numbered and arguments:
        raise InputError("--env", "gives the script's argument 1, which is also given behind --; give it once.")
    state = State(positional=tuple(arguments) or numbered)
    state.variables = {name: Variable(value=value, exported=True) for name, value in given.items()}
    state.variables["IFS"] = Variable(value=" \t\n")
    unknowns = Unknowns()
    shell = Shell(state, lambda command: starts(command, shell), unknowns, Budget())
    try:
        shell.run_script(text)
    except RefusalError as refusal:
        if shell.missing:
            raise missing_variables(shell.missing, where) from None
        place = where if refusal.line is None else f"{where}, line {refusal.line}"
        problem = " ".join(unknowns.rendered(refusal.problem).split())
        raise InputError(place, f"{problem} {_instead()}") from None
    return Evaluation(
        launches=shell.state.launches,
        unknowns=unknowns,
        unset=shell.unset,
        defaults={name: line for name, line in shell.defaults.items() if name not in shell.unset},
        missing=shell.missing,
        header=header,
        notes=tuple(dict.fromkeys(shell.notes)),
        lists={
            name: variable.value if isinstance(variable.value, tuple) else tuple((variable.value or "").split())
            for name, variable in shell.state.variables.items()
            if name not in given
        },
    )


def _instead() -> str:
    return f"{INSTEAD} {ON_A_MAC}" if sys.platform == "darwin" else INSTEAD


def missing_variables(missing: Mapping[str, tuple[int, str]], where: str) -> InputError:
    """Return the error that names all variables and arguments without which a script stops, with their lines."""
    under = "" if all(message for _, message in missing.values()) else " under set -u"
    (name, (first, message)), *others = missing.items()
    if not others:
        problem = f"{name} is not set{f': {message}' if message else ''}. Give it with --env {name}=VALUE."
    else:
        found = (f"{name} (line {line}{f': {text}' if text else ''})" for name, (line, text) in missing.items())
        problem = f"these are not set: {', '.join(found)}. Give each with --env NAME=VALUE."
    return InputError(f"{where}, line {first}", f"stops there{under}, as {problem}")

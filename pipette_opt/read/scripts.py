"""Reader of the arguments of a training program in a launch script; the script is evaluated, not run."""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from pipette_opt.base.errors import InputError, shown
from pipette_opt.base.units import one_line
from pipette_opt.read.launches import (
    Launch,
    OtherCommand,
    ShellScript,
    ShellText,
    Started,
    Starter,
    inside,
    launch_document,
    launch_of,
    takes_value,
)
from pipette_opt.read.sbatch_header import first_process_variables, made_up_note, submitted_variables
from pipette_opt.read.shell import Evaluation, ExternalCommand, evaluate, missing_variables
from pipette_opt.read.shell.unknowns import Unknown, Unknowns, is_marker, may_split

if TYPE_CHECKING:
    from pipette_opt.read.shell.interpreter import Shell

EXPORTED = "MEGATRON_ARGS"
"""Array with the options of a plan, in files that ``export`` writes."""

_DATE = re.compile(r"(?:\$\(|`)\s*date\b(?![^)`]*\+[\"']?-)[^)`;|&]*[)`]$")
"""Pattern of ``$(date)``, none of whose words is an option."""

_MAX_NAMED = 6
"""Most commands or variables that an error names. Chosen; the last commands are the nearest to a launch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UnknownArgument:
    """
    Argument with a part that is known only when the script runs.

    Parameters
    ----------
    text
        Unknown part as the script has it.
    may_be_option
        Whether the argument may be an option, or several words with an option.
    """

    index: int
    text: str
    line: int
    why: str
    may_be_option: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class ScriptLaunch:
    """
    Training program that a script starts.

    Parameters
    ----------
    launch
        Program with its launchers; ``None`` if the script only sets the options of a program, in an array.
    arguments
        Words after the program's name; unknown parts as the script has them.
    line
        Line of the command that starts the program.
    environment
        Variables that the script exports.
    header
        Options in ``#SBATCH`` lines.
    unset, defaults
        Variables that were used without being set, and variables whose default was used; each with its line.
    missing
        Variables and arguments without which the script stops; each with its line and the script's message.
    notes
        Assumptions that were made.
    """

    launch: Launch | None
    arguments: tuple[str, ...]
    unknown: tuple[UnknownArgument, ...] = ()
    line: int
    environment: Mapping[str, str] = field(default_factory=dict)
    header: Mapping[str, str] = field(default_factory=dict)
    unset: Mapping[str, int] = field(default_factory=dict)
    defaults: Mapping[str, int] = field(default_factory=dict)
    missing: Mapping[str, tuple[int, str]] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    def document(self) -> dict[str, Any]:
        """Return the launch in JSON: the fields that ``capture`` writes, and fields that only this reader has."""
        launch = self.launch or Launch(program="", arguments=self.arguments)
        document = launch_document(launch, environment=self.environment, sbatch=self.header, notes=self.notes)
        unknown = [
            {"argument": argument.index, "text": argument.text, "line": argument.line, "why": argument.why}
            for argument in self.unknown
        ]
        more = {"line": self.line, "unset_variables": dict(self.unset), "defaults_taken": dict(self.defaults)}
        return {**document, **more, "unknown_arguments": unknown}

    def require_set(self, where: str) -> None:
        """Raise ``InputError`` for variables without which the script stops before the launch; it names all of them."""
        if self.missing:
            raise missing_variables(self.missing, where)

    def require_known(self, where: str, counts: Callable[[UnknownArgument], bool] = lambda argument: True) -> None:
        """Raise ``InputError`` for variables that the script needs, and for unknown parts of arguments that count."""
        self.require_set(where)
        for argument in filter(counts, self.unknown):
            raise InputError(f"{where}, line {argument.line}", argument_problem(self.arguments, argument))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Found:
    """Launch that a script contains, with its line and exported variables."""

    launch: Launch
    line: int
    environment: Mapping[str, str]


def read_script(
    text: str, where: str, *, environment: Mapping[str, str] | None = None, arguments: Sequence[str] = ()
) -> ScriptLaunch:
    """
    Return the training program that ``bash script arguments`` would start.

    Nothing is run, and no other file is read.

    Parameters
    ----------
    environment
        Environment variables; besides them, only stand-ins for Slurm's variables exist, see
        :func:`~pipette_opt.read.sbatch_header.job_variables`.

    Raises
    ------
    InputError
        If the script starts no training program or several, or if the program cannot be determined.
    """
    reader = _Reader(where, environment or {})
    found = evaluate(text, where, reader.starts, environment=environment, arguments=arguments)
    notes = [f"line {line}: {found.unknowns.rendered(note)}" for line, note in found.notes]
    notes += made_up_note(found.header, text, environment or {})
    if not found.launches:
        return _without_launch(found, reader, where, notes)
    launches = [reader.launches[number] for number in found.launches]
    first = launches[0]
    for other in launches[1:]:
        if (other.launch.arguments, other.launch.program) != (first.launch.arguments, first.launch.program):
            both = (
                f"{one_line(found.unknowns.rendered(start.launch.program))} at line {start.line}"
                for start in (first, other)
            )
            raise InputError(
                where, f"starts {' and '.join(both)}; give a script that starts a single training program."
            )
    words, unknown = _readable(first.launch.arguments, found.unknowns)
    return ScriptLaunch(
        launch=_rendered(first.launch, words, found.unknowns),
        arguments=words,
        unknown=unknown,
        line=first.line,
        environment={name: found.unknowns.rendered(value) for name, value in first.environment.items()},
        header=found.header,
        unset=found.unset,
        defaults=found.defaults,
        missing=found.missing,
        notes=tuple(notes),
    )


def _rendered(launch: Launch, arguments: tuple[str, ...], unknowns: Unknowns) -> Launch:
    """Return the launch with unknown parts written as the script has them."""

    def shown(starter: Starter) -> Starter:
        values = {name: unknowns.rendered(value) for name, value in starter.values.items()}
        return replace(starter, options=tuple(map(unknowns.rendered, starter.options)), values=values)

    return replace(
        launch,
        program=unknowns.rendered(launch.program),
        launchers=tuple(map(shown, launch.launchers)),
        arguments=arguments,
        environment={name: unknowns.rendered(value) for name, value in launch.environment.items()},
        notes=tuple(map(unknowns.rendered, launch.notes)),
    )


def argument_problem(arguments: Sequence[str], argument: UnknownArgument) -> str:
    """Return the error text for an unknown argument: the reason, and a remedy."""
    before = arguments[: argument.index + ("=" in arguments[argument.index])]
    option = next((word.partition("=")[0] for word in reversed(before) if word.startswith("--")), "")
    of = f"the value of {option}" if option and not argument.text.startswith("-") else f"argument {argument.index + 1}"
    why = f" ({one_line(argument.why)})" if argument.why else ""
    return (
        f"{one_line(argument.text)}, in {of}, is known only when the script runs{why}. "
        "Write it out, set a variable with --env, or record the run with `pipette-opt capture`."
    )


def script_environment(settings: Sequence[str] | None, *, numbered: bool = True) -> dict[str, str]:
    """Return the variables in ``NAME=VALUE`` settings; if ``numbered``, a number names an argument of the script."""
    names = r"([A-Za-z_]\w*|[1-9][0-9]?)=" if numbered else r"[A-Za-z_]\w*="
    hint = " (1=VALUE for the script's first argument)" if numbered else ""
    for setting in settings or ():
        if not re.match(names, setting, re.ASCII):
            raise InputError("--env", f"must be NAME=VALUE{hint}, got {shown(setting)}.")
    return {name: value for name, _, value in (setting.partition("=") for setting in settings or ())}


class _Reader:
    """Collector of the launches and other commands that the evaluation of a script meets."""

    def __init__(self, where: str, environment: Mapping[str, str]) -> None:
        self.where = where
        self.environment = environment
        self.launches: list[_Found] = []
        self.others: dict[str, int] = {}
        self.options: list[str] = []

    def starts(self, command: ExternalCommand, shell: "Shell") -> int | None:
        """Record a command. Return the number of its launch, or ``None`` if it starts no training program."""
        if command.words[0].startswith("--"):
            self.options += command.words
            return None
        try:
            started = launch_of(_without_unknown_options(command.words))
        except InputError as error:
            place = f"{self.where}, line {command.line}"
            raise InputError(place, _as_written(f"{error.where}: {error.problem}", shell.unknowns)) from None
        self._check_quotes(started, command, shell)
        return self._note(started, command, shell)

    def _check_quotes(self, started: Started, command: ExternalCommand, shell: "Shell") -> None:
        """Raise ``InputError`` if a whole training command is in quotes: launchers take it for a program's name."""
        name = started.program if isinstance(started, Launch) else ""
        if isinstance(started, OtherCommand) and started.words:
            name = started.words[0]
        words = name.split()
        if len(words) < 2 or not isinstance(launch_of(words), Launch):
            return
        shown_name = one_line(shell.unknowns.rendered(name))
        problem = f"{shown_name!r} in quotes is read as the name of a program; remove the quotes."
        raise InputError(f"{self.where}, line {command.line}", problem)

    def _note(self, started: Started, command: ExternalCommand, shell: "Shell") -> int | None:
        if isinstance(started, Launch):
            environment = {**command.environment, **started.environment}
            self.launches.append(_Found(launch=started, line=command.line, environment=environment))
            return len(self.launches) - 1
        if isinstance(started, ShellText | ShellScript):
            text = started.text if isinstance(started, ShellText) else None
            if isinstance(started, ShellScript) and started.path == "-":
                text = command.stdin
            if text is not None:
                return self._inner(started, text, command, shell)
        words = started.words if isinstance(started, OtherCommand) else command.words
        shown = shell.unknowns.rendered(" ".join((words or command.words)[:3]))
        self.others.setdefault(one_line(shown, 50), command.line)
        return None

    def _inner(self, outer: ShellText | ShellScript, text: str, command: ExternalCommand, shell: "Shell") -> int | None:
        """Evaluate the shell text or script that a command starts. Return the number of its launch, or ``None``."""
        exported = {} if isinstance(outer, ShellText) and outer.on_other_hosts else dict(command.environment)
        positional = outer.arguments[1:] if isinstance(outer, ShellText) else outer.arguments
        stand_ins = {**first_process_variables(outer), **submitted_variables(text, command.words)}
        own = {name: value for name, value in self.environment.items() if name in stand_ins}
        numbers = shell.run_inner(text, {**exported, **stand_ins, **own, **outer.environment}, positional)
        if not numbers:
            return None
        found = [self.launches[number] for number in numbers]
        programs = {(launch_found.launch.program, launch_found.launch.arguments) for launch_found in found}
        if len(programs) > 1:
            place = f"{self.where}, line {command.line}"
            raise InputError(
                place, "starts two training programs in a shell; give a script that starts a single training program."
            )
        launch = inside(outer, found[0].launch)
        assert isinstance(launch, Launch)
        self.launches.append(_Found(launch=launch, line=command.line, environment=found[0].environment))
        return len(self.launches) - 1


def _without_unknown_options(words: Sequence[str]) -> list[str]:
    """Return a command without words before its program that may expand to no word or several; option values stay."""
    script = next((index for index, word in enumerate(words) if word.endswith(".py") or word == "-m"), len(words))
    return [
        word for index, word in enumerate(words) if index >= script or not may_split(word) or takes_value(words[:index])
    ]


def _as_written(problem: str, unknowns: Unknowns) -> str:
    """Return an error text with unknown parts as the script has them, even if Python escaped their placeholders."""
    signs = re.sub(r"\\U([0-9a-f]{8})", lambda found: chr(int(found[1], 16)), problem)
    return unknowns.rendered(signs)


def _readable(words: Sequence[str], unknowns: Unknowns) -> tuple[tuple[str, ...], tuple[UnknownArgument, ...]]:
    """Return words with unknown parts written as the script has them, and the list of words with unknown parts."""
    readable: list[str] = []
    unknown: list[UnknownArgument] = []
    for index, word in enumerate(words):
        found = unknowns.all_in(word)
        readable.append(unknowns.rendered(word))
        if found:
            unknown.append(
                UnknownArgument(
                    index=index,
                    text=found[0].text,
                    line=found[0].line,
                    why=found[0].why,
                    may_be_option=_may_be_option(word, found),
                )
            )
    return tuple(readable), tuple(unknown)


def _may_be_option(word: str, unknown: Sequence[Unknown]) -> bool:
    """Return whether a word with unknown parts may be an option, or several words with an option."""
    if word[0] == "-" and not re.match(r"--[\w-]+=", word, re.ASCII):
        return True
    return (may_split(word) or is_marker(word[0])) and not all(
        value.one_word or _DATE.match(value.text) for value in unknown
    )


def _without_launch(found: Evaluation, reader: _Reader, where: str, notes: Sequence[str]) -> ScriptLaunch:
    """Return the options in a file that starts no program, of its lines or an array. ``InputError`` without any."""
    if found.missing:
        raise missing_variables(found.missing, where)
    lists = {name: words for name, words in found.lists.items() if any(word.startswith("--") for word in words)}
    options = reader.options or lists.get(EXPORTED) or (next(iter(lists.values())) if len(lists) == 1 else [])
    if options and not reader.others:
        words, unknown = _readable(options, found.unknowns)
        return ScriptLaunch(
            launch=None,
            arguments=words,
            unknown=unknown,
            line=1,
            unset=found.unset,
            defaults=found.defaults,
            notes=tuple(notes),
        )
    commands = [f"{command} (line {line})" for command, line in list(reader.others.items())[-_MAX_NAMED:]]
    instead = f"commands that it starts: {', '.join(commands)}" if commands else "the script starts no program"
    more = f"; {'; '.join(notes)}" if notes else ""
    inner = next((word for command in reader.others for word in command.split() if word.endswith((".sh", ".bash"))), "")
    if inner:
        more += f"; give {inner} itself if it starts the training"
    if lists:
        more += f"; options are set in {', '.join(list(lists)[:_MAX_NAMED])}, which no command is given"
    if found.unset:
        unset = ", ".join(f"{name} (line {line})" for name, line in list(found.unset.items())[:_MAX_NAMED])
        more += f"; not set, and taken for empty: {unset}; --env NAME=VALUE sets a variable"
    hint = " Record it with `pipette-opt capture`." if any("$" in command for command in reader.others) else ""
    raise InputError(where, f"starts no training program; {instead}{more}.{hint}")

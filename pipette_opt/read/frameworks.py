"""Frameworks that train language models, and the marks of their launches and settings files."""

import re
import tomllib
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache

from pipette_opt.base.shipped import shipped_path


@dataclass(frozen=True, slots=True, kw_only=True)
class Framework:
    """
    Framework, and what tells its launches; a row of ``data/frameworks.toml``.

    Parameters
    ----------
    commands
        Installed commands with their subcommand: ``swift sft``, separated by ``, ``.
    programs
        Pattern of a program's path, with ``/`` for the dots of a module; empty for none.
    words
        Pattern of a whole option (``--name``) or of the name of an override (``name=value``); empty for none.
    files
        Keys of a settings file: alternatives separated by blanks, keys that all must occur joined by ``+``.
    imports
        Package that its programs import; empty for none.
    launchers
        Launcher that starts its programs, and those of others; empty for none.
    common
        Whether launches of other frameworks have its options and keys, too.
    read
        Whether its launches are read here, as options of Megatron-LM.
    reader
        Module of :mod:`pipette_opt.frameworks` that reads its launches; empty if none does.
    in_python
        Whether its settings files are programs in Python.
    logs
        Patterns of the reports in its logs; their groups are fields of :class:`Report`.
    overrides
        Whether its launches override fields of megatron-core, and are read if they leave nothing open that sizes a job.
    hint
        Sentence on what its launch leaves unsaid, or on the way on.
    """

    name: str
    commands: str = ""
    programs: str = ""
    words: str = ""
    files: str = ""
    imports: str = ""
    launchers: str = ""
    common: bool = False
    read: bool = False
    reader: str = ""
    in_python: bool = False
    logs: tuple[str, ...] = ()
    overrides: bool = False
    hint: str = ""

    def starts(self, program: str, arguments: Sequence[str]) -> bool:
        """Return whether a program, or a command with its subcommand, is the framework's."""
        path = program if "/" in program or program.endswith(".py") else program.replace(".", "/")
        if self.programs and re.search(self.programs, path):
            return True
        return is_command((program.rsplit("/", 1)[-1], *arguments), self.commands)

    def has_word(self, word: str) -> bool:
        """Return whether an option, or the name of an override, is the framework's."""
        return bool(self.words) and re.fullmatch(self.words, word) is not None

    def keys_in(self, keys: Collection[str]) -> tuple[str, ...]:
        """Return the keys of a settings file that tell the framework; empty if they do not."""
        alternatives = (alternative.split("+") for alternative in self.files.split())
        return next((tuple(wanted) for wanted in alternatives if all(key in keys for key in wanted)), ())


def is_command(words: Sequence[str], commands: str) -> bool:
    """Return whether a command line begins with one of several commands, separated by ``, ``."""
    wanted = (command.split() for command in commands.split(", ") if command)
    return any(list(words[: len(command)]) == command for command in wanted)


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """
    Report of an iteration in the log of a framework; ``None`` where it does not say.

    Parameters
    ----------
    step
        Number of the iteration.
    seconds
        Seconds of an iteration.
    tokens_per_gpu_s, samples_per_s
        Tokens per second of each GPU, and sequences per second of all.
    reserved_gib
        Memory that PyTorch reserved on the GPU of the process, GiB.
    """

    step: float | None = None
    seconds: float | None = None
    tokens_per_gpu_s: float | None = None
    samples_per_s: float | None = None
    reserved_gib: float | None = None

    def iteration_s(self, global_batch_size: int, seq_length: int, num_gpus: int) -> float | None:
        """Return the seconds of an iteration of these sequences and tokens; ``None`` without any rate."""
        if self.seconds is not None:
            return self.seconds
        if self.samples_per_s:
            return global_batch_size / self.samples_per_s
        return global_batch_size * seq_length / self.tokens_per_gpu_s / num_gpus if self.tokens_per_gpu_s else None


def report_in(line: str) -> Report | None:
    """Return the last report of a framework in a line of a log; ``None`` if the line has none."""
    for pattern in _log_patterns():
        found = list(pattern.finditer(line[:MAX_REPORT_CHARACTERS]))
        if found:
            numbers = {name: float(text.replace(",", "")) for name, text in found[-1].groupdict().items() if text}
            return Report(**numbers)
    return None


MAX_REPORT_CHARACTERS = 2_000
"""Longest part of a line that may hold a report. Chosen."""


@cache
def _log_patterns() -> tuple[re.Pattern[str], ...]:
    return tuple(re.compile(pattern, re.ASCII) for framework in frameworks() for pattern in framework.logs)


@cache
def frameworks() -> tuple[Framework, ...]:
    """Return the frameworks of ``data/frameworks.toml``, the most specific first."""
    rows = tomllib.loads(shipped_path("data", "frameworks.toml").read_text(encoding="utf-8"))["frameworks"]
    return tuple(Framework(**{**row, "logs": tuple(row.get("logs", ()))}) for row in rows)


def is_framework_command(words: Sequence[str]) -> bool:
    """Return whether a command line begins with an installed command of a framework, such as ``swift sft``."""
    return any(is_command(words, framework.commands) for framework in frameworks())


def framework_of_launch(program: str, arguments: Sequence[str], names: Iterable[str]) -> tuple[Framework, str] | None:
    """
    Return the framework of a launch, and the program, command or word that tells it; ``None`` if unknown.

    Parameters
    ----------
    program
        Path of a script, dotted name of a module or an installed command; empty for options without a program.
    names
        Options (``--name``) and names of overrides (``name`` of ``name=value``), as written.
    """
    started = [framework for framework in frameworks() if program and framework.starts(program, arguments)]
    if started and not started[0].read:
        command = program if re.search(r"[./]", program) else " ".join([program, *arguments[:1]])
        return started[0], command
    found = [(framework, name) for name in names for framework in _with_word(name)]
    found = [(framework, name) for framework, name in found if not (started and framework.common)]
    return min(found, key=lambda each: frameworks().index(each[0]), default=None)


@lru_cache(maxsize=10_000)
def _with_word(word: str) -> tuple[Framework, ...]:
    """Return the frameworks that an option, or the name of an override, tells."""
    return tuple(framework for framework in frameworks() if framework.has_word(word))


def frameworks_of_keys(keys: Collection[str]) -> list[tuple[Framework, tuple[str, ...]]]:
    """Return the frameworks whose keys a settings file has, each with these keys; the most specific first."""
    found = [(framework, framework.keys_in(keys)) for framework in frameworks()]
    return [(framework, wanted) for framework, wanted in found if wanted]


def framework_of_imports(packages: Collection[str]) -> Framework | None:
    """Return the framework of a Python program, by the dotted names that it imports; ``None`` if unknown."""
    for framework in frameworks():
        package = framework.imports
        if package and any(name == package or name.startswith(f"{package}.") for name in packages):
            return framework
    return None

"""
Training programs that command lines start, behind launchers and wrappers, with their arguments.

A command line starts a *training program* if it ends in a Python script or module (rule: :func:`launch_of`) that

- a launcher of processes starts (torchrun, deepspeed, accelerate, srun, mpirun, ``ray job submit``), or
- has an option that sizes a training job (:data:`TRAINING_OPTIONS`), or
- has ``train``, ``finetune``, ``sft`` or similar in its name (:data:`_TRAINING_NAME`), or as the first argument of
  an installed command, or
- belongs to a framework: its script, its module or its installed command (``swift sft``), by ``data/frameworks.toml``.

Excluded are tools: programs that prepare data, convert checkpoints or train a tokenizer (:data:`_TOOL_NAME`), modules
of Python itself, and ``python -c``. A binary that a launcher starts counts if it has an option that sizes a training
job.
"""

import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import PurePosixPath
from typing import Any, TypeVar

from pipette_opt.base.errors import InputError
from pipette_opt.base.units import whole_number
from pipette_opt.read.frameworks import framework_of_launch, is_framework_command
from pipette_opt.read.launchers import (
    HOSTS_FIRST,
    PYTHON_MODULES,
    PYTHON_NAME,
    REMOTE,
    REMOTE_VALUES,
    SHELLS,
    Launcher,
    known_launchers,
    launcher_table,
)

TRAINING_OPTIONS = (
    "num-layers",
    "hidden-size",
    "micro-batch-size",
    "global-batch-size",
    "tensor-model-parallel-size",
    "pipeline-model-parallel-size",
    "context-parallel-size",
    "expert-model-parallel-size",
    "train-iters",
    "train-samples",
    "per-device-train-batch-size",
    "num-train-epochs",
    "gradient-accumulation-steps",
    "deepspeed",
)
"""Options that size a training job in Megatron-LM, DeepSpeed or Transformers, with ``-`` for ``_``."""

_TRAINING_NAME = re.compile(
    r"(?<![a-z])(pre-?)?train|fine-?tun|(?<![a-z])(sft|dpo|grpo|ppo|rlhf)(?![a-z])|run_(clm|mlm)"
)
_TRAINING_COMMAND = re.compile(r"(pre-?)?train|sft|pt|dpo|grpo|rlhf|finetune")
_TOOL_NAME = re.compile(
    r"preprocess|prepare|collect_env|convert|tokenizer|vocab|download|merge|split|(?<![a-z])(data|ckpt|checkpoint)_?(tool|util)"
    r"|checkpoint/|checkpoint_util|^(check|test|get|print|parse|list)_|^setup\.py$|evaluat|inference|generat|serve"
)
"""Pattern for programs that are tools, not trainings; matched on the last folder and the file name."""

STANDARD_INPUT = "-"
"""Path that stands for a script on a shell's standard input."""

LAUNCH_KEYS = ("program", "launchers", "arguments", "environment", "sbatch", "notes")
"""Keys of a launch in JSON."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Starter:
    """Launcher or wrapper on a command line: ``options``, its words as written; ``values``, by full name."""

    name: str
    options: tuple[str, ...] = ()
    values: Mapping[str, str] = field(default_factory=dict)

    @property
    def is_launcher(self) -> bool:
        """Return whether the program starts the processes of a job, as a launcher or a remote shell does."""
        return self.name in REMOTE or (
            self.name in known_launchers() and known_launchers()[self.name].role == "launcher"
        )

    def number(self, options: Sequence[str]) -> int | None:
        """Return the number that the first given of ``options`` sets; ``None`` if no positive whole number."""
        texts = [self.values[option] for option in options if option in self.values]
        return int(texts[0]) if texts and re.fullmatch(r"[1-9][0-9]{0,8}", texts[0]) else None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Started:
    """Launchers and wrappers, outermost first, the environment variables they set, and notes on assumptions."""

    launchers: tuple[Starter, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch(_Started):
    """
    Training program, its arguments and its launchers.

    Parameters
    ----------
    program
        Path of the script, or dotted name of the module.
    arguments
        Words after the program's name.
    """

    program: str
    is_module: bool = False
    arguments: tuple[str, ...] = ()

    @property
    def num_nodes(self) -> int | None:
        """Number of hosts in the options of the innermost launcher that has the option; ``None`` if none has."""
        return self._innermost_number("nodes")

    @property
    def num_processes_per_node(self) -> int | None:
        """Number of processes per host by the innermost launcher with such an option; ``None`` without one."""
        return self._innermost_number("processes_per_node")

    @property
    def num_processes(self) -> int | None:
        """Number of processes of the job: hosts times processes per host, else the innermost option; or ``None``."""
        if self.num_nodes is not None and self.num_processes_per_node is not None:
            return self.num_nodes * self.num_processes_per_node
        return self._innermost_number("processes")

    def _innermost_number(self, field_name: str) -> int | None:
        launchers = [starter for starter in reversed(self.launchers) if starter.name in known_launchers()]
        numbers = [starter.number(getattr(known_launchers()[starter.name], field_name)) for starter in launchers]
        return next((number for number in numbers if number is not None), None)


@dataclass(frozen=True, slots=True, kw_only=True)
class ShellText(_Started):
    """Text that a shell runs; ``arguments`` are ``$0``, ``$1``, ..."""

    text: str
    arguments: tuple[str, ...] = ()
    on_other_hosts: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ShellScript(_Started):
    """Script that a shell runs with positional arguments; ``path`` is ``-`` for standard input."""

    path: str
    arguments: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class OtherCommand(_Started):
    """Command that starts no training program; without words, no command at all."""

    words: tuple[str, ...] = ()


Started = Launch | ShellText | ShellScript | OtherCommand
_Kind = TypeVar("_Kind", bound=_Started)


def launch_of(words: Sequence[str]) -> Started:
    """
    Return the program that a command line starts behind all launchers and wrappers.

    Parameters
    ----------
    words
        Command line as the shell passes it on: expanded, without quotes.

    Raises
    ------
    InputError
        If an unknown option makes it ambiguous where the program begins.
    """
    if not words:
        return OtherCommand()
    name = PurePosixPath(words[0]).name
    if PYTHON_NAME.fullmatch(name):
        return _started_by_python(words)
    if name in SHELLS:
        return _started_by_shell(words)
    if name in REMOTE:
        return _started_by_remote_shell(name, words[1:])
    if name == "eval":
        return ShellText(text=" ".join(words[1:]))
    known, rest = _launcher_named(name, words[1:])
    if known is not None:
        return _started_by_launcher(known, rest)
    return _started_by_name(words)


def read_options(name: str, launcher: Launcher, words: Sequence[str]) -> dict[str, str]:
    """Return the options at the beginning of ``words``, by full name; a flag has the value ``""``."""
    return dict(_Options.read(name, launcher, words).values)


def inside(outer: ShellText | ShellScript, found: Started) -> Started:
    """Return a command found inside a shell text or script, with the launchers around the shell put before its own."""
    by_launcher = any(starter.is_launcher for starter in outer.launchers)
    return _around(outer, _launched(found) if by_launcher else found)


def launch_document(
    launch: Launch,
    *,
    environment: Mapping[str, str] | None = None,
    sbatch: Mapping[str, str] | None = None,
    notes: Sequence[str] = (),
) -> dict[str, Any]:
    """
    Return a launch as a JSON object with the keys :data:`LAUNCH_KEYS`.

    Parameters
    ----------
    environment
        Variables that the script sets; launchers override them (``env NAME=VALUE``).
    sbatch
        Options of the script's ``#SBATCH`` lines, by long name.
    notes
        Assumptions and omissions of the script's reader.
    """
    return {
        "program": f"-m {launch.program}" if launch.is_module else launch.program,
        "launchers": [{"name": starter.name, "options": list(starter.options)} for starter in launch.launchers],
        "arguments": list(launch.arguments),
        "environment": {**(environment or {}), **launch.environment},
        "sbatch": dict(sbatch or {}),
        "notes": [*launch.notes, *notes],
    }


def _launcher_named(name: str, words: Sequence[str]) -> tuple[str | None, Sequence[str]]:
    """Return the key of a known launcher, and the words after its name; ``None`` if it is not known."""
    for length in (2, 1, 0):
        key = " ".join((name, *words[:length]))
        if len(words) >= length and key in known_launchers():
            return key, words[length:]
    return None, words


def _started_by_launcher(name: str, words: Sequence[str]) -> Started:
    launcher = known_launchers()[name]
    options = _Options.read(name, launcher, words)
    starter = Starter(name=name, options=tuple(words[: options.length]), values=options.values)
    if any(option in options.values for option in launcher.not_a_start):
        return OtherCommand(words=(*name.split(), *words))
    if "multi-prog" in options.values:
        raise InputError(
            name, "srun --multi-prog reads its programs from another file; give the command of one program."
        )
    environment = options.environment(launcher)
    rest = list(words[options.length :])
    if launcher.positionals:
        del rest[: launcher.positionals]
    while launcher.assignments and rest and re.match(r"[A-Za-z_]\w*=", rest[0]):
        key, _, value = rest.pop(0).partition("=")
        environment[key] = value
    around = _Started(launchers=(starter,), environment=environment, notes=options.notes)
    if name == "env":
        rest = shlex.split(options.values.get("S") or options.values.get("split-string") or "") + rest
    if launcher is known_launchers()["sbatch"]:
        return _around(around, _submitted(options.values, rest))
    if launcher.role == "launcher" and ":" in rest:
        raise InputError(name, "starts several programs, separated by `:`; give the command of one program.")
    if not rest:
        return _around(around, OtherCommand())
    is_direct = any(option in options.values for option in launcher.direct_flag)
    is_module = any(option in options.values for option in launcher.module_flag)
    if is_module or (launcher.runs_python and not is_direct):
        return _around(around, _program(rest, is_module=is_module, launched=launcher.role == "launcher"))
    if name == "uv run" and rest[0].endswith(".py"):
        return _around(around, _program(rest, is_module=False, launched=False))
    found = launch_of(rest)
    return _around(around, _launched(found) if launcher.role == "launcher" else found)


def _launched(found: Started) -> Started:
    """
    Return a command under a launcher as a training program if it is a Python script or sizes a training job.

    Any other command is returned unchanged.
    """
    words = found.words if isinstance(found, OtherCommand) else ()
    if words and PYTHON_NAME.fullmatch(PurePosixPath(words[0]).name):
        return _around(found, _started_by_python(words, launched=True))
    if words and (words[0].endswith(".py") or _sizes_a_job(words[1:])):
        return _around(found, _program(words, is_module=False, launched=True))
    return found


def _submitted(values: Mapping[str, str], rest: Sequence[str]) -> Started:
    if "wrap" in values:
        return ShellText(text=values["wrap"])
    if not rest:
        return ShellScript(path=STANDARD_INPUT)
    return ShellScript(path=rest[0], arguments=tuple(rest[1:]))


def _started_by_python(words: Sequence[str], launched: bool = False) -> Started:
    """Return the script or module that a Python command line runs; ``python -c`` is no training program."""
    other = OtherCommand(words=tuple(words))
    index = 1
    while index < len(words) and words[index].startswith("-") and words[index] != "-":
        word = words[index]
        if not word.startswith("--"):
            cluster = re.match(r"-([A-Za-z?]*?)([cm])(.*)", word, re.DOTALL)
            if cluster is not None and not re.search(r"[WX]", cluster[1]):
                if cluster[2] == "c":
                    return other
                module = [cluster[3]] if cluster[3] else []
                return _started_by_module(words, [*module, *words[index + 1 :]], launched)
        taken, options, _ = _option("python", launcher_table().python, words[index:])
        if {"h", "help", "V", "version"} & {option for option, _ in options}:
            return other
        index += taken
    rest = words[index:]
    if not rest or rest[0] == "-":
        return other
    known, behind = _launcher_named(PurePosixPath(rest[0]).name, rest[1:])
    if known is not None:  # the file of torchrun is a Python script
        return _started_by_launcher(known, behind)
    found = _program(rest, is_module=False, launched=launched)
    return found if isinstance(found, Launch) else other


def _started_by_module(words: Sequence[str], rest: Sequence[str], launched: bool) -> Started:
    other = OtherCommand(words=tuple(words))
    if not rest:
        return other
    module = rest[0]
    if module in PYTHON_MODULES:
        known, behind = _launcher_named(PYTHON_MODULES[module], rest[1:])
        return _started_by_launcher(known, behind) if known is not None else other
    tools = launcher_table().python_tools
    if module in tools:
        tool = tools[module]
        options = _Options.read(module, tool, rest[1:])
        found = _program(rest[1 + options.length :], is_module="m" in options.values, launched=launched)
    else:
        found = _program(rest, is_module=True, launched=launched and "." in module)
    return found if isinstance(found, Launch) else other


def _started_by_shell(words: Sequence[str]) -> Started:
    """Return the text, the script or the standard input that a shell command line runs."""
    index, has_text = 1, False
    while index < len(words) and re.match(r"[-+].", words[index]):
        word = words[index]
        index += 1
        if word == "--":
            break
        if word in ("--rcfile", "--init-file"):
            index += 1
        elif not word.startswith("--"):
            has_text |= "c" in word
            index += word.count("o") + word.count("O")
    rest = words[index:]
    if has_text:
        return ShellText(text=rest[0], arguments=tuple(rest[1:])) if rest else OtherCommand(words=tuple(words))
    if not rest:
        return ShellScript(path=STANDARD_INPUT)
    return ShellScript(path=rest[0], arguments=tuple(rest[1:]))


def _started_by_remote_shell(name: str, words: Sequence[str]) -> Started:
    """Return the text that a remote shell runs: the words after its options and host, joined by blanks."""
    valued = REMOTE_VALUES.get(name, "w h l").split()
    index, hosts = 0, 1 if name in HOSTS_FIRST else 0
    while index < len(words):
        word = words[index]
        if word.startswith("-") and word != "--":
            index += 2 if not word.startswith("--") and len(word) == 2 and word[1] in valued else 1
        elif word == "--":
            index += 1
        elif hosts:
            index, hosts = index + 1, 0
        else:
            break
    starter = Starter(name=name, options=tuple(words[:index]))
    if index == len(words):
        return ShellScript(path=STANDARD_INPUT, launchers=(starter,))
    return ShellText(text=" ".join(words[index:]), launchers=(starter,), on_other_hosts=True)


def _started_by_name(words: Sequence[str]) -> Started:
    """Return the program that a command line starts by its own name, without launcher, interpreter or shell."""
    name = words[0]
    if name.endswith((".sh", ".bash")):
        return ShellScript(path=name, arguments=tuple(words[1:]))
    if name.endswith(".py"):
        return _program(words, is_module=False, launched=False)
    if is_framework_command((PurePosixPath(name).name, *words[1:])):
        return Launch(program=name, arguments=tuple(words[1:]))
    return OtherCommand(words=tuple(words))


def _program(words: Sequence[str], *, is_module: bool, launched: bool) -> Launch | OtherCommand:
    """
    Return the launch of a training script or module, else :class:`OtherCommand`.

    ``launched`` says whether a launcher of processes starts the program.
    """
    if not words:
        return OtherCommand()
    name, arguments = words[0], tuple(words[1:])
    place = "/".join(PurePosixPath(name.replace(".", "/") if is_module else name).parts[-2:]).lower()
    last = place.rsplit("/", 1)[-1]
    sized = _sizes_a_job(arguments)
    is_tool = _TOOL_NAME.search(last) or re.search(r"(^|/)(tools|scripts/convert\w*)/", place)
    is_command = not is_module and "." not in last and arguments[:1] != ()
    named = _TRAINING_NAME.search(last) or (is_command and _TRAINING_COMMAND.fullmatch(arguments[0]))
    found = framework_of_launch(name, arguments, _names(arguments))
    is_known = found is not None and not found[0].common
    if (is_tool and not (sized and _TRAINING_NAME.search(last))) or not (launched or sized or named or is_known):
        return OtherCommand(words=tuple(words))
    return Launch(program=name, is_module=is_module, arguments=arguments)


def takes_value(words: Sequence[str]) -> bool:
    """Return whether the last word of an incomplete command line is a launcher's option whose value must follow."""
    option = words[-1] if words else ""
    if not re.fullmatch(r"-\w|--?\w[\w-]+", option):
        return False
    names = (PurePosixPath(word).name for word in reversed(words[:-1]))
    known = known_launchers()
    launcher = next((known[name] for name in names if name in known), None)
    name = option.lstrip("-")
    written = name.replace("_", "-") if launcher is not None and launcher.writing == "argparse" else name
    return launcher is not None and launcher.values_of(written) == 1


def may_train(words: Sequence[str]) -> bool:
    """Return whether an unreadable command line may start a training: a script name or a training option occurs."""
    return _sizes_a_job(words) or any(word.endswith(".py") or _TRAINING_NAME.search(word.lower()) for word in words)


def _sizes_a_job(arguments: Sequence[str]) -> bool:
    options = {word.partition("=")[0].removeprefix("--").replace("_", "-") for word in arguments if word[:2] == "--"}
    return not options.isdisjoint(TRAINING_OPTIONS)


def _names(arguments: Sequence[str]) -> Iterator[str]:
    """Yield the names of options and overrides: ``--name`` of ``--name=value``, ``name`` of ``name=value``."""
    for word in arguments:
        name, equals, _ = word.partition("=")
        if equals or name.startswith("--"):
            yield name


def _around(outer: _Started, found: _Kind) -> _Kind:
    return replace(
        found,
        launchers=(*outer.launchers, *found.launchers),
        environment={**outer.environment, **found.environment},
        notes=(*outer.notes, *found.notes),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Options:
    """
    Options at the beginning of a list of words.

    Parameters
    ----------
    length
        Number of words of the options, including a closing ``--``.
    values
        Last value of each option, by full name without dashes; ``""`` for a flag.
    all_values
        Every option with its value, in order.
    notes
        Notes on unknown options and missing values.
    """

    length: int
    values: Mapping[str, str]
    all_values: tuple[tuple[str, str], ...]
    notes: tuple[str, ...]

    @classmethod
    def read(cls, name: str, launcher: Launcher, words: Sequence[str]) -> "_Options":
        """Return the options up to the first word that is neither an option nor its value."""
        found: list[tuple[str, str]] = []
        notes: list[str] = []
        index = 0
        while index < len(words) and words[index].startswith("-") and words[index] != "-":
            if words[index] == "--":
                index += 1
                break
            taken, options, note = _option(name, launcher, words[index:])
            found += options
            notes += note
            index += taken
        return cls(length=index, values=dict(found), all_values=tuple(found), notes=tuple(notes))

    def environment(self, launcher: Launcher) -> dict[str, str]:
        """Return the variables in options: ``-x NAME=VALUE``, ``--export=ALL,NAME=VALUE``, ``-genv NAME VALUE``."""
        found: dict[str, str] = {}
        for option, value in self.all_values:
            if option in launcher.environment:
                parts = value.split(",") if option == "export" and launcher.writing == "getopt" else [value]
                found |= {part.partition("=")[0]: part.partition("=")[2] for part in parts if "=" in part}
        return found


_Read = tuple[int, list[tuple[str, str]], list[str]]
"""Number of words read, the options in them with their values, and notes."""


def _option(name: str, launcher: Launcher, words: Sequence[str]) -> _Read:
    word = words[0]
    is_long = word.startswith("--") or (launcher.writing == "mpi" and len(word) > 2)
    if not is_long:
        return _short_options(name, launcher, words)
    written, equals, value = word.lstrip("-").partition("=")
    option = launcher.name_of(written.replace("_", "-") if launcher.writing == "argparse" else written)
    if equals:
        return 1, [(option, value)], []
    number = launcher.values_of(option)
    if number is None:
        return _unknown(name, option, words)
    return _with_values(name, option, number, words)


def _short_options(name: str, launcher: Launcher, words: Sequence[str]) -> _Read:
    """Read a word of single-letter options: ``-N 8``, ``-N8``, ``-lu``, and the number of ``nice -10``."""
    letters = words[0][1:]
    found: list[tuple[str, str]] = []
    if len(letters) > 1 and letters in launcher.num_values:  # docker run -it
        return 1, [(letters, "")], []
    for index, letter in enumerate(letters):
        number = launcher.values_of(letter)
        if number is None:
            return _unknown(name, letter, words) if len(letters) == 1 else (1, [(letters, "")], [])
        if number and letters[index + 1 :]:
            return 1, [*found, (letter, letters[index + 1 :].removeprefix("="))], []
        if number:
            taken, options, notes = _with_values(name, letter, number, words)
            return taken, [*found, *options], notes
        found.append((letter, ""))
    return 1, found, []


def _with_values(name: str, option: str, number: int, words: Sequence[str]) -> _Read:
    """Read an option and its values; a following option or script is not taken as a value."""
    if number == 2 and len(words) > 2 and "=" not in words[1]:
        return 3, [(option, f"{words[1]}={words[2]}")], []
    if not number:
        return 1, [(option, "")], []
    if len(words) < 2 or _is_option(words[1]) or _is_script(words[1]):
        return 1, [(option, "")], [f"{name}: {words[0]} has no value."]
    return 2, [(option, words[1])], []


def _unknown(name: str, option: str, words: Sequence[str]) -> _Read:
    """Read an option that the launcher's table lacks, with a value if the next words are unambiguous."""
    following = words[1] if len(words) > 1 else None
    after = words[2] if len(words) > 2 else None
    note = f"{name}: unknown option {words[0]}."
    if following is None or _is_option(following) or _is_program(following):
        return 1, [(option, "")], [note]
    if whole_number(following) is not None or (after is not None and _is_program(after)):
        return 2, [(option, following)], [note]
    problem = f"unknown option {words[0]}: is {following!r} its value, or the program?"
    raise InputError(name, f"{problem} Write {words[0]}={following} for a value.")


def _is_option(word: str) -> bool:
    return re.match(r"-[^\W0-9]|--\w", word) is not None


def _is_script(word: str) -> bool:
    return word.endswith((".py", ".sh"))


def _is_program(word: str) -> bool:
    """Return whether a word must be a program: a script, an interpreter, a launcher or a wrapper."""
    name = PurePosixPath(word).name
    if _is_script(word) or PYTHON_NAME.fullmatch(name) or name in SHELLS:
        return True
    return any(name == known.split()[0] for known in known_launchers())

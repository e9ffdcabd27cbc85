"""Run of a user's script to find the training program that it would start."""

import os
import re
import shlex
import shutil
import sys
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pipette_opt.base.errors import InputError
from pipette_opt.base.files import read_bytes
from pipette_opt.read.capture import guard
from pipette_opt.read.capture.ordinary import unknown_program
from pipette_opt.read.capture.records import DRY, Kind, num_starts, outer_of, read_records, started_by, write_record
from pipette_opt.read.capture.secrets import NO_SECRETS, Secrets, is_secret_name
from pipette_opt.read.capture.stand_in import LAUNCHERS, PYTHONS, only_asks, real_shell
from pipette_opt.read.capture.stand_ins import stand_in_folders, stand_ins
from pipette_opt.read.launchers import PYTHON_NAME, known_launchers
from pipette_opt.read.launches import Launch, ShellScript, launch_document, launch_of, may_train
from pipette_opt.read.sbatch_header import (
    job_variables,
    made_up_note,
    note_on_variables,
    sbatch_options,
    slurm_variables,
)

AFTER_START_S = 10.0
"""Seconds that a script may continue after its first start of a training program. Chosen."""

LINGER_S = 5.0
"""Seconds that background processes may continue after the script has ended. Chosen."""

MAX_STARTS = 256
"""Number of recorded starts at which a script is stopped, as it seems to start its program in a loop. Chosen."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Captured:
    """
    Training program that a script would have started.

    Parameters
    ----------
    launch
        Program with its launchers and arguments.
    environment
        Variables that the script set before the start.
    sbatch
        Options of the script's ``#SBATCH`` lines.
    scripts
        Paths of the scripts that ran, each with its number of lines.
    num_starts
        Number of starts of the program with these arguments.
    status
        Exit code of the script; ``None`` if the script was stopped.
    notes
        Sentences on assumptions and on commands that were not run.
    secrets
        Values that the document must not have.
    """

    launch: Launch
    command: tuple[str, ...]
    environment: Mapping[str, str]
    sbatch: Mapping[str, str]
    scripts: Mapping[str, int]
    num_starts: int
    status: int | None
    notes: tuple[str, ...]
    secrets: Secrets = NO_SECRETS

    def document(self) -> dict[str, Any]:
        """Return the launch as JSON for ``captured.json``, with dots in place of secrets."""
        found = launch_document(self.launch, environment=self.environment, sbatch=self.sbatch, notes=self.notes)
        secret = [name for name in found["environment"] if is_secret_name(name)]
        for name in secret:
            del found["environment"][name]
        if secret:
            found["notes"].append(f"Left out as secret: {', '.join(sorted(secret))}.")
        document: dict[str, Any] = self.secrets.document(
            found
            | {
                "command": list(self.command),
                "scripts": [{"path": path, "lines": lines} for path, lines in self.scripts.items()],
                "num_starts": self.num_starts,
                "status": self.status,
            }
        )
        return document


@dataclass(slots=True)
class _Run:
    """
    Run in progress: its folder, start time and time limit.

    ``shell`` is the file of the bash that stand-ins start, ``allowed`` the names of further programs that may run.
    """

    folder: Path
    shell: str
    allowed: Collection[str]
    began_s: float
    time_limit_s: float
    first_start_s: float | None = None

    def is_over(self) -> bool:
        """Return whether the run must stop: by its limit, the time since the first start, or the number of starts."""
        now = time.monotonic()
        starts = num_starts(self.folder)
        if self.first_start_s is None and starts:
            self.first_start_s = now
        late = self.first_start_s is not None and now - self.first_start_s >= AFTER_START_S
        return late or now - self.began_s >= self.time_limit_s or starts >= MAX_STARTS

    def judge(self, program: guard.Program, mark: guard.Mark) -> guard.Mark | None:
        """Return the mark of a process with its new program; ``None`` if it may not run, which is recorded."""
        is_elsewhere = mark.is_elsewhere or bool(program.environment.get(DRY))
        after = guard.Mark(is_elsewhere=is_elsewhere)
        if not program.words:
            return after
        loads_more = is_elsewhere and any(name.startswith("LD_") for name in program.environment)
        if not loads_more and self._is_stand_in(program):
            return guard.Mark(is_stand_in=True, is_elsewhere=is_elsewhere)
        if mark.is_stand_in and program.executable == self.shell:
            return after
        words = self._as_called(program)
        kind, more = self._why_not(program, words, is_elsewhere=is_elsewhere)
        if kind is None:
            return after
        write_record(self.folder, kind, more.pop("words", words), program.environment, **more)
        return None

    def _why_not(
        self, program: guard.Program, words: Sequence[str], *, is_elsewhere: bool
    ) -> tuple[Kind | None, dict[str, Any]]:
        """Return the kind of record of a program that may not run, with its reason; ``None`` if it may."""
        name, past = Path(words[0]).name, {"past": words[0]}
        try:
            found = started_by(words, outer_of(program.environment))
        except InputError as error:
            return "refused", {"problem": str(error)}
        is_wrapper = name in known_launchers() and known_launchers()[name].role == "wrapper"
        if isinstance(found, Launch) and not is_wrapper:  # the command behind a wrapper is judged when it starts
            return "start", past
        if is_elsewhere or (name in LAUNCHERS and not only_asks(words)):
            return "left out", past
        if only_asks(words) or not (unknown := unknown_program(program.executable, words, self.allowed)):
            return None, {}
        return "unknown", {"name": Path(unknown[0]).name, "words": list(unknown)}

    def _is_stand_in(self, program: guard.Program) -> bool:
        """Return whether a program is a stand-in: its script by ``/bin/sh``, or Python that runs for it."""
        if program.executable == os.path.realpath(sys.executable):
            return list(program.words[1:3]) == ["-IS", str(self.folder / "stand_in.py")]
        script = Path(program.words[1]) if len(program.words) > 1 else self.folder
        return program.executable == os.path.realpath("/bin/sh") and script.parent in stand_in_folders(self.folder)

    def _as_called(self, program: guard.Program) -> list[str]:
        """Return a command line that begins with the program's own name, whatever name it was given."""
        words, interpreter = list(program.words), Path(program.executable).name
        if PYTHON_NAME.fullmatch(interpreter):
            words[0] = interpreter
        is_script = len(words) > 1 and "/" in words[1] and Path(words[1]).name in (*LAUNCHERS, *PYTHONS)
        if is_script or self._is_stand_in(program):  # a launcher that is itself a script, behind its interpreter
            del words[0]
        return words


def capture(
    command: Sequence[str],
    *,
    environment: Mapping[str, str] | None = None,
    time_limit_s: float = 60.0,
    which: int | None = None,
    allowed: Collection[str] = (),
) -> Captured:
    """
    Run a user's command, and return the training program that it would have started.

    Parameters
    ----------
    command
        Words of the command, with optional ``NAME=VALUE`` settings before it.
    environment
        Variables that override those of this process.
    time_limit_s
        Longest time of the run, seconds.
    which
        Number of the program, from 1, if the script starts several.
    allowed
        Names of programs that may run although nothing says that they start no job.

    Raises
    ------
    InputError
        If no training program is started, or several and ``which`` does not select one.
    """
    command, settings = _as_started(command)
    where = shlex.join(command)
    header, script = _header_of(command)
    own = {**os.environ, **(environment or {}), **settings}
    given = {**job_variables(_without_job(header)), **own}
    with stand_ins(given) as (folder, inner):
        _check_can_be_watched(script)
        shell = os.path.realpath(real_shell(folder))
        going = _Run(folder, shell, allowed, began_s=time.monotonic(), time_limit_s=time_limit_s)
        watch = guard.Watch(judge=going.judge, is_over=going.is_over, linger_s=LINGER_S)
        ended = guard.run(command, inner, watch)
        records = read_records(folder)
    starts = _distinct(records)
    secrets = Secrets.of([given, *(record["environment"] for record in records)])
    if not starts:
        raise InputError(where, _nothing_started(records, ended, going, secrets))
    chosen = _chosen(where, starts, which)
    scripts = {path: len(_text(path).splitlines()) for path in _scripts(script, records)}
    if not header:
        header = next((found for path in scripts if (found := sbatch_options(_text(path), path))), {})
    return Captured(
        launch=chosen[0],
        command=tuple(command),
        environment=chosen[1],
        sbatch=header,
        scripts=scripts,
        num_starts=chosen[2],
        status=ended.status,
        secrets=secrets,
        notes=(*_notes(records, ended, secrets), *_on_variables(_without_job(header), own, scripts)),
    )


def _as_started(command: Sequence[str]) -> tuple[list[str], dict[str, str]]:
    """Return the command and its ``NAME=VALUE`` settings. A script that is not executable gets ``bash`` in front."""
    words, settings = list(command), {}
    while words and re.match(r"[A-Za-z_]\w*=", words[0]):
        name, _, value = words.pop(0).partition("=")
        settings[name] = value
    if words and shutil.which(words[0]) is None and Path(words[0]).is_file():
        words.insert(0, "bash")
    if not words:
        raise InputError("capture", "needs a command after --, e.g. -- bash train.sh.")
    return words, settings


_Start = tuple[Launch, Mapping[str, str], int]
"""Launch, its environment variables, and its number of starts."""


def _distinct(records: Sequence[Mapping[str, Any]]) -> list[_Start]:
    """Return the launches with different programs or arguments; equal launches on several hosts count as one."""
    found: dict[tuple[str, tuple[str, ...]], _Start] = {}
    for record in records:
        if record["kind"] == "refused" and may_train(record["words"]):
            raise InputError(shlex.join(record["words"])[:200], record["problem"])
        if record["kind"] != "start":
            continue
        launch = started_by(record["words"], record["outer"])
        assert isinstance(launch, Launch)
        key = (launch.program, launch.arguments)
        first = found.get(key, (launch, record["environment"], 0))
        found[key] = (first[0], first[1], first[2] + 1)
    return list(found.values())


def _chosen(where: str, starts: Sequence[_Start], which: int | None) -> _Start:
    if which is not None and not 1 <= which <= len(starts):
        raise InputError(
            "--which", f"must be from 1 to {len(starts)}, the programs that the script starts, got {which}."
        )
    if which is not None or len(starts) == 1:
        return starts[(which or 1) - 1]
    listed = "; ".join(f"{number}: {_described(start, starts)}" for number, start in enumerate(starts, start=1))
    raise InputError(where, f"starts {len(starts)} training programs; choose one with --which. {listed}.")


def _described(start: _Start, starts: Sequence[_Start]) -> str:
    """Return the program and the first arguments in which its launch differs from the other launches."""
    shared = set.intersection(*(set(_pairs(other[0].arguments)) for other in starts))
    own = [" ".join(filter(None, pair)) for pair in _pairs(start[0].arguments) if pair not in shared]
    shown = " ".join(own[:3]) + (" ..." if len(own) > 3 else "")
    return f"{start[0].program} {shown}".strip()


def _pairs(arguments: Sequence[str]) -> list[tuple[str, str]]:
    """Return the arguments as pairs of option and value; the value is empty for a flag or a positional argument."""
    found: list[tuple[str, str]] = []
    for word in arguments:
        if found and found[-1][0].startswith("--") and not found[-1][1] and not word.startswith("--"):
            found[-1] = (found[-1][0], word)
        else:
            found.append((word, ""))
    return found


def _left_out(records: Sequence[Mapping[str, Any]], kind: Kind, secrets: Secrets) -> str:
    """Return the commands of a kind of record, each once, for people; empty if there are none."""
    words = [secrets.words(record["words"]) for record in records if record["kind"] == kind]
    return "; ".join(dict.fromkeys(shlex.join(command)[:80] for command in words))


def _unknown(records: Sequence[Mapping[str, Any]], secrets: Secrets) -> str:
    """Return a sentence on programs that were stopped as nothing says what they start; empty without such programs."""
    listed = _left_out(records, "unknown", secrets)
    named = next((record["name"] for record in records if record["kind"] == "unknown"), "")
    return (
        f"Stopped, as they may start a job: {listed}. To run one, --allow its name, such as {named}." if listed else ""
    )


def _nothing_started(records: Sequence[Mapping[str, Any]], ended: guard.Ended, going: _Run, secrets: Secrets) -> str:
    """Return the error text if no launch was found: status, last lines, and commands that were not run."""
    left_out = _left_out(records, "left out", secrets)
    beside = f" Left out: {left_out}." if left_out else ""
    beside += f" {unknown}" if (unknown := _unknown(records, secrets)) else ""
    last = [line.strip() for line in ended.errors if line.strip()][-3:]
    lines = f" Its last lines: {' | '.join(last)}." if last else ""
    if ended.status is None:
        return (
            f"started no training program in {going.time_limit_s:g} s, and was stopped; give it more with --time-limit."
            f"{beside}{lines}"
        )
    if ended.status:
        return f"ended with status {ended.status} before it started a training program.{beside}{lines}"
    return f"ended without starting a training program.{beside}{lines}"


def _on_variables(header: Mapping[str, str], own: Mapping[str, str], scripts: Iterable[str]) -> list[str]:
    """Return notes on Slurm variables that the scripts use, set as Slurm would or to placeholder values."""
    text = "".join(map(_text, scripts))
    beginning = "Set as Slurm does for this #SBATCH header"
    return [*note_on_variables(beginning, slurm_variables(header), text, own), *made_up_note(header, text, own)]


def _notes(records: Sequence[Mapping[str, Any]], ended: guard.Ended, secrets: Secrets) -> list[str]:
    notes = []
    if ended.status is None:
        notes.append("The script still ran, and was stopped.")
    elif ended.status and not any("past" in record for record in records):
        last = [line.strip() for line in ended.errors if line.strip()][-1:]
        notes.append(f"The script ended with status {ended.status}{': ' if last else ''}{''.join(last)}.")
    past = dict.fromkeys(record["past"] for record in records if "past" in record)
    if past:
        notes.append(f"Stopped before it ran, as its path goes past the stand-ins: {', '.join(past)}.")
    missing = dict.fromkeys(line.split(": ")[-2] for line in ended.not_found if line.count(": "))
    if missing:
        notes.append(f"Not on this machine, so their output is missing: {', '.join(missing)}.")
    if left_out := _left_out(records, "left out", secrets):
        notes.append(f"Not run: {left_out}.")
    if unknown := _unknown(records, secrets):
        notes.append(unknown)
    if not ended.is_watched:
        notes.append("Processes cannot be traced here: only programs with stand-ins were kept from running.")
    unclear = dict.fromkeys(record["problem"] for record in records if record["kind"] == "refused")
    notes += [f"Not read: {problem}" for problem in unclear]
    return notes


def _without_job(header: Mapping[str, str]) -> Mapping[str, str]:
    """Return the ``#SBATCH`` header of which variables are to be set; empty inside a Slurm job, which has its own."""
    return {} if "SLURM_JOB_ID" in os.environ else header


def _header_of(command: Sequence[str]) -> tuple[dict[str, str], str | None]:
    """Return the options of the ``#SBATCH`` lines in the command's script, and the path of the script."""
    found = launch_of(command)
    if not isinstance(found, ShellScript) or not Path(found.path).is_file():
        return {}, None
    return sbatch_options(_text(found.path), found.path), found.path


def _scripts(script: str | None, records: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the paths of the scripts that ran: the command's own, and those that launchers started."""
    behind = [str(Path(record["folder"], record["path"])) for record in records if record["kind"] == "script"]
    return [path for path in dict.fromkeys(filter(None, (script, *behind))) if Path(path).is_file()]


def _text(path: str) -> str:
    return read_bytes(path).decode("utf-8", errors="replace")


def _check_can_be_watched(script: str | None) -> None:
    """Raise ``InputError`` if processes cannot be traced and the script may start a real launcher."""
    if script is None or guard.can_trace():
        return
    names = "|".join(re.escape(name) for name in (*LAUNCHERS, *PYTHONS))
    past = re.compile(rf"[\w}}\)]/({names})(?=[\s\"';)]|$)|\bPATH=|\bactivate\b|\bmodule\s+load\b")
    for number, line in enumerate(_text(script).splitlines(), start=1):
        if past.search(line) and not line.lstrip().startswith("#"):
            problem = f"{line.strip()[:80]!r} may find a real launcher, and processes cannot be traced here"
            raise InputError(f"{script}, line {number}", f"{problem}; run it on Linux, or use `import args`.")

"""Run of a user's script to find the training program that it would start."""

import os
import re
import shlex
import shutil
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pipette_opt.base.errors import InputError
from pipette_opt.base.files import read_bytes
from pipette_opt.read.capture import guard
from pipette_opt.read.capture.records import num_starts, outer_of, read_records, started_by, write_record
from pipette_opt.read.capture.stand_in import CONTAINERS, LAUNCHERS, PYTHONS
from pipette_opt.read.capture.stand_ins import stand_ins
from pipette_opt.read.launchers import known_launchers
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

_SECRET = re.compile(r"TOKEN($|_)|SECRET|PASSW|CREDENTIAL|(^|_)AUTH($|_)|(^|_)KEY($|_)|APIKEY", re.IGNORECASE)
"""Pattern of names of variables with secret values, which are not written."""

_SETTING = re.compile(r"(?<!\w)(\w+)=(?=.)", re.DOTALL)
"""Pattern of a variable that an option of a launcher sets: ``NAME=VALUE``, ``--env=NAME=VALUE``."""


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
    """

    launch: Launch
    command: tuple[str, ...]
    environment: Mapping[str, str]
    sbatch: Mapping[str, str]
    scripts: Mapping[str, int]
    num_starts: int
    status: int | None
    notes: tuple[str, ...]

    def document(self) -> dict[str, Any]:
        """Return the launch as JSON for ``captured.json``, without values of secret variables."""
        found = launch_document(self.launch, environment=self.environment, sbatch=self.sbatch, notes=self.notes)
        secret = [name for name in found["environment"] if _SECRET.search(name)]
        for name in secret:
            del found["environment"][name]
        for launcher in found["launchers"]:
            launcher["options"] = [_without_secret(word) for word in launcher["options"]]
        if secret:
            found["notes"].append(f"Left out as secret: {', '.join(sorted(secret))}.")
        return found | {
            "command": list(self.command),
            "scripts": [{"path": path, "lines": lines} for path, lines in self.scripts.items()],
            "num_starts": self.num_starts,
            "status": self.status,
        }


def _without_secret(word: str) -> str:
    """Return an option of a launcher; the value of a secret variable is replaced by dots."""
    secret = next((setting for setting in _SETTING.finditer(word) if _SECRET.search(setting[1])), None)
    return word if secret is None else f"{word[: secret.end()]}..."


@dataclass(slots=True)
class _Run:
    """Run in progress: its folder, start time and time limit."""

    folder: Path
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

    def may_run(self, words: Sequence[str], pid: int) -> bool:
        """Return whether a command may run. A launcher or training program not intercepted is recorded, not run."""
        if not words or self._is_stand_in(words):
            return True
        if len(words) > 1 and "/" in words[1] and Path(words[1]).name in (*LAUNCHERS, *PYTHONS):
            words = words[1:]  # a launcher that is itself a script, after its interpreter
        environment = guard.environment_of(pid)
        name = Path(words[0]).name
        try:
            found = started_by(words, outer_of(environment))
        except InputError as error:
            write_record(self.folder, "refused", words, environment, problem=str(error))
            return False
        if name in known_launchers() and known_launchers()[name].role == "wrapper":
            return True  # nohup, env and similar wrappers execute the command after them, which is checked then
        if isinstance(found, Launch):
            write_record(self.folder, "start", words, environment, past=words[0])
            return False
        if name in LAUNCHERS and (name not in CONTAINERS or words[1:2] in (["run"], ["exec"], ["start"])):
            write_record(self.folder, "left out", words, environment, past=words[0])
            return False
        return True

    def _is_stand_in(self, words: Sequence[str]) -> bool:
        """Return whether a command is a stand-in: the script or Python process that runs for a launcher."""
        folder = f"{self.folder}{os.sep}"
        is_python = words[1:2] == ["-IS"] and words[2:3] == [f"{folder}stand_in.py"]
        return is_python or words[0].startswith(folder) or (len(words) > 1 and words[1].startswith(folder))


def capture(
    command: Sequence[str],
    *,
    environment: Mapping[str, str] | None = None,
    time_limit_s: float = 60.0,
    which: int | None = None,
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
        going = _Run(folder, began_s=time.monotonic(), time_limit_s=time_limit_s)
        watch = guard.Watch(may_run=going.may_run, is_over=going.is_over, linger_s=LINGER_S)
        ended = guard.run(command, inner, watch)
        records = read_records(folder)
    starts = _distinct(records)
    if not starts:
        raise InputError(where, _nothing_started(records, ended, going))
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
        notes=(*_notes(records, ended), *_on_variables(_without_job(header), own, scripts)),
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


def _nothing_started(records: Sequence[Mapping[str, Any]], ended: guard.Ended, going: _Run) -> str:
    """Return the error text if no launch was found: status, last lines, and commands that were not run."""
    left_out = [shlex.join(record["words"])[:80] for record in records if record["kind"] == "left out"]
    beside = f" Left out: {'; '.join(dict.fromkeys(left_out))}." if left_out else ""
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


def _notes(records: Sequence[Mapping[str, Any]], ended: guard.Ended) -> list[str]:
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
    left_out = dict.fromkeys(shlex.join(record["words"])[:80] for record in records if record["kind"] == "left out")
    if left_out:
        notes.append(f"Not run: {'; '.join(left_out)}.")
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

"""
Records of the programs that a script would start.

Programs that stand in for launchers write them: one file each, so that none is half written.
"""

import json
import os
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from pipette_opt.read.launches import ShellScript, ShellText, Started, inside, launch_of

Kind = Literal["start", "script", "left out", "unknown", "refused"]
"""
Kinds of records: start of a training program, script under a launcher, command not run as it starts work elsewhere, as
nothing says what it starts, or as it is not understood.
"""

OUTER = "PIPETTE_OPT_CAPTURE_OUTER"
"""Environment variable with the command lines of the launchers around a shell, as JSON."""

DRY = "PIPETTE_OPT_CAPTURE_DRY"
"""Environment variable that is set if only stand-in programs may run, as for other hosts and containers."""

FOREIGN_PATH = "PIPETTE_OPT_CAPTURE_PATH"
"""Environment variable that a text for another host sets in place of ``PATH``, which stays that of the stand-ins."""

_NOT_RECORDED = ("PWD", "OLDPWD", "SHLVL", "_", "PATH", "HOSTNAME", "BASH_ENV", FOREIGN_PATH, OUTER, DRY)
"""Environment variables that records leave out: variables of the shell and of the capture itself."""


def starts_folder(folder: Path) -> Path:
    """Return the folder of the records inside the folder of the run."""
    return folder / "starts"


def base_environment(folder: Path) -> dict[str, str]:
    """Return the environment variables at the beginning of the run."""
    path = folder / "environment.json"
    found: dict[str, str] = json.loads(path.read_text(encoding="utf-8", errors="surrogateescape"))
    return found


def write_record(folder: Path, kind: Kind, words: Sequence[str], environment: Mapping[str, str], **more: Any) -> None:
    """Write a record of a command, with the variables that the script has changed since its beginning."""
    base = base_environment(folder)
    changed = {
        name: value
        for name, value in environment.items()
        if base.get(name) != value and name not in _NOT_RECORDED and not name.startswith("BASH_FUNC_")
    }
    record = {
        "kind": kind,
        "words": list(words),
        "outer": outer_of(environment),
        "folder": str(Path.cwd()),
        "environment": changed,
        **more,
    }
    name = f"{time.time_ns():020d}-{os.getpid()}-{kind.replace(' ', '-')}.json"
    temporary = folder / f".{name}"
    temporary.write_text(json.dumps(record), encoding="utf-8", errors="surrogateescape")
    temporary.rename(starts_folder(folder) / name)


def read_records(folder: Path) -> list[dict[str, Any]]:
    """Return all records in the order in which they were written."""
    paths = sorted(starts_folder(folder).glob("*.json"))
    return [json.loads(path.read_text(encoding="utf-8", errors="surrogateescape")) for path in paths]


def num_starts(folder: Path) -> int:
    """Return the number of recorded starts of training programs."""
    return sum(path.name.endswith("-start.json") for path in starts_folder(folder).iterdir())


def outer_of(environment: Mapping[str, str]) -> list[list[str]]:
    """Return the command lines of the launchers around the current shell, outermost first."""
    found: list[list[str]] = json.loads(environment.get(OUTER) or "[]")
    return found


def started_by(words: Sequence[str], outer: Sequence[Sequence[str]]) -> Started:
    """Return the program that a command line starts, with the launchers of the shells around it."""
    found = launch_of(words)
    for around in reversed(outer):
        shell = launch_of(around)
        if isinstance(shell, ShellText | ShellScript):
            found = inside(shell, found)
    return found

"""Records of stand-ins on the programs that a script would start; a file for each, so that none is half written."""

import json
import os
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from pipette_opt.read.launches import ShellScript, ShellText, Started, inside, launch_of

Kind = Literal["start", "script", "left out", "refused"]
"""Kinds: training program, shell script of a launcher, command that was not run, command that cannot be read."""

OUTER = "PIPETTE_OPT_CAPTURE_OUTER"
"""Variable with the command lines of the launchers around a shell, as JSON."""

DRY = "PIPETTE_OPT_CAPTURE_DRY"
"""Variable that is set if only stand-ins may run, as in texts for other hosts and for containers."""

_OF_THE_SHELL = ("PWD", "OLDPWD", "SHLVL", "_", "PATH", "HOSTNAME", "BASH_ENV", OUTER, DRY)
"""Variables that no launch needs: those of the shell, of this run, and the path with its stand-ins."""


def starts_folder(folder: Path) -> Path:
    """Return the folder of the records."""
    return folder / "starts"


def base_environment(folder: Path) -> dict[str, str]:
    """Return the environment at the beginning of the run."""
    path = folder / "environment.json"
    found: dict[str, str] = json.loads(path.read_text(encoding="utf-8", errors="surrogateescape"))
    return found


def write_record(folder: Path, kind: Kind, words: Sequence[str], environment: Mapping[str, str], **more: Any) -> None:
    """Write a record of a command, with the variables that the script has set since its beginning."""
    base = base_environment(folder)
    changed = {
        name: value
        for name, value in environment.items()
        if base.get(name) != value and name not in _OF_THE_SHELL and not name.startswith("BASH_FUNC_")
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
    """Return the records in the order in which they were written."""
    paths = sorted(starts_folder(folder).glob("*.json"))
    return [json.loads(path.read_text(encoding="utf-8", errors="surrogateescape")) for path in paths]


def num_starts(folder: Path) -> int:
    """Return the number of training programs recorded so far."""
    return sum(path.name.endswith("-start.json") for path in starts_folder(folder).iterdir())


def outer_of(environment: Mapping[str, str]) -> list[list[str]]:
    """Return the command lines of the launchers around the current shell, the outermost first."""
    found: list[list[str]] = json.loads(environment.get(OUTER) or "[]")
    return found


def started_by(words: Sequence[str], outer: Sequence[Sequence[str]]) -> Started:
    """Return the launch of a command line, with the launchers of the shells around it."""
    found = launch_of(words)
    for around in reversed(outer):
        shell = launch_of(around)
        if isinstance(shell, ShellText | ShellScript):
            found = inside(shell, found)
    return found

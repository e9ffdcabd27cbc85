"""
How-to pages, read as what they tell a developer to do: edits of files, then commands with their output.

A fenced block with ``title="PATH"`` is a file: a ``diff`` changes one that exists, any other block is a new one.
Lines of a diff that begin with a blank or ``-`` must stand together in the file, exactly once. A block ``console``
has commands after ``$`` and what each prints below it; ``...`` stands for any lines.
"""

import os
import re
import shlex
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]

_BLOCK = re.compile(r"^```(?P<language>\w+)(?: title=\"(?P<path>[^\"]+)\")?\n(?P<text>.*?)^```$", re.M | re.S)

COPIED = ("pipette_opt", "benchmarks", "data", "models", "docs")
"""Folders of the checkout that a page may change."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Edit:
    """A file that a page adds, or the lines of a file that it changes."""

    path: str
    is_diff: bool
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """A command of a page, and the output that the page shows."""

    words: tuple[str, ...]
    output: str


def edits_of(page: str) -> list[Edit]:
    """Return the edits of a page, in its order."""
    return [
        Edit(path=block["path"], is_diff=block["language"] == "diff", text=block["text"])
        for block in _BLOCK.finditer(page)
        if block["path"]
    ]


def commands_of(page: str) -> list[Command]:
    """Return the commands of a page, in its order."""
    found = []
    for block in _BLOCK.finditer(page):
        if block["language"] == "console":
            for part in re.split(r"^\$ ", block["text"], flags=re.MULTILINE)[1:]:
                line, _, output = part.partition("\n")
                found.append(Command(words=tuple(shlex.split(line)), output=output))
    return found


def changed(text: str, diff: str, where: str) -> str:
    """Return a text with the lines of a diff replaced; ``ValueError`` if these do not stand there exactly once."""
    lines = diff.splitlines(keepends=True)
    before = "".join(line[1:] or "\n" for line in lines if line[0] != "+")
    after = "".join(line[1:] or "\n" for line in lines if line[0] != "-")
    if text.count(before) != 1:
        raise ValueError(f"{where} has these lines {text.count(before)} times, the page needs them once:\n{before}")
    return text.replace(before, after)


def checkout(folder: Path) -> Path:
    """Copy the folders that pages change, compiled bytecode included."""
    for name in COPIED:
        shutil.copytree(ROOT / name, folder / name)
    return folder


def apply(edits: list[Edit], folder: Path) -> None:
    """Make the edits of a page in a copy of the checkout."""
    for edit in edits:
        path = folder / edit.path
        if edit.is_diff:
            path.write_text(changed(path.read_text("utf-8"), edit.text, edit.path), "utf-8")
        else:
            if path.exists():
                raise ValueError(f"{edit.path} exists; the page must change it by a diff.")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(edit.text, "utf-8")


def run(command: Command, folder: Path) -> str:
    """Run a command of a page in a folder and return what it prints; errors only if it fails."""
    with started(command, folder) as process:
        printed, errors = process.communicate()
    return printed if process.returncode == 0 else printed + errors


def started(command: Command, folder: Path) -> "subprocess.Popen[str]":
    """Start a command of a page in a folder, with the package there, or else with that of this checkout."""
    python = {"pipette-opt": ["-m", "pipette_opt"], "python": []}[command.words[0]]
    environment = {**os.environ, "PYTHONPATH": f"{folder}{os.pathsep}{ROOT}", "COLUMNS": "100"}
    words = [sys.executable, *python, *(word.replace("$PWD", str(folder)) for word in command.words[1:])]
    return subprocess.Popen(
        words, cwd=folder, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def agrees(shown: str, printed: str) -> bool:
    """Return whether a text is what a page shows, where ``...`` stands for lines; blanks at ends do not count."""
    parts = [re.escape(part) for part in re.split(r"^\.\.\.\n", _stripped(shown), flags=re.MULTILINE)]
    return re.fullmatch("(?:.*\n)*".join(parts), _stripped(printed)) is not None


def _stripped(text: str) -> str:
    return "".join(f"{line.rstrip()}\n" for line in text.strip("\n").splitlines())

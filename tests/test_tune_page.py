"""The page of ``tune`` is followed as written: its files, its commands, and a search that is killed on the way."""

import re
import time
from pathlib import Path

import pytest
from pages import ROOT, Command, agrees, apply, commands_of, edits_of, run, started

pytestmark = pytest.mark.search

PAGE = (ROOT / "docs" / "tune.md").read_text("utf-8")


def test_following_the_page(tmp_path: Path) -> None:
    """Killed in its first trial and typed again, the search prints what the page shows, but for figures."""
    apply(edits_of(PAGE), tmp_path)
    commands = commands_of(PAGE)
    first = tmp_path / "tuning" / "trial-001" / ".running"
    kill_once_written(first, commands[0], tmp_path)
    began = first.stat().st_mtime_ns
    for command in commands:
        printed = run(command, tmp_path)
        assert agrees(without_figures(command.output), without_figures(printed)), printed
    assert first.stat().st_mtime_ns == began  # the first trial was started once


def kill_once_written(file: Path, command: Command, folder: Path) -> None:
    """Start a command of the page and kill it once a file has content."""
    with started(command, folder) as process:
        while not (file.exists() and file.read_text()):
            assert process.poll() is None, process.communicate()
            time.sleep(0.02)
        process.kill()


def without_figures(text: str) -> str:
    """Return a text with a zero for each number."""
    return re.sub(r"\d+(\.\d+)?", "0", text)

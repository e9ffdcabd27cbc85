"""Shared by the tests of commands."""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pipette_opt.cli import main


@pytest.fixture
def command(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> Callable[..., tuple[int, str, str]]:
    """Run a command in an empty folder: exit code, standard output, standard error on one line."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")

    def run(*arguments: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["pipette-opt", *arguments])
        code: Any = 0
        try:
            main()
        except SystemExit as ended:
            code = ended.code
        out, err = capsys.readouterr()
        return code or 0, out, " ".join(err.split())

    return run

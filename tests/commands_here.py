"""Commands as a user types them, run in this process: a start of its own takes each two seconds."""

import contextlib
import io
import subprocess
import sys
import time
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import typer

from pipette_opt.cli import main

COLUMNS = "200"
"""Width of the terminal."""

PROGRESS_WITHIN_S = 90.0
"""Time after which a command in the background must have shown its progress."""


built = cache(typer.main.get_command)
"""Commands of an app: typer builds all of them anew at each start, which takes longer than most commands."""


def typed(folder: Path, *arguments: str, main: Callable[[], None] = main) -> tuple[int, str, str]:
    """Exit code, standard output, and standard error on one line, of a command in a folder."""
    code: Any = 0
    out, err = (io.TextIOWrapper(io.BytesIO(), encoding="utf-8") for _ in range(2))
    with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        patch.chdir(folder)
        patch.setenv("COLUMNS", COLUMNS)
        patch.setattr(typer.main, "get_command", built)
        patch.setattr(sys, "argv", ["pipette-opt", *arguments])
        try:
            main()
        except SystemExit as ended:
            code = ended.code
    said = []
    for stream in (out, err):
        stream.seek(0)
        said.append(stream.read())
    return code or 0, said[0], " ".join(said[1].split())


def wait_for(process: subprocess.Popen[str], step: str) -> None:
    """Read progress until a step is reached."""
    deadline = time.monotonic() + PROGRESS_WITHIN_S
    assert process.stderr is not None
    for line in process.stderr:
        if step in line:
            return
        assert time.monotonic() < deadline, "no progress"
    pytest.fail(f"ended before {step}")

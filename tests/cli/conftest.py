"""Shared by the tests of commands."""

from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
from commands_here import typed


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., tuple[int, str, str]]:
    """Run a command in an empty folder, where the test is, too: see :func:`~commands_here.typed`."""
    monkeypatch.chdir(tmp_path)
    return partial(typed, tmp_path)

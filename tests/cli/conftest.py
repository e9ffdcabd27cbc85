"""Shared by the tests of commands."""

from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
from commands_here import typed

LAB_PINS = ("--tensor-parallel", "8", "--pipeline-parallel", "1,2", "--context-parallel", "1")
LAB_PINS += ("--virtual-pipeline", "1", "--micro-batch-size", "1,2")


@pytest.fixture(scope="session")
def lab_plan(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A plan of the two-host example with few choices, solved once."""
    folder = tmp_path_factory.mktemp("lab")
    code, _, err = typed(folder, "solve", "--example", "lab-2x8", *LAB_PINS, "--time-limit", "5", "-o", "plan.json")
    assert code in (0, 4), err
    return folder / "plan.json"


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., tuple[int, str, str]]:
    """Run a command in an empty folder, where the test is, too: see :func:`~commands_here.typed`."""
    monkeypatch.chdir(tmp_path)
    return partial(typed, tmp_path)

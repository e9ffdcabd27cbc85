"""Modules of the back-test's benchmark, for tests."""

import importlib
import sys
from pathlib import Path
from types import ModuleType

import pytest

FOLDER = Path(__file__).resolve().parents[1] / "benchmarks" / "backtest"


def loaded(name: str) -> ModuleType:
    """A module beside the benchmark, and those that it needs."""
    if not FOLDER.is_dir():
        pytest.skip("benchmarks are not beside the installed package")
    if str(FOLDER) not in sys.path:
        sys.path.append(str(FOLDER))
    return importlib.import_module(name)

"""Modules of benchmarks, for tests."""

import importlib
import sys
from pathlib import Path
from types import ModuleType

import pytest

BENCHMARKS = Path(__file__).resolve().parents[1] / "benchmarks"


def loaded(name: str, benchmark: str = "backtest") -> ModuleType:
    """A module of a benchmark, and those that it needs."""
    folder = BENCHMARKS / benchmark
    if not folder.is_dir():
        pytest.skip("benchmarks are not beside the installed package")
    if benchmark == "hardening":  # its programs import each other without a package
        if str(folder) not in sys.path:
            sys.path.append(str(folder))
        return importlib.import_module(name)
    return importlib.import_module(f"benchmarks.{benchmark}.{name}" if benchmark != "." else f"benchmarks.{name}")

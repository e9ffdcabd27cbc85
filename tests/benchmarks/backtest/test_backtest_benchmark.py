"""The back-test of public runs without measurements."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from benchmark_modules import BENCHMARKS, loaded

pytestmark = pytest.mark.search

FOLDER = BENCHMARKS / "backtest"
"""Where the back-test is."""


def test_without_measurements(tmp_path: Path) -> None:
    """Every source is named as missing."""
    if not FOLDER.is_dir():
        pytest.skip("benchmarks are not beside the installed package")
    out = tmp_path / "page.md"
    environment = {
        **os.environ,
        "PIPETTE_OPT_SHARED": str(tmp_path),
        "PYTHONPATH": str(FOLDER.parents[1]),
    }
    command = [sys.executable, "-m", "benchmarks.backtest.run", "--out", str(out), "--jobs", "1"]
    subprocess.run(command, env=environment, capture_output=True, check=True)
    assert out.read_text().count("| not there |") == len(loaded("experiments").EXPERIMENTS)

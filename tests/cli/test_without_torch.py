"""An installation without torch plans; commands that measure or train say how to get it."""

import subprocess
import sys
from pathlib import Path

JOB = ("--model", "llama-3-8b", "--global-batch-size", "512", "--seq-length", "4096", "--tensor-parallel", "4")
WITHOUT_TORCH = """
import sys
sys.modules["torch"] = None  # importing it raises ModuleNotFoundError, as where it is not installed
from pipette_opt.cli import main
main()
"""


def run(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """A command in a process that finds no torch."""
    return subprocess.run(
        [sys.executable, "-c", WITHOUT_TORCH, *words], cwd=folder, capture_output=True, text=True, check=False
    )


def test_planning_needs_none(tmp_path: Path) -> None:
    """Memory is predicted by numpy."""
    done = run(tmp_path, "memory", "predict", *JOB)
    assert done.returncode == 0, done.stderr


def test_what_needs_it_says_so(tmp_path: Path) -> None:
    """One line with the command that installs it, exit code 2, no traceback."""
    done = run(tmp_path, "profile", "compute", "--model", "llama-3-8b", "--seq-length", "512", "--device", "cpu")
    assert done.returncode == 2, done.stderr
    assert "pip install 'pipette-opt[torch]'" in done.stderr
    assert "Traceback" not in done.stderr

"""``--backend``: wrong names, addresses without effect, and a run over processes."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

SOLVE = ("solve", "--example", "lab-2x8", "--tensor-parallel", "8", "--virtual-pipeline", "1")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--backend", "mpi"), "--backend: must be one of threads, joblib, ray"),
        (("--ray-address", "auto"), "--ray-address: has no effect with --backend threads"),
    ],
)
def test_wrong_options(options: tuple[str, ...], message: str, command: Callable[..., tuple[int, str, str]]) -> None:
    """Exit code 2, and what would be right."""
    code, _, err = command(*SOLVE, *options)
    assert code == 2
    assert message in " ".join(err.replace("│", " ").split())


@pytest.mark.search
def test_a_run_over_processes(tmp_path: Path) -> None:
    """A plan whose certificate holds, as from threads."""
    path = tmp_path / "plan.json"
    options = ("--backend", "joblib", "--workers", "2", "--time-limit", "20", "--gap-limit", "0.5", "-o", str(path))
    words = [sys.executable, "-m", "pipette_opt", *SOLVE, *options]
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    certificate = json.loads(path.read_text())["certificate"]
    assert 0 < certificate["lower_bound_s"] <= certificate["objective_s"]

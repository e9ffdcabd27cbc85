"""``--backend``: wrong names, addresses without effect, and a run over processes."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

SOLVE = (sys.executable, "-m", "pipette_opt", "solve", "--example", "lab-2x8", "--virtual-pipeline", "1")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--backend", "mpi"), "--backend: must be one of threads, joblib, ray"),
        (("--ray-address", "auto"), "--ray-address: has no effect with --backend threads"),
    ],
)
def test_wrong_options(options: tuple[str, ...], message: str, tmp_path: Path) -> None:
    """Exit code 2, and what would be right."""
    done = subprocess.run([*SOLVE, *options], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert message in " ".join(done.stderr.replace("│", " ").split())


@pytest.mark.slow
def test_a_run_over_processes(tmp_path: Path) -> None:
    """A plan whose certificate holds, as from threads."""
    path = tmp_path / "plan.json"
    command = [
        *SOLVE,
        "--backend",
        "joblib",
        "--workers",
        "2",
        "--time-limit",
        "20",
        "--gap-limit",
        "0.5",
        "-o",
        str(path),
    ]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    certificate = json.loads(path.read_text())["certificate"]
    assert 0 < certificate["lower_bound_s"] <= certificate["objective_s"]

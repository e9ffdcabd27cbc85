"""The wheel carries everything: built, installed elsewhere, solved from an empty folder."""

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent


@pytest.mark.slow
def test_a_wheel_solves_from_an_empty_folder(tmp_path: Path) -> None:
    """Examples, presets, GPU catalogue and memory weights come from the installed package."""
    pytest.importorskip("build", reason="the build package is not installed")
    pytest.importorskip("hatchling", reason="hatchling is not installed")
    python = [sys.executable, "-m"]
    subprocess.run(
        [*python, "build", "--wheel", "--no-isolation", "--outdir", str(tmp_path / "dist"), str(ROOT)],
        check=True,
        capture_output=True,
    )
    (wheel,) = (tmp_path / "dist").glob("*.whl")
    names = set(zipfile.ZipFile(wheel).namelist())
    assert {"pipette_opt/_shipped/models/memory.npz", "pipette_opt/_shipped/data/gpus.yaml"} <= names
    site = tmp_path / "site"
    zipfile.ZipFile(wheel).extractall(site)
    empty = tmp_path / "empty"
    empty.mkdir()
    done = subprocess.run(
        [*python, "pipette_opt", "solve", "--example", "lab-2x8", "--gap-limit", "0.5", "--out", "plan.json"],
        check=False,
        capture_output=True,
        text=True,
        cwd=empty,
        env={**os.environ, "PYTHONPATH": str(site)},
    )
    assert done.returncode == 0, done.stderr
    assert sorted(path.name for path in empty.iterdir()) == ["plan.json"]
    assert (
        str(site)
        in subprocess.run(
            [sys.executable, "-c", "import pipette_opt; print(pipette_opt.__file__)"],
            check=True,
            capture_output=True,
            text=True,
            cwd=empty,
            env={**os.environ, "PYTHONPATH": str(site)},
        ).stdout
    )

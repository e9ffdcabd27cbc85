"""The wheel carries everything: built, installed elsewhere, used from an empty folder."""

import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

pytestmark = pytest.mark.search

ROOT = Path(__file__).resolve().parent.parent


def test_a_wheel_plans_from_an_empty_folder(tmp_path: Path) -> None:
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
    assert {
        "pipette_opt/_shipped/models/memory.npz",
        "pipette_opt/_shipped/data/gpus.yaml",
        "pipette_opt/py.typed",
        "pipette_opt/report/page/page.css",
        "pipette_opt/report/page/page.js",
    } <= names
    assert {name for name in names if "models" in Path(name).parts} == {
        "pipette_opt/_shipped/models/memory.md",
        "pipette_opt/_shipped/models/memory.npz",
    }
    assert not any(name.startswith("benchmarks") for name in names)
    site = tmp_path / "site"
    zipfile.ZipFile(wheel).extractall(site)
    empty = tmp_path / "empty"
    empty.mkdir()
    done = subprocess.run(
        [*python, "pipette_opt", "explain", "tp=8", "--example", "lab-2x8", "--tensor-parallel", "8", "--json"],
        check=False,
        capture_output=True,
        text=True,
        cwd=empty,
        env={**os.environ, "PYTHONPATH": str(site)},
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)
    assert not any(empty.iterdir())
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

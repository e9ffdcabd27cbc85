"""The wheel carries everything and nothing else: built, installed elsewhere, used from an empty folder."""

import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from pipette_opt import __version__

pytestmark = pytest.mark.search

ROOT = Path(__file__).resolve().parent.parent

MAX_WHEEL_BYTES = 3_000_000
"""Largest wheel; on 30 November 2026 it had 1.7 MB. Chosen."""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the wheel of this checkout and return its path."""
    pytest.importorskip("build", reason="the build package is not installed")
    pytest.importorskip("hatchling", reason="hatchling is not installed")
    dist = tmp_path_factory.mktemp("dist")
    command = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(dist), str(ROOT)]
    subprocess.run(command, check=True, capture_output=True)
    (built,) = dist.glob("*.whl")
    return built


def test_a_wheel_has_the_package_its_data_and_nothing_else(wheel: Path) -> None:
    """Code of the checkout, ``data/`` and the memory network; no tests, benchmarks, traces or leftovers of runs."""
    names = set(zipfile.ZipFile(wheel).namelist())
    metadata = {f"pipette_opt-{__version__}.dist-info/{name}" for name in ("METADATA", "WHEEL", "RECORD")}
    metadata |= {f"pipette_opt-{__version__}.dist-info/{name}" for name in ("entry_points.txt", "licenses/LICENSE")}
    code = {path.relative_to(ROOT).as_posix() for path in _files("pipette_opt") if path.suffix == ".py"}
    code |= {"pipette_opt/py.typed", "pipette_opt/report/page/page.css", "pipette_opt/report/page/page.js"}
    shipped = {path.relative_to(ROOT).as_posix() for path in _files("data")} | {"models/memory.md", "models/memory.npz"}
    assert {Path(name).suffix for name in shipped} == {".csv", ".json", ".md", ".npz", ".toml", ".txt", ".yaml"}
    assert names == metadata | code | {f"pipette_opt/_shipped/{name}" for name in shipped}
    assert wheel.stat().st_size < MAX_WHEEL_BYTES


def test_a_wheel_plans_from_an_empty_folder(wheel: Path, tmp_path: Path) -> None:
    """Installed by pip, its command says its version, explains and solves: presets, GPUs and the network are in it."""
    site, empty = tmp_path / "site", tmp_path / "empty"
    install = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index", "--target", str(site)]
    subprocess.run([*install, str(wheel)], check=True, capture_output=True)
    empty.mkdir()

    def printed(*command: str) -> str:
        done = subprocess.run(
            [sys.executable, *command],
            check=False,
            capture_output=True,
            text=True,
            cwd=empty,
            env={**os.environ, "PYTHONPATH": str(site)},
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    assert Path(printed("-c", "import pipette_opt; print(pipette_opt.__file__)").strip()).is_relative_to(site)
    command = str(site / "bin" / "pipette-opt")
    assert printed(command, "--version") == f"pipette-opt {__version__}\n"
    job = ("--example", "lab-2x8", "--tensor-parallel", "8", "--workers", "1")
    assert json.loads(printed(command, "explain", "tp=8", *job, "--json"))
    assert not any(empty.iterdir())
    printed(command, "solve", *job, "--time-limit", "5", "--gap-limit", "0.9", "--quiet", "--out", "plan.json")
    assert json.loads(printed(command, "verify", "plan.json", "--json"))
    assert [path.name for path in empty.iterdir()] == ["plan.json"]


def _files(folder: str) -> list[Path]:
    """Return the files of a folder of the checkout, without compiled bytecode."""
    return [path for path in (ROOT / folder).rglob("*") if path.is_file() and path.parent.name != "__pycache__"]

"""What is released: both archives pass PyPI's checks and have all that they should."""

import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

FOLDERS = {".ci", ".github", "benchmarks", "data", "docs", "models", "pipette_opt", "tests"}
PAGES = {"CHANGELOG.md", "CONTRIBUTING.md", "README.md", "SECURITY.md"}
TOP = (
    FOLDERS
    | PAGES
    | {"CITATION.cff", "Dockerfile", "LICENSE", "mkdocs.yml", "pyproject.toml", ".gitignore", "PKG-INFO"}
)
"""Folders and files at the top of the source archive; the last two are added by hatchling."""


@pytest.mark.client("build", "hatchling", "twine")
def test_archives_pass_the_checks_of_an_index(tmp_path: Path) -> None:
    """Metadata and the README render. The source archive has what a checkout has, checks included, and no leftovers."""
    build = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(tmp_path), str(ROOT)]
    subprocess.run(build, check=True, capture_output=True)
    archives = sorted(str(path) for path in tmp_path.iterdir())
    assert len(archives) == 2
    checked = subprocess.run(
        [sys.executable, "-m", "twine", "check", "--strict", *archives], check=False, capture_output=True, text=True
    )
    assert checked.returncode == 0, checked.stdout + checked.stderr
    (source,) = tmp_path.glob("*.tar.gz")
    with tarfile.open(source) as file:
        names = {member.name.split("/", 1)[1] for member in file.getmembers() if member.isfile()}
    assert {name.partition("/")[0] for name in names} == TOP
    assert {"docs/method.md", "tests/test_wheel.py", ".ci/run", "models/memory/traces.csv.gz"} <= names
    assert not [name for name in names if "__pycache__" in name or Path(name).suffix in {".pyc", ".nbi", ".nbc"}]

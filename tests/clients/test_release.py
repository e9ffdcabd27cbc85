"""What is released: both archives pass PyPI's checks and have all that they should."""

import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.client("build", "hatchling", "twine")
def test_archives_pass_the_checks_of_an_index(tmp_path: Path) -> None:
    """Metadata and the README render; the types are marked; pages and tests are in the source archive."""
    build = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(tmp_path), str(ROOT)]
    subprocess.run(build, check=True, capture_output=True)
    archives = sorted(str(path) for path in tmp_path.iterdir())
    assert len(archives) == 2
    checked = subprocess.run(
        [sys.executable, "-m", "twine", "check", "--strict", *archives], check=False, capture_output=True, text=True
    )
    assert checked.returncode == 0, checked.stdout + checked.stderr
    (wheel,) = tmp_path.glob("*.whl")
    assert "pipette_opt/py.typed" in zipfile.ZipFile(wheel).namelist()
    (source,) = tmp_path.glob("*.tar.gz")
    with tarfile.open(source) as file:
        names = {name.split("/", 1)[1] for name in file.getnames()}
    assert {"docs/method.md", "CONTRIBUTING.md", "SECURITY.md", "CITATION.cff", "tests/test_wheel.py"} <= names

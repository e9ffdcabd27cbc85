"""Compiled kernels are cached by the contents of all files that hold kernels."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from numba.core import config

from pipette_opt.base import jit


@pytest.mark.parametrize("place", ["solver", "solver/cells", "annealing"])
def test_the_folder_follows_the_contents(place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another kernel file, another folder; the same contents, the same folder; packages within packages count."""
    package = tmp_path / "pipette_opt"
    for name in jit.PACKAGES:
        (package / name).mkdir(parents=True)
    kernel = package / place / "kernel.py"
    kernel.parent.mkdir(exist_ok=True)
    kernel.write_text("a = 1\n")
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(jit, "__file__", str(package / "base" / "jit.py"))
    folders = []
    for text in ("a = 1\n", "a = 2\n", "a = 1\n"):
        kernel.write_text(text)
        jit.cache_folder.cache_clear()
        folders.append(jit.cache_folder())
    jit.cache_folder.cache_clear()
    assert folders[0] == folders[2] != folders[1]
    assert all(folder.is_dir() and folder.parent == tmp_path / "cache" for folder in folders)


def test_an_unwritable_folder_is_passed_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file where the folder should be: the next place is taken."""
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path / "file"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "home"))
    jit.cache_folder.cache_clear()
    assert jit.cache_folder().parent == tmp_path / "home" / "pipette-opt"
    jit.cache_folder.cache_clear()


def test_numbas_own_setting_is_left_alone() -> None:
    """Other packages' caches stay where they are."""
    before = config.CACHE_DIR
    compiled = jit.njit(cache=True)(lambda x: x + 1)
    assert before == config.CACHE_DIR
    assert compiled.py_func(1) == 2


def test_kernels_are_cached_there(tmp_path: Path) -> None:
    """A second process finds what the first has compiled."""
    code = (
        "from pipette_opt.solver.matching import matching_size as f\n"
        "import numpy as np\n"
        "assert f(np.eye(3, dtype=np.bool_)) == 3\n"
        "print(sum(f.stats.cache_hits.values()))"
    )
    hits = [
        subprocess.run(
            [sys.executable, "-c", code],
            check=True,
            capture_output=True,
            text=True,
            env={**os.environ, "NUMBA_CACHE_DIR": str(tmp_path)},
        ).stdout.strip()
        for _ in range(2)
    ]
    assert hits == ["0", "1"]
    assert list(tmp_path.rglob("*.nbi"))


def test_what_is_cached(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A kernel is known to be there once it has been called."""
    from pipette_opt.solver.matching import matching_size

    monkeypatch.setattr(jit, "cache_folder", lambda: tmp_path)
    assert not jit.is_cached(matching_size)
    folder = tmp_path / "solver_1"
    folder.mkdir()
    (folder / "matching.matching_size-30.py311.nbi").touch()
    assert jit.is_cached(matching_size)

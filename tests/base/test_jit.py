"""Compiled kernels are cached by the contents of all files that kernels can see."""

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from numba.core import config

from pipette_opt.base import jit


@pytest.mark.parametrize(
    ("changed", "counts"),
    [
        ("solver/kernel.py", True),
        ("solver/cells/kernel.py", True),
        ("problem/data.py", True),
        ("solver/other.py", False),
    ],
)
def test_the_folder_follows_what_kernels_see(
    changed: str, counts: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another kernel, or another file that kernels import from, another folder; the rest does not count."""
    package = tmp_path / "pipette_opt"
    kernel = "from pipette_opt.base.jit import njit\nfrom pipette_opt.problem.data import X\n"
    texts = {"solver/kernel.py": kernel, "solver/cells/kernel.py": kernel, "problem/data.py": "X = 1\n"}
    for name, text in {**texts, "solver/other.py": "Y = 1\n"}.items():
        (package / name).parent.mkdir(parents=True, exist_ok=True)
        (package / name).write_text(text)
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(jit, "PACKAGE", package)
    before = (package / changed).read_text()
    folders = []
    for text in (before, before + "Z = 1\n", before):
        (package / changed).write_text(text)
        jit.cache_folder.cache_clear()
        folders.append(jit.cache_folder())
    jit.cache_folder.cache_clear()
    assert folders[0] == folders[2]
    assert (folders[1] != folders[0]) == counts
    assert all(folder.is_dir() and folder.parent == tmp_path / "cache" for folder in folders)


def test_an_unwritable_folder_is_passed_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file where the folder should be: the next place is taken."""
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path / "file"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "home"))
    jit.cache_folder.cache_clear()
    assert jit.cache_folder().parent == tmp_path / "home" / "pipette-opt"
    jit.cache_folder.cache_clear()


@pytest.fixture
def only_temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The place of the cache in a folder for temporary files, where no other can be written."""
    (tmp_path / "file").write_text("")
    (tmp_path / "tmp").mkdir()
    monkeypatch.delenv("NUMBA_CACHE_DIR", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "tmp"))
    jit.cache_folder.cache_clear()
    yield tmp_path / "tmp" / f"pipette-opt-{os.getuid()}"
    jit.cache_folder.cache_clear()


def test_a_temporary_folder_is_the_users_own(only_temporary: Path) -> None:
    """Made for this user alone, and found again by the next process."""
    folder = jit.cache_folder()
    assert folder.parent == only_temporary
    assert only_temporary.stat().st_mode & 0o777 == 0o700
    jit.cache_folder.cache_clear()
    assert jit.cache_folder() == folder


@pytest.mark.parametrize("planted", ["writable by all", "link", "writable inside", "of somebody else"])
def test_a_planted_folder_is_passed_over(planted: str, only_temporary: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An index of kernels is a pickle: no folder counts in which somebody else can write."""
    if planted == "link":
        elsewhere = only_temporary.parent / "elsewhere"
        elsewhere.mkdir()
        only_temporary.symlink_to(elsewhere)
    elif planted == "writable inside":
        folder = jit.cache_folder()
        folder.chmod(0o777)
    else:
        only_temporary.mkdir(mode=0o700)
        if planted == "writable by all":
            only_temporary.chmod(0o777)
        else:
            other = os.getuid() + 1
            monkeypatch.setattr(os, "getuid", lambda: other)
            only_temporary.rename(only_temporary.with_name(f"pipette-opt-{os.getuid()}"))
    jit.cache_folder.cache_clear()
    found = jit.cache_folder()
    assert not found.is_relative_to(only_temporary)
    assert found.stat().st_mode & 0o777 == 0o700


def test_numbas_own_setting_is_left_alone() -> None:
    """Other packages' caches stay where they are."""
    before = config.CACHE_DIR
    compiled = jit.njit(cache=True)(lambda x: x + 1)
    assert before == config.CACHE_DIR
    assert compiled.py_func(1) == 2


def test_nothing_is_compiled_where_numba_is_told_not_to(monkeypatch: pytest.MonkeyPatch) -> None:
    """``NUMBA_DISABLE_JIT``: kernels are plain functions."""

    def plain(x: int) -> int:
        return x

    monkeypatch.setattr(config, "DISABLE_JIT", 1)
    assert jit.njit(cache=True)(plain) is plain


@pytest.mark.search
def test_kernels_are_cached_there(tmp_path: Path) -> None:
    """A second process finds what the first has compiled, and so does another installation of the same contents."""
    code = (
        "from pipette_opt.solver.matching import matching_size as f\n"
        "import numpy as np\n"
        "assert f(np.eye(3, dtype=np.bool_)) == 3\n"
        "print(sum(f.stats.cache_hits.values()))"
    )
    shutil.copytree(jit.PACKAGE, tmp_path / "other" / jit.PACKAGE.name, ignore=shutil.ignore_patterns("__pycache__"))
    hits = [
        subprocess.run(
            [sys.executable, "-c", code],
            check=True,
            capture_output=True,
            text=True,
            env={**os.environ, "NUMBA_CACHE_DIR": str(tmp_path / "kernels"), "PYTHONPATH": str(place)},
        ).stdout.strip()
        for place in (jit.PACKAGE.parent, jit.PACKAGE.parent, tmp_path / "other")
    ]
    assert hits == ["0", "1", "1"]
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

"""Atomic writing."""

from pathlib import Path

import pytest

from pipette_opt.errors import InputError
from pipette_opt.files import write_atomically
from pipette_opt.read.files import sha256_of


def test_writes_and_replaces(tmp_path: Path) -> None:
    """The text arrives as given, permissions stay, nothing else is left."""
    path = tmp_path / "a.txt"
    write_atomically(path, "one\n")
    path.chmod(0o600)
    write_atomically(path, "zwölf\r\n")
    assert path.read_bytes() == "zwölf\r\n".encode()
    assert path.stat().st_mode & 0o777 == 0o600
    assert [file.name for file in tmp_path.iterdir()] == ["a.txt"]


def test_a_failed_write_leaves_the_old_file(tmp_path: Path) -> None:
    """Text that cannot be encoded stops half way."""
    path = tmp_path / "a.txt"
    write_atomically(path, "old")
    with pytest.raises(UnicodeEncodeError):
        write_atomically(path, "x" * 10_000 + "\ud800")
    assert path.read_text() == "old"
    assert [file.name for file in tmp_path.iterdir()] == ["a.txt"]


def test_sha256(tmp_path: Path) -> None:
    """The known hash of the empty file; a missing one is an input error."""
    (tmp_path / "empty").touch()
    assert sha256_of(tmp_path / "empty") == "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
    with pytest.raises(InputError, match="cannot be read"):
        sha256_of(tmp_path / "missing")

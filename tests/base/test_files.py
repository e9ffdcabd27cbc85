"""Atomic writing."""

import os
import stat
from pathlib import Path

import pytest

from pipette_opt.base.errors import InputError
from pipette_opt.base.files import is_file, is_folder, write_atomically, write_together
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


def test_files_of_one_folder_are_written_together(tmp_path: Path) -> None:
    """If the second cannot be written the first stays, too: new and old parts of a launch do not mix."""
    one, other = tmp_path / "one.txt", tmp_path / "other.txt"
    write_together({one: "old", other: "old"})
    assert {file.name: file.read_text() for file in tmp_path.iterdir()} == {"one.txt": "old", "other.txt": "old"}
    with pytest.raises(UnicodeEncodeError):
        write_together({one: "new", other: "new \ud800"})
    with pytest.raises(FileNotFoundError) as caught:
        write_together({one: "new", tmp_path / "no" / "third.txt": "new"})
    assert caught.value.filename == str(tmp_path / "no" / "third.txt")
    assert {file.name: file.read_text() for file in tmp_path.iterdir()} == {"one.txt": "old", "other.txt": "old"}


def test_links_and_pipes_stay(tmp_path: Path) -> None:
    """A link still points to the file that was replaced; a pipe is written to and not replaced."""
    real, link, pipe = tmp_path / "real.txt", tmp_path / "link.txt", tmp_path / "pipe"
    real.write_text("old")
    link.symlink_to(real)
    write_atomically(link, "new")
    assert link.is_symlink()
    assert real.read_text() == "new"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    try:
        write_atomically(pipe, "text")
        assert os.read(reader, 10) == b"text"
    finally:
        os.close(reader)
    assert stat.S_ISFIFO(pipe.stat().st_mode)


def test_an_error_names_the_target(tmp_path: Path) -> None:
    """Not the temporary file beside it."""
    with pytest.raises(FileNotFoundError) as caught:
        write_atomically(tmp_path / "no" / "a.txt", "text")
    assert caught.value.filename == str(tmp_path / "no" / "a.txt")


def test_sha256(tmp_path: Path) -> None:
    """The known hash of the empty file; a missing one is an input error."""
    (tmp_path / "empty").touch()
    assert sha256_of(tmp_path / "empty") == "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
    with pytest.raises(InputError, match="cannot be read"):
        sha256_of(tmp_path / "missing")


@pytest.mark.parametrize("text", ["x" * 5000, "a\0b", "x/" * 3000 + "y"])
def test_a_text_that_is_no_path_is_no_file(text: str) -> None:
    """Words of users are asked whether they name a file; those that cannot are none, and no error."""
    assert not is_file(text)
    assert not is_folder(text)


def test_files_and_folders(tmp_path: Path) -> None:
    """A file is no folder, and the other way round."""
    (tmp_path / "a").write_text("")
    assert (is_file(tmp_path / "a"), is_folder(tmp_path / "a")) == (True, False)
    assert (is_file(tmp_path), is_folder(tmp_path)) == (False, True)

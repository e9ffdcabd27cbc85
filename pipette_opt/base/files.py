"""Reading users' files; writing so that a reader never sees half of one, and never over what the command read."""

import errno
import hashlib
import os
import stat
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from pipette_opt.base.errors import InputError, OverwriteError
from pipette_opt.base.units import MIB

MAX_FILE_BYTES = 256 * MIB
"""Largest file that is read: logs of a week of a large job are smaller. Chosen."""

STDOUT = "-"
"""Name that stands for standard output, as usual for programs."""


def is_stdout(path: str | Path | None) -> bool:
    """Whether a name stands for standard output."""
    return str(path) == STDOUT


@dataclass(slots=True)
class FilesOfRun:
    """
    Files that a run of a command has used.

    Parameters
    ----------
    inputs
        Files that the command read, or that what it read names, by device and inode.
    targets
        Files that were there before and that the command will write, by device and inode, as the command names them.
    written
        Files that the command wrote, or goes on with, resolved.
    replaced
        Files that were there before the command wrote them, as the command names them.
    hashes
        SHA-256 of each input that was read, by its resolved path.
    """

    inputs: set[tuple[int, int]] = field(default_factory=set)
    targets: dict[tuple[int, int], str] = field(default_factory=dict)
    written: set[Path] = field(default_factory=set)
    replaced: list[str] = field(default_factory=list)
    hashes: dict[Path, str] = field(default_factory=dict)


_runs: list[FilesOfRun] = []
"""The run of a command at hand, last; empty when the package is used as a library."""


@contextmanager
def files_of_run() -> Iterator[FilesOfRun]:
    """
    Protect what a command reads from what it writes, from here to the end of the block.

    Only commands open such a block. A program that uses the package as a library may write where it read before.
    """
    run = FilesOfRun()
    _runs.append(run)
    try:
        yield run
    finally:
        _runs.remove(run)


def note_input(path: str | Path) -> None:
    """
    Protect a file that the command at hand read, or that what it read names; nothing outside of a command.

    ``OverwriteError`` if the command said before that it will write there.
    """
    file = _file_of(path) if _runs else None
    if file is None or Path(path).resolve() in _runs[-1].written:
        return
    _runs[-1].inputs.add(file)
    if file in _runs[-1].targets:
        raise _is_input(_runs[-1].targets[file])


def note_targets(*paths: str | Path | None) -> None:
    """Say what the command at hand will write, before it reads anything: an input among it is then refused at once."""
    check_targets(*paths)
    for path in paths if _runs else ():
        file = None if path is None or is_stdout(path) else _file_of(path)
        if file is not None and Path(str(path)).resolve() not in _runs[-1].written:
            _runs[-1].targets[file] = str(path)


def note_continued(path: str | Path) -> None:
    """Let the command at hand replace a file that it reads: it goes on with what an earlier run wrote there."""
    if _runs:
        _runs[-1].written.add(Path(path).resolve())


def check_targets(*paths: str | Path | None) -> None:
    """Raise ``OverwriteError`` for a target that the command at hand read, or that what it read names."""
    for path in paths:
        if _runs and path is not None and not is_stdout(path) and _file_of(path) in _runs[-1].inputs:
            raise _is_input(path)


def _is_input(path: str | Path) -> OverwriteError:
    problem = "is an input of this command, or named in one, and would be replaced; give another name."
    return OverwriteError(str(path), problem)


def _file_of(path: str | Path) -> tuple[int, int] | None:
    """Device and inode of a regular file; ``None`` for a name that is none."""
    try:
        status = Path(path).stat()
    except (OSError, ValueError):
        return None
    return (status.st_dev, status.st_ino) if stat.S_ISREG(status.st_mode) else None


def is_file(path: str | Path) -> bool:
    """Return whether a path is a regular file; a text that cannot be a path, as one too long for a name, is none."""
    try:
        return Path(path).is_file()
    except (OSError, ValueError):
        return False


def is_folder(path: str | Path) -> bool:
    """Return whether a path is a folder; a text that cannot be a path is none."""
    try:
        return Path(path).is_dir()
    except (OSError, ValueError):
        return False


def read_bytes(path: str | Path) -> bytes:
    """
    Return the content of an input; ``OSError`` if it cannot be opened, :class:`InputError` if it may have no end.

    Every file of a user is read here. A pipe is opened without waiting for a writer, and refused unless it is one of
    this process's own. Of a command, the content is that of the first time, or an ``InputError`` says that it changed.
    """
    note_input(path)
    content = read_output(path)
    if _runs:
        _check_unchanged(Path(path), content)
    return content


def _check_unchanged(path: Path, content: bytes) -> None:
    """Raise ``InputError`` if another program replaced an input between two looks of the command at hand."""
    place = path.resolve()
    if _file_of(place) is None or place in _runs[-1].written:
        return
    now = hashlib.sha256(content).hexdigest()
    if _runs[-1].hashes.setdefault(place, now) != now:
        raise InputError(str(path), "changed while this command read it; run the command again.")


def read_output(path: str | Path) -> bytes:
    """Return the content of a file that the command at hand may write to, as :func:`read_bytes` does of an input."""
    own = str(path).startswith(("/dev/fd/", "/proc/self/fd/")) or str(path) == "/dev/stdin"
    handle = os.open(path, os.O_RDONLY | (0 if own else os.O_NONBLOCK))
    with os.fdopen(handle, "rb") as file:
        status = os.fstat(handle)
        if not stat.S_ISREG(status.st_mode) and not own:
            if stat.S_ISDIR(status.st_mode):
                raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
            raise InputError(str(path), "is a device or a pipe; give a regular file.")
        parts, size = [], 0
        while part := file.read(MIB):  # a read of all at once would reserve the largest size
            parts.append(part)
            size += len(part)
            if size > MAX_FILE_BYTES:
                raise InputError(str(path), f"is larger than {MAX_FILE_BYTES // MIB} MiB; give a part of it.")
    return b"".join(parts)


def _note_output(path: str | Path, target: Path) -> None:
    """Remember a target right before it is replaced."""
    if not _runs:
        return
    if target.exists() and target not in _runs[-1].written:
        _runs[-1].replaced.append(str(path))
    _runs[-1].written.add(target)


def write_atomically(path: str | Path, content: str | bytes) -> None:
    """
    Write a text (UTF-8, newlines as given) or bytes to a temporary file beside ``path``, then move it there.

    A link stays, and the file that it points to is replaced; what is no file (a pipe, a terminal, ``/dev/null``) is
    written to, and ``-`` is standard output. Raises ``OSError`` with the target's name, and ``OverwriteError`` for a
    file that the command at hand read; the old file is then untouched.
    """
    if is_stdout(path):
        sys.stdout.write(content if isinstance(content, str) else content.decode())
        sys.stdout.flush()
        return
    write_together({Path(path): content})


def write_together(contents: Mapping[Path, str | bytes]) -> None:
    """
    Write several files, of which none makes sense with an old one beside it: all, or none if one fails.

    Raises as :func:`write_atomically` does; the old files are then untouched.
    """
    check_targets(*contents)
    with ExitStack() as temporaries:
        written = []
        for path, content in contents.items():
            target = path.resolve()
            try:
                if target.exists() and not (target.is_file() or target.is_dir()):
                    target.write_bytes(_encoded(content))
                    continue
                written.append((path, temporaries.enter_context(_temporary(target, content)), target))
            except OSError as error:
                raise OSError(error.errno, error.strerror, str(path)) from error
        for path, temporary, target in written:
            _note_output(path, target)
            try:
                temporary.replace(target)
            except OSError as error:
                raise OSError(error.errno, error.strerror, str(path)) from error


def write_with_parts(path: Path, text: str, parts: Mapping[str, str]) -> None:
    """
    Write a file and, beside it, the files that it names: all, or none if one fails.

    The names of parts follow from the file's. ``InputError`` for a part that is there although no file of this name
    names it: it belongs to something else.

    Parameters
    ----------
    parts
        Text of each part, by its name in the folder of the file.
    """
    old = read_output(path) if path.is_file() else b""
    for name in parts:
        part = path.with_name(name)
        if (part.exists() or part.is_symlink()) and name.encode() not in old:
            problem = f"is there already and is no part of {path}, which would replace it; move it, or change -o."
            raise InputError(str(part), problem)
    write_together({**{path.with_name(name): content for name, content in parts.items()}, path: text})


def _encoded(content: str | bytes) -> bytes:
    return content if isinstance(content, bytes) else content.encode("utf-8")


@contextmanager
def _temporary(target: Path, content: str | bytes) -> Iterator[Path]:
    """A file beside the target with its content and permissions; gone at the end unless it was moved."""
    handle, name = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.", suffix=".tmp")
    temporary = Path(name)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(_encoded(content))
        temporary.chmod(_usual_mode(target))
        yield temporary
    finally:
        temporary.unlink(missing_ok=True)


def _usual_mode(target: Path) -> int:
    """Permissions of the file that is replaced, or those of a new file under the current mask."""
    if target.exists():
        return target.stat().st_mode & 0o777
    mask = os.umask(0)
    os.umask(mask)
    return 0o666 & ~mask

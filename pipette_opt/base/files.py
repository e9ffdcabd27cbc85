"""Reading of users' files, and atomic writing that never replaces an input of the same command."""

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
"""Largest file that is read, bytes; a week of logs of a large job is smaller. Chosen."""

STDOUT = "-"
"""File name that stands for standard output, a convention of Unix programs."""


def is_stdout(path: str | Path | None) -> bool:
    """Return whether a file name stands for standard output."""
    return str(path) == STDOUT


@dataclass(slots=True)
class FilesOfRun:
    """
    Files that one run of a command reads and writes.

    Parameters
    ----------
    inputs
        Files that the command read, and files that these name; by device and inode.
    targets
        Existing files that the command will replace: path as given, by device and inode.
    written
        Resolved paths that the command wrote, or whose earlier content it continues.
    replaced
        Paths, as given, of files that existed before the command wrote them.
    hashes
        SHA-256 of each input that was read, by resolved path.
    """

    inputs: set[tuple[int, int]] = field(default_factory=set)
    targets: dict[tuple[int, int], str] = field(default_factory=dict)
    written: set[Path] = field(default_factory=set)
    replaced: list[str] = field(default_factory=list)
    hashes: dict[Path, str] = field(default_factory=dict)


_runs: list[FilesOfRun] = []
"""Runs of commands in progress, the innermost last; empty when the package is used as a library."""


@contextmanager
def files_of_run() -> Iterator[FilesOfRun]:
    """
    Protect the inputs of a command from its outputs until the end of the ``with`` block.

    Only commands open such a block. A program that uses the package as a library may overwrite files that it read.
    """
    run = FilesOfRun()
    _runs.append(run)
    try:
        yield run
    finally:
        _runs.remove(run)


def note_input(path: str | Path) -> None:
    """
    Record an input of the current command, or a file that an input names, as protected; no effect outside a command.

    Raises ``OverwriteError`` if the file was announced as an output by :func:`note_targets`.
    """
    file = _file_of(path) if _runs else None
    if file is None or resolved(path) in _runs[-1].written:
        return
    _runs[-1].inputs.add(file)
    if file in _runs[-1].targets:
        raise _is_input(_runs[-1].targets[file])


def note_targets(*paths: str | Path | None) -> None:
    """Announce the outputs of the command before it reads anything; reading any of them then raises an error."""
    check_targets(*paths)
    for path in paths if _runs else ():
        file = None if path is None or is_stdout(path) else _file_of(path)
        if file is not None and resolved(str(path)) not in _runs[-1].written:
            _runs[-1].targets[file] = str(path)


def note_continued(path: str | Path) -> None:
    """Allow the current command to replace a file that it reads, because it continues the work of an earlier run."""
    if _runs:
        _runs[-1].written.add(resolved(path))


def check_targets(*paths: str | Path | None) -> None:
    """Raise ``OverwriteError`` if an output is a file that the current command read, or that an input names."""
    for path in paths:
        if _runs and path is not None and not is_stdout(path) and _file_of(path) in _runs[-1].inputs:
            raise _is_input(path)


def _is_input(path: str | Path) -> OverwriteError:
    problem = "would overwrite an input file of this command; give the output another name with -o."
    return OverwriteError(str(path), problem)


def _file_of(path: str | Path) -> tuple[int, int] | None:
    """Return device and inode of a regular file; ``None`` for any other path."""
    try:
        status = Path(path).stat()
    except (OSError, ValueError):
        return None
    return (status.st_dev, status.st_ino) if stat.S_ISREG(status.st_mode) else None


def is_file(path: str | Path) -> bool:
    """Return whether a text is the path of a regular file; ``False`` for texts that cannot be a path."""
    try:
        return Path(path).is_file()
    except (OSError, ValueError):
        return False


def is_folder(path: str | Path) -> bool:
    """Return whether a text is the path of a folder; ``False`` for texts that cannot be a path."""
    try:
        return Path(path).is_dir()
    except (OSError, ValueError):
        return False


def resolved(path: str | Path) -> Path:
    """Return the path behind all symbolic links. ``InputError`` for a link that leads to itself."""
    try:
        return Path(path).resolve()
    except (RuntimeError, OSError):  # the first up to Python 3.12
        raise InputError(str(path), "is a symbolic link that leads to itself; give another file.") from None


def refuse_links(writer: str, *paths: Path) -> None:
    """Raise ``InputError`` if a path that ``writer`` writes is a link to any file, a device or a pipe."""
    for path in paths:
        if path.is_symlink():
            raise InputError(str(path), f"is a symbolic link, which {writer} does not follow; remove the link.")
        if path.exists() and not (path.is_file() or path.is_dir()):
            raise InputError(str(path), "is a device or a pipe; remove it.")


def read_bytes(path: str | Path) -> bytes:
    """
    Return the content of an input file.

    Raises ``OSError`` if the file cannot be opened, and :class:`InputError` for devices, for pipes of other processes,
    and for files larger than ``MAX_FILE_BYTES``. In a command, a file that changed since it was first read also raises
    :class:`InputError`.
    """
    note_input(path)
    content = read_output(path)
    if _runs:
        _check_unchanged(Path(path), content)
    return content


def _check_unchanged(path: Path, content: bytes) -> None:
    """Raise ``InputError`` if an input changed since the current command first read it."""
    place = resolved(path)
    if _file_of(place) is None or place in _runs[-1].written:
        return
    now = hashlib.sha256(content).hexdigest()
    if _runs[-1].hashes.setdefault(place, now) != now:
        raise InputError(str(path), "was changed while this command read the file; run the command again.")


def read_output(path: str | Path) -> bytes:
    """Return the content of a file that the command may replace; like :func:`read_bytes`, without protecting it."""
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
                raise InputError(
                    str(path), f"is larger than {MAX_FILE_BYTES // MIB} MiB, the maximum; give a part of the file."
                )
    return b"".join(parts)


def _note_output(path: str | Path, target: Path) -> None:
    """Record an output right before it is replaced."""
    if not _runs:
        return
    if target.exists() and target not in _runs[-1].written:
        _runs[-1].replaced.append(str(path))
    _runs[-1].written.add(target)


def write_atomically(path: str | Path, content: str | bytes) -> None:
    """
    Write a text (UTF-8, newlines as given) or bytes to a temporary file beside ``path``, then rename it to ``path``.

    A symbolic link stays, and its target is replaced. Pipes, terminals and ``/dev/null`` are written directly; ``-`` is
    standard output. Raises ``OSError`` with the path, and ``OverwriteError`` for an input of the current command; the
    old file is then unchanged.
    """
    if is_stdout(path):
        sys.stdout.write(content if isinstance(content, str) else content.decode())
        sys.stdout.flush()
        return
    write_together({Path(path): content})


def write_together(contents: Mapping[Path, str | bytes]) -> None:
    """
    Write several files that belong together: all are prepared first, so that a failed write replaces none of them.

    Raises the errors of :func:`write_atomically`.
    """
    check_targets(*contents)
    with ExitStack() as temporaries:
        written = []
        for path, content in contents.items():
            target = resolved(path)
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
    Write a file together with the files beside it that it names.

    ``parts`` maps file names in the same folder to texts. Raises ``InputError`` if a part exists already and the old
    file does not name it, since it then belongs to something else.
    """
    old = read_output(path) if path.is_file() else b""
    for name in parts:
        part = path.with_name(name)
        if (part.exists() or part.is_symlink()) and name.encode() not in old:
            problem = f"exists, but does not belong to {path}, and would be overwritten; move the file, or change -o."
            raise InputError(str(part), problem)
    write_together({**{path.with_name(name): content for name, content in parts.items()}, path: text})


def _encoded(content: str | bytes) -> bytes:
    return content if isinstance(content, bytes) else content.encode("utf-8")


@contextmanager
def _temporary(target: Path, content: str | bytes) -> Iterator[Path]:
    """Yield a temporary file beside the target with its content and permissions; deleted at the end unless renamed."""
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
    """Return the permissions of the file to replace, or those that a new file gets by the umask."""
    if target.exists():
        return target.stat().st_mode & 0o777
    mask = os.umask(0)
    os.umask(mask)
    return 0o666 & ~mask

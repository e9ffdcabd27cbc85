"""Writing files so that a reader never sees half of one."""

import os
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path

STDOUT = "-"
"""Name that stands for standard output, as usual for programs."""


def is_stdout(path: str | Path | None) -> bool:
    """Whether a name stands for standard output."""
    return str(path) == STDOUT


def write_atomically(path: str | Path, text: str) -> None:
    """
    Write ``text`` (UTF-8, newlines as given) to a temporary file beside ``path``, then move it there.

    A link stays, and the file that it points to is replaced; what is no file (a pipe, a terminal, ``/dev/null``) is
    written to, and ``-`` is standard output. Raises ``OSError`` with the target's name; the old file is then untouched.
    """
    if is_stdout(path):
        sys.stdout.write(text)
        sys.stdout.flush()
        return
    target = Path(path).resolve()
    if target.exists() and not (target.is_file() or target.is_dir()):
        target.write_text(text, encoding="utf-8", newline="")
        return
    try:
        _replace(target, text)
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(path)) from error


def write_together(texts: Mapping[Path, str]) -> None:
    """
    Write several files of one folder, of which none makes sense with an old one beside it: all, or none if one fails.

    Raises ``OSError`` with the name of the file that could not be written; the old files are then untouched.
    """
    with ExitStack() as temporaries:
        written = []
        for path, text in texts.items():
            try:
                written.append((temporaries.enter_context(_temporary(path.resolve(), text)), path.resolve()))
            except OSError as error:
                raise OSError(error.errno, error.strerror, str(path)) from error
        for temporary, target in written:
            temporary.replace(target)


def _replace(target: Path, text: str) -> None:
    with _temporary(target, text) as temporary:
        temporary.replace(target)


@contextmanager
def _temporary(target: Path, text: str) -> Iterator[Path]:
    """A file beside the target with the text and the permissions; gone at the end unless it was moved."""
    handle, name = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.", suffix=".tmp")
    temporary = Path(name)
    try:
        with os.fdopen(handle, "w", encoding="utf-8", newline="") as file:
            file.write(text)
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

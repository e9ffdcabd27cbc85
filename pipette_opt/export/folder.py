"""Writing of an export into a folder, with rules for replacing files."""

import hashlib
from collections.abc import Mapping
from json import dumps
from pathlib import Path

from pipette_opt.base.errors import InputError, shown
from pipette_opt.base.files import check_targets, read_output, refuse_links, write_atomically, write_together
from pipette_opt.base.units import counted, listed
from pipette_opt.read.exported import RECORD, exported_hashes

MAX_NAMED = 3
"""Maximum number of files that an error names. Chosen."""


def write_folder(folder: Path, files: Mapping[str, str], *, force: bool = False) -> None:
    """
    Write the files of an export and a record of their hashes; write nothing if any file must not be replaced.

    Raise ``InputError`` for a symbolic link and for an input file of the command. Without ``force`` also raise it for a
    folder with other files but no record, and for a file that export did not write or that was changed since.
    """
    recorded = exported_hashes(folder)
    for name in files:
        _check(folder / name, recorded.get(name), force=force)
    refuse_links("export", folder / RECORD)
    if not force and not (folder / RECORD).exists():
        _check_empty(folder)
    now = {name: _sha256(text.encode()) for name, text in files.items()}
    hashes = recorded | now
    either = recorded | {name: f"{recorded.get(name, '')} {digest}".strip() for name, digest in now.items()}
    check_targets(*(folder / name for name in files))
    folder.mkdir(parents=True, exist_ok=True)
    texts = {folder / name: text for name, text in files.items()}
    write_atomically(folder / RECORD, _text(either))  # a kill between two files leaves what the next export may replace
    write_together({**texts, folder / RECORD: _text(hashes)})


def _check_empty(folder: Path) -> None:
    """Raise ``InputError`` if the folder contains any files."""
    if folder.is_dir() and (names := sorted(entry.name for entry in folder.iterdir())):
        raise InputError(
            str(folder),
            f"has {counted(len(names), 'file')} that export did not write: {listed([*map(shown, names)], MAX_NAMED)}; "
            "give another folder, or --force to write there.",
        )


def _check(target: Path, recorded: str | None, *, force: bool) -> None:
    """Raise ``InputError`` if the file must not be replaced; ``recorded`` holds its hashes, if known."""
    refuse_links("export", target)
    if not target.exists():
        return
    if not target.is_file():
        raise InputError(str(target), "is no regular file; give another folder.")
    if not force and _sha256(read_output(target)) not in (recorded or "").split():
        wrote = "export did not write it" if recorded is None else "it was changed since export wrote it"
        raise InputError(str(target), f"exists, and {wrote}; give another folder, or --force to replace the file.")


def _text(hashes: Mapping[str, str]) -> str:
    return dumps(hashes, indent=2, sort_keys=True) + "\n"


def _sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()

"""
Compiled functions, cached by what they are compiled from.

numba keys its cache by path and date of the file of a function alone, so a kernel would outlive a change of the kernels
that it calls in other files, and would be compiled again for each installation. Here the folder of the cache is named
after the contents of all that a kernel can see: the files that hold kernels and the files of this package that those
import. All installations with these contents share it.
"""

import atexit
import hashlib
import os
import re
import shutil
import stat
import tempfile
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

PACKAGE = Path(__file__).resolve().parents[1]
"""The folder of this package."""

KERNELS = re.compile(rf"^from {PACKAGE.name}\.base\.jit import njit$", re.MULTILINE)
"""The line by which a file that holds kernels is known."""

IMPORTS = re.compile(rf"^from {PACKAGE.name}\.([\w.]+) import", re.MULTILINE)
"""The modules of this package that a file imports from."""


def njit(**options: Any) -> Callable[[Callable[..., Any]], Any]:
    """:func:`numba.njit` with the package's own cache folder; takes keyword arguments only."""
    import numba
    import numba.core.config as config  # a module whose attributes numba makes at run time

    settings = vars(config)

    def compile_later(function: Callable[..., Any]) -> Any:
        before = settings["CACHE_DIR"]
        settings["CACHE_DIR"] = str(cache_folder())
        try:
            compiled = numba.njit(**options)(function)
        finally:
            settings["CACHE_DIR"] = before
        if options.get("cache") and compiled is not function:  # as it is with NUMBA_DISABLE_JIT
            _find_by_contents(compiled, cache_folder() / function.__module__)
        return compiled

    return compile_later


def _find_by_contents(compiled: Any, folder: Path) -> None:
    """Keep a kernel in a folder that already says its contents, in place of one that numba names by path and date."""
    from numba.core import caching

    cached = compiled._cache
    cached._impl.locator._cache_path = cached._cache_path = str(folder)
    index: Callable[..., Any] = caching.IndexDataCacheFile
    cached._cache_file = index(str(folder), cached._impl.filename_base, source_stamp=None)


def is_cached(compiled: Any) -> bool:
    """Whether there is a cached kernel of a function, for whatever arguments."""
    function = compiled.py_func
    name = f"{function.__module__.rpartition('.')[2]}.{function.__qualname__}-*.nbi"
    return any(True for _ in cache_folder().rglob(name))


@cache
def cache_folder() -> Path:
    """
    Return the folder of compiled kernels, made if need be.

    Below ``NUMBA_CACHE_DIR`` if that is set, else in the user's cache folder, else in a folder for temporary files. An
    index of kernels is a pickle, so whoever writes there runs code here: a folder that is a link, belongs to somebody
    else or may be written by others is passed over. If all are, kernels are compiled into a new folder of this process.
    """
    import numba

    digest = hashlib.sha256(numba.__version__.encode())
    for path in seen_by_kernels():
        digest.update(path.read_bytes())
    for base in _bases():
        folder = base / digest.hexdigest()[:16]
        if _made_private(base) and _made_private(folder):
            return folder
    folder = Path(tempfile.mkdtemp(prefix="pipette-opt-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


def _made_private(folder: Path) -> bool:
    """Make a folder, if it is not there, and return whether nobody but its owner, this user, can write to it."""
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        found = folder.lstat()
    except OSError:
        return False
    mine = stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid()
    return mine and not found.st_mode & (stat.S_IWGRP | stat.S_IWOTH) and os.access(folder, os.W_OK)


def seen_by_kernels() -> list[Path]:
    """The files that hold kernels and those of this package that they import functions or constants from."""
    texts = {path: path.read_text(encoding="utf-8") for path in PACKAGE.rglob("*.py")}
    holders = {path: text for path, text in texts.items() if KERNELS.search(text)}
    imported = {name.replace(".", "/") for text in holders.values() for name in IMPORTS.findall(text)}
    names = {path: path.relative_to(PACKAGE).with_suffix("").as_posix() for path in texts}
    return sorted({*holders, *(path for path, name in names.items() if name in imported)})


def _bases() -> list[Path]:
    given = os.environ.get("NUMBA_CACHE_DIR")
    home = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    user = Path(home).expanduser() / "pipette-opt"
    return [*([Path(given)] if given else []), user, Path(tempfile.gettempdir()) / f"pipette-opt-{os.getuid()}"]

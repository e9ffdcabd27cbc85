"""
Compiled numba functions (kernels) with a disk cache that is keyed by source content.

numba keys its cache by the path and date of a function's own file. A cached kernel would then survive changes of
kernels that it calls in other files, and each installation would compile again. This module names the cache folder
after the content of all files that hold kernels, and of the files of this package that those import. Installations with
the same content share the folder.
"""

import atexit
import hashlib
import os
import re
import shutil
import stat
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

PACKAGE = Path(__file__).resolve().parents[1]
"""Folder of this package."""

KERNELS = re.compile(rf"^from {PACKAGE.name}\.base\.jit import njit$", re.MULTILINE)
"""Import line that marks a file that holds kernels."""

IMPORTS = re.compile(rf"^from {PACKAGE.name}\.([\w.]+) import", re.MULTILINE)
"""Import line that names a module of this package."""


def njit(**options: Any) -> Callable[[Callable[..., Any]], Any]:
    """Return a decorator like :func:`numba.njit` that uses the package's cache folder; takes keyword arguments only."""
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
    """Set a kernel's cache folder and drop numba's check of the source date; the folder's name covers the content."""
    from numba.core import caching

    cached = compiled._cache
    cached._impl.locator._cache_path = cached._cache_path = str(folder)
    index: Callable[..., Any] = caching.IndexDataCacheFile
    cached._cache_file = index(str(folder), cached._impl.filename_base, source_stamp=None)


def is_cached(compiled: Any) -> bool:
    """Return whether the cache has a compiled version of a function, for any argument types."""
    function = compiled.py_func
    name = f"{function.__module__.rpartition('.')[2]}.{function.__qualname__}-*.nbi"
    return any(True for _ in cache_folder().rglob(name))


@contextmanager
def when_compiling(report: Callable[[], None]) -> Iterator[None]:
    """Call ``report`` once if this process compiles a kernel inside the ``with`` block, rather than load it."""
    from numba.core import event

    reported: list[bool] = []

    class Reporter(event.Listener):
        def on_start(self, event: object) -> None:
            if not reported:
                reported.append(True)
                report()

        def on_end(self, event: object) -> None:
            pass

    with event.install_listener("numba:compile", Reporter()):
        yield


@cache
def cache_folder() -> Path:
    """
    Return the folder of compiled kernels; created if needed.

    Below ``NUMBA_CACHE_DIR`` if set, else in the user's cache folder, else in the folder for temporary files. Cache
    entries are pickles, so whoever can write them runs code in this process. A folder that is a link, has another
    owner, or is writable by others is skipped. If all are skipped, a new temporary folder serves this process only.
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
    """Create a folder if needed, and return whether it belongs to this user and only this user can write to it."""
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        found = folder.lstat()
    except OSError:
        return False
    mine = stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid()
    return mine and not found.st_mode & (stat.S_IWGRP | stat.S_IWOTH) and os.access(folder, os.W_OK)


def seen_by_kernels() -> list[Path]:
    """Return the files that hold kernels, and the files of this package that they import from."""
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

"""Where output goes: tables and JSON to standard output, progress and messages to standard error."""

import functools
import json
import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipette_opt.base.errors import InputError, printable
from pipette_opt.base.files import is_stdout, note_targets

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.text import Text

    from pipette_opt.plans.watcher import Progress, Watcher

PLAIN_INTERVAL_S = 5.0
"""Seconds between progress lines where there is no terminal."""


def console(*, stderr: bool = False) -> "Console":
    """A console of at most 100 columns, plain where it is no terminal; control characters of texts are escaped."""
    found = _kinds()[stderr](stderr=stderr, highlight=False, emoji=False)
    if not (found.is_terminal and found.width <= 100):
        found.width = 100
    return found


@functools.cache
def _kinds() -> "tuple[type[Console], type[Console]]":
    """Consoles of standard output and of standard error."""
    from rich.console import Console

    class Answers(Console):
        """Texts in which no name of a file or host moves the cursor of a terminal."""

        def render_str(self, text: str, **options: Any) -> "Text":
            return super().render_str(printable(text), **options)

    class Messages(Answers):
        """Standard error; what cannot be written there nobody reads, and the run goes on."""

        def print(self, *objects: Any, **options: Any) -> None:
            try:
                super().print(*objects, **options)
            except OSError:
                self.quiet = True

        def on_broken_pipe(self) -> None:
            self.quiet = True

    return Answers, Messages


def show(*renderables: "RenderableType", beside: Path | None = None) -> None:
    """Print tables and text; to standard error if ``beside``, a file that is written, too, is standard output."""
    out = console(stderr=is_stdout(beside))
    for one in renderables:
        out.print(one)


def num_lines(*renderables: "RenderableType") -> int:
    """Return the lines that :func:`show` takes for tables and text."""
    out = console()
    return sum(len(out.render_lines(one, pad=False)) for one in renderables)


def show_json(data: Any) -> None:
    """Print one JSON document."""
    console().print(json.dumps(data, indent=2), soft_wrap=True, markup=False)


@dataclass(slots=True)
class _Manner:
    """How much is said: nothing that is no answer, or all of it kept for the JSON document of a command."""

    quiet: bool = False
    verbose: bool = False
    kept: list[str] | None = None


_manner = _Manner()


@contextmanager
def manner(*, quiet: bool, keep: bool, verbose: bool = False) -> Iterator[list[str]]:
    """
    Within it, with ``verbose``, answers have all their tables; with ``quiet``, messages and progress are not printed;
    with ``keep`` they are given back instead.

    Answers, tables and JSON documents, are printed all the same.
    """
    kept: list[str] = []
    before = _manner.quiet, _manner.kept, _manner.verbose
    _manner.quiet, _manner.kept = quiet or keep, kept if keep else None
    _manner.verbose = verbose or _manner.verbose
    try:
        yield kept
    finally:
        _manner.quiet, _manner.kept, _manner.verbose = before


def is_quiet() -> bool:
    """Whether progress is not wanted."""
    return _manner.quiet


def set_verbose(verbose: bool) -> None:
    """Show all tables from here on, or the first screen."""
    _manner.verbose = verbose


def is_verbose() -> bool:
    """Whether all tables are wanted, in place of the first screen."""
    return _manner.verbose


def say(text: str) -> None:
    """Print a message for people."""
    if _manner.kept is not None:
        _manner.kept.append(text)
    elif not _manner.quiet:
        console(stderr=True).print(text, soft_wrap=True, markup=False)


def say_progress(text: str) -> None:
    """Print how far something is; it is no part of an answer."""
    if not _manner.quiet:
        console(stderr=True).print(text, soft_wrap=True, markup=False)


def answer(text: str) -> None:
    """Print lines of an answer that is no table."""
    if _manner.kept is not None:
        _manner.kept.append(text)
    else:
        console().print(text, soft_wrap=True, markup=False)


def check_place(*paths: Path | None) -> None:
    """Raise ``InputError`` for a file that could not be written, or is named twice, before its work begins."""
    taken = set()
    for path in paths:
        if path is None or is_stdout(path):
            continue
        target = path.resolve()
        if target in taken:
            raise InputError(str(path), "is another output of this command, too; give another name.")
        if target.is_file() or not target.exists():  # /dev/null may well take several
            taken.add(target)
        if target.is_dir():
            raise InputError(str(path), "is a folder; give the name of a file.")
        if not target.parent.is_dir():
            raise InputError(str(path), f"there is no folder {path.parent}.")
        if not os.access(target if target.exists() and not target.is_file() else target.parent, os.W_OK):
            raise InputError(str(path), "cannot be written: no permission.")
    note_targets(*paths)


def check_stdout(json: bool, *outputs: Path | None) -> None:
    """Raise ``InputError`` if more than one answer goes to standard output."""
    taken = sum(is_stdout(path) for path in outputs)
    if taken > 1:
        raise InputError("-", "standard output takes one file; give the others names.")
    if taken and json:
        raise InputError("--json", "takes standard output, as -o - does; give one of them, or -o a name.")


def check_file(path: Path, beside: str) -> None:
    """Raise ``InputError`` for standard output where other files are written beside the one named."""
    if is_stdout(path):
        raise InputError("--out", f"needs the name of a file: {beside}.")


def say_written(path: Path, what: str = "") -> None:
    """Say where a file is; nothing of standard output, which everybody sees."""
    if not is_stdout(path):
        say(f"{what} written to {path}".lstrip())


def write_csv(path: Path, rows: list[dict[str, Any]]) -> None:
    """Write rows with the same fields, at least one, with a header."""
    import csv
    import io

    from pipette_opt.base.files import write_atomically

    text = io.StringIO()
    writer = csv.DictWriter(text, fieldnames=list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    write_atomically(path, text.getvalue())


def set_up_logging(verbose: bool) -> None:
    """Warnings by default, everything on request, to standard error."""
    logging.basicConfig(format="%(levelname)s %(name)s: %(message)s")
    logging.getLogger().setLevel(logging.DEBUG if verbose else logging.WARNING)
    logging.getLogger("numba").setLevel(logging.WARNING)


@contextmanager
def live_progress(watcher: "Watcher", *, quiet: bool) -> Iterator[None]:
    """Show the watcher's progress: one live line on a terminal, a line now and then elsewhere."""
    out = console(stderr=True)
    if quiet or _manner.quiet:
        yield
    elif out.is_terminal:
        with out.status("starting") as status:
            watcher.on_progress = lambda progress: status.update(progress_line(progress))
            yield
    else:
        last: dict[str, Any] = {"step": "", "at": -PLAIN_INTERVAL_S}

        def plain(progress: "Progress") -> None:
            kind = progress.step.split("(")[0]
            if kind != last["step"] or progress.elapsed_s - last["at"] >= PLAIN_INTERVAL_S:
                last.update(step=kind, at=progress.elapsed_s)
                out.print(progress_line(progress), soft_wrap=True, markup=False)

        watcher.on_progress = plain
        yield


def progress_line(progress: "Progress") -> str:
    """One line: seconds, step, incumbent, bound, gap."""
    parts = [f"{progress.elapsed_s:6.1f} s", progress.step]
    if progress.objective_s is not None:
        parts.append(f"incumbent {progress.objective_s:.4f} s")
    if progress.lower_bound_s:
        parts.append(f"bound {progress.lower_bound_s:.4f} s")
    if progress.objective_s and progress.lower_bound_s:
        parts.append(f"gap {max(0.0, 1 - progress.lower_bound_s / progress.objective_s):.2%}")
    return "  ".join(parts)

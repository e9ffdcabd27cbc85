"""Output of commands: tables and JSON go to standard output, progress and messages to standard error."""

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
from pipette_opt.base.files import is_stdout, note_targets, resolved

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.text import Text

    from pipette_opt.plans.watcher import Progress, Watcher

PLAIN_INTERVAL_S = 5.0
"""Seconds between progress lines if standard error is not a terminal. Chosen."""


def console(*, stderr: bool = False) -> "Console":
    """Return a console of at most 100 columns, without colours outside a terminal; control characters are escaped."""
    found = _kinds()[stderr](stderr=stderr, highlight=False, emoji=False)
    if not (found.is_terminal and found.width <= 100):
        found.width = 100
    return found


@functools.cache
def _kinds() -> "tuple[type[Console], type[Console]]":
    """Return the classes of consoles for standard output and for standard error."""
    from rich.console import Console

    class Answers(Console):
        """Console that escapes control characters, so that no file or host name moves the terminal's cursor."""

        def render_str(self, text: str, **options: Any) -> "Text":
            return super().render_str(printable(text), **options)

    class Messages(Answers):
        """Console for standard error; if standard error cannot be written, the run continues without messages."""

        def print(self, *objects: Any, **options: Any) -> None:
            try:
                super().print(*objects, **options)
            except OSError:
                self.quiet = True

        def on_broken_pipe(self) -> None:
            self.quiet = True

    return Answers, Messages


def show(*renderables: "RenderableType", beside: Path | None = None) -> None:
    """Print tables and text; to standard error if the output file ``beside`` is standard output."""
    out = console(stderr=is_stdout(beside))
    for renderable in renderables:
        out.print(renderable)


def show_json(data: Any) -> None:
    """Print one JSON document; its text has no control characters to escape."""
    file = console().file
    file.write(json.dumps(data, indent=2) + "\n")
    file.flush()


@dataclass(slots=True)
class _Manner:
    """State of the output: whether to print messages, show all tables, or keep messages for JSON."""

    quiet: bool = False
    verbose: bool = False
    kept: list[str] | None = None


_manner = _Manner()


@contextmanager
def manner(*, quiet: bool, keep: bool, verbose: bool = False) -> Iterator[list[str]]:
    """
    Context that sets the output; yields the list of kept messages.

    Parameters
    ----------
    quiet
        Print no messages and no progress; answers are printed.
    keep
        Keep messages in the yielded list instead of printing them.
    verbose
        Show all tables of an answer.
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
    """Return whether progress is suppressed."""
    return _manner.quiet


def set_verbose(verbose: bool) -> None:
    """Set whether later answers show all tables, or the first screen only."""
    _manner.verbose = verbose


def is_verbose() -> bool:
    """Return whether answers show all tables instead of the first screen."""
    return _manner.verbose


def say(text: str) -> None:
    """Print a message on standard error, or keep it for the JSON document; ``--quiet`` suppresses it."""
    if _manner.kept is not None:
        _manner.kept.append(text)
    elif not _manner.quiet:
        console(stderr=True).print(text, soft_wrap=True, markup=False)


def say_progress(text: str) -> None:
    """Print the progress of a measurement on standard error; it is never part of a JSON document."""
    if not _manner.quiet:
        console(stderr=True).print(text, soft_wrap=True, markup=False)


def answer(text: str) -> None:
    """Print a text answer on standard output, or keep it for the JSON document."""
    if _manner.kept is not None:
        _manner.kept.append(text)
    else:
        console().print(text, soft_wrap=True, markup=False)


def check_outputs(json: bool, *paths: Path | None) -> None:
    """Raise ``InputError`` if a file to write cannot be written or is named twice, or two outputs go to one stream."""
    check_place(*paths)
    check_stdout(json, *paths)


def check_place(*paths: Path | None) -> None:
    """Raise ``InputError`` for an output file that cannot be written or that is named twice."""
    taken = set()
    for path in paths:
        if path is None or is_stdout(path):
            continue
        target = resolved(path)
        if target in taken:
            raise InputError(str(path), "is given for two outputs of this command; give each output its own file name.")
        if target.is_file() or not target.exists():  # /dev/null may well take several
            taken.add(target)
        if target.is_dir():
            raise InputError(str(path), "is a folder; give a file name.")
        if not target.parent.is_dir():
            raise InputError(str(path), f"cannot be written: the folder {path.parent} does not exist.")
        if not os.access(target if target.exists() and not target.is_file() else target.parent, os.W_OK):
            raise InputError(str(path), "cannot be written: permission denied.")
    note_targets(*paths)


def check_stdout(json: bool, *outputs: Path | None) -> None:
    """Raise ``InputError`` if two outputs go to standard output."""
    taken = sum(is_stdout(path) for path in outputs)
    if taken > 1:
        raise InputError(
            "-", "is given for two outputs, but standard output takes only one; give the other a file name."
        )
    if taken and json:
        raise InputError("--json", "and -o - both write to standard output; give -o a file name, or leave out --json.")


def check_file(path: Path, beside: str) -> None:
    """Raise ``InputError`` if ``path`` is standard output; ``beside`` says why a file is needed."""
    if is_stdout(path):
        raise InputError("--out", f"must be a file name, not -: {beside}.")


def say_written(path: Path, content: str = "") -> None:
    """Print the path of a written file; for standard output print nothing."""
    if not is_stdout(path):
        say(f"{content} written to {path}".lstrip())


def write_csv(path: Path, rows: list[dict[str, Any]]) -> None:
    """Write rows, at least one, as CSV with a header; all rows have the fields of the first."""
    import csv
    import io

    from pipette_opt.base.files import write_atomically

    text = io.StringIO()
    writer = csv.DictWriter(text, fieldnames=list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    write_atomically(path, text.getvalue())


def set_up_logging(verbose: bool) -> None:
    """Send warnings to standard error, ``warning: ...``; with ``verbose`` all log messages."""
    for level in (logging.DEBUG, logging.INFO, logging.WARNING, logging.ERROR, logging.CRITICAL):
        logging.addLevelName(level, logging.getLevelName(level).lower())
    logging.basicConfig(format="%(levelname)s: %(message)s")
    logging.getLogger().setLevel(logging.DEBUG if verbose else logging.WARNING)
    logging.getLogger("numba").setLevel(logging.WARNING)


@contextmanager
def live_progress(watcher: "Watcher", *, quiet: bool) -> Iterator[None]:
    """Show the watcher's progress: a live line on a terminal, otherwise a line every few seconds."""
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
    """Return a progress line: seconds, step, best time found, lower bound, and how far the time is above it."""
    from pipette_opt.base.units import percent_above

    parts = [f"{progress.elapsed_s:6.1f} s", progress.step]
    if progress.objective_s is not None:
        parts.append(f"incumbent {progress.objective_s:.4f} s")
    if progress.lower_bound_s:
        parts.append(f"bound {progress.lower_bound_s:.4f} s")
    if progress.objective_s and progress.lower_bound_s:
        parts.append(f"at most {percent_above(1 - progress.lower_bound_s / progress.objective_s)} above the best")
    return "  ".join(parts)

"""Runner of benchmarks that write a page: options, progress, the line that says how it was made, and the file."""

import argparse
import inspect
import os
import platform
import subprocess
import sys
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

from pipette_opt import __version__
from pipette_opt.base.errors import PipetteError
from pipette_opt.base.files import write_atomically

ROOT = Path(__file__).resolve().parents[1]

RESULTS = ROOT / "benchmarks" / "results"
"""Folder of the pages."""


class Option(NamedTuple):
    """Option of a page's command: names, and the arguments of ``ArgumentParser.add_argument``."""

    names: tuple[str, ...]
    settings: dict[str, Any]


def option(*names: str, **settings: Any) -> Option:
    """Return an option; arguments as of ``ArgumentParser.add_argument``."""
    return Option(names, settings)


def run_page(
    make: Callable[[argparse.Namespace], Iterable[str]],
    *options: Option,
    out: Path | None = None,
    arguments: Sequence[str] | None = None,
) -> None:
    """
    Run a benchmark: parse its options, and write each text that ``make`` yields to the file of ``-o``, whole.

    Parameters
    ----------
    make
        Function that yields the page after each part of the work; the last page is complete. Its module's docstring is
        the help text.
    out
        File without ``-o``; by default the last page is printed.
    arguments
        Arguments of the command line; by default those of the process.
    """
    about = inspect.getdoc(inspect.getmodule(make)) or ""
    parser = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    for names, settings in options:
        parser.add_argument(*names, **settings)
    parser.add_argument("-o", "--out", type=Path, default=out, help="file for the page; default: %(default)s")
    given, text = parser.parse_args(arguments), ""
    try:
        for text in make(given):
            if given.out is not None:
                write_atomically(given.out, text)
    except PipetteError as error:
        parser.error(str(error))
    if given.out is None:
        print(text)


def say(text: str) -> None:
    """Print a line of progress to standard error."""
    print(text, file=sys.stderr, flush=True)


def made_by() -> str:
    """Return the line of a page that names date, versions, commit, machine and command."""
    packages = ", ".join(f"{name} {version(name)}" for name in ("numpy", "ortools"))
    load = f", load {os.getloadavg()[0]:.1f}" if hasattr(os, "getloadavg") else ""
    return (
        f"{datetime.now(UTC):%Y-%m-%d}, pipette-opt {__version__} (commit {commit()}), Python "
        f"{platform.python_version()}, {packages}, {os.cpu_count()} cores of {platform.machine()}{load}: `{command()}`."
    )


def commit() -> str:
    """Return the commit of the checkout; ``unknown`` without git."""
    words = ("git", "-C", str(ROOT), "describe", "--always", "--dirty")
    try:
        return subprocess.run(words, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return "unknown"


def command() -> str:
    """Return the command line of this process without ``-o`` and its file."""
    spec = getattr(sys.modules["__main__"], "__spec__", None)
    words = ["python", "-m", spec.name.removesuffix(".__main__")] if spec else ["python", sys.argv[0]]
    is_file = False
    for word in sys.argv[1:]:
        if not is_file and word not in ("-o", "--out") and not word.startswith("--out="):
            words.append(word)
        is_file = word in ("-o", "--out")
    return " ".join(words)


def table(head: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Return a Markdown table; its last line ends with a newline."""
    lines = [head, ["---"] * len(head), *rows]
    return "".join(f"| {' | '.join(map(str, line))} |\n" for line in lines)

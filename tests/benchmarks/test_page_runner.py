"""Runner of benchmarks that write a page."""

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks.page import command, made_by, option, run_page, table


def made(given: argparse.Namespace) -> Iterator[str]:
    """Yield a page after each of ``count`` parts."""
    for part in range(given.count):
        yield f"{part + 1} of {given.count}\n"


COUNT = option("--count", type=int, default=2, help="number of parts")


def test_last_page_is_printed_or_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Without a file the whole page is printed; with one, each page is written, the last one whole."""
    run_page(made, COUNT, arguments=[])
    assert capsys.readouterr().out == "2 of 2\n\n"
    out, other = tmp_path / "page.md", tmp_path / "other.md"
    run_page(made, COUNT, out=out, arguments=["--count", "3"])
    assert out.read_text() == "3 of 3\n"
    run_page(made, COUNT, out=out, arguments=["-o", str(other)])
    assert other.read_text() == "2 of 2\n"
    assert not capsys.readouterr().out


def test_page_says_how_it_was_made(monkeypatch: pytest.MonkeyPatch) -> None:
    """The line has the command without the page's file."""
    monkeypatch.setattr(sys, "argv", ["x", "--count", "3", "-o", "page.md", "--out=page.md", "--quick"])
    assert command().endswith(" --count 3 --quick")
    assert f"`{command()}`." in made_by()


def test_table() -> None:
    """A line for the head, one below it, and one for each row."""
    assert table(("a", "b"), [(1, "x")]) == "| a | b |\n| --- | --- |\n| 1 | x |\n"

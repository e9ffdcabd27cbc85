"""How-to pages are followed: their edits in a copy of the checkout, then their commands, which print what they show."""

import re
from pathlib import Path

import pytest
from factories import make_plan
from pages import ROOT, agrees, apply, changed, checkout, commands_of, edits_of, run

from pipette_opt.report.plan_file import write_plan

PAGES = sorted((ROOT / "docs" / "how-to").glob("add-*.md"))

MAX_LINES = 80
"""Longest how-to page."""


@pytest.mark.search
@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.stem)
def test_following_a_page_gives_what_it_shows(path: Path, tmp_path: Path) -> None:
    """In a copy of the checkout, with a small plan; all files that the page counts are changed, or new."""
    page = path.read_text("utf-8")
    folder, commands = checkout(tmp_path), commands_of(page)
    apply(edits_of(page), folder)
    write_plan(make_plan(), folder / "plan.json")
    assert commands
    for command in commands:
        printed = run(command, folder)
        assert agrees(command.output, printed), f"{' '.join(command.words)}\n{printed}"
    for name in counted_files(page):
        assert not (ROOT / name).exists() or (ROOT / name).read_bytes() != (folder / name).read_bytes()


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.stem)
def test_a_page_counts_the_files_that_it_touches(path: Path) -> None:
    """All that it edits, examples apart; and it is short."""
    page = path.read_text("utf-8")
    edited = {edit.path for edit in edits_of(page) if not edit.path.startswith("example/")}
    assert edited <= set(counted_files(page))
    assert len(page.splitlines()) <= MAX_LINES


def counted_files(page: str) -> list[str]:
    """Return the files below ``Files:``, as many as it says."""
    count, listed = re.search(r"^Files: (\d+)\.(.*(?:\n.+)*)", page, re.MULTILINE).groups()  # type: ignore[union-attr]
    names = re.findall(r"`([^` ]+)`", listed)
    assert len(set(names)) == int(count)
    return names


def test_lines_of_a_diff_stand_in_the_file_once() -> None:
    """Otherwise the page is out of date, or says too little."""
    assert changed("a\nb\nc\n", " a\n-b\n+d\n c\n", "file") == "a\nd\nc\n"
    for text in ("a\nx\nc\n", "a\nb\nc\na\nb\nc\n"):
        with pytest.raises(ValueError, match="the page needs them once"):
            changed(text, " a\n-b\n+d\n c\n", "file")


def test_dots_stand_for_any_lines() -> None:
    """And for nothing else."""
    assert agrees("a\n...\nc\n", "a\nb\nb\nc  \n")
    assert agrees("...\nc\n", "c\n")
    assert not agrees("a\n...\nc\n", "a\nb\n")
    assert not agrees("a\n", "a\nb\n")

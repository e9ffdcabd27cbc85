"""Files that say which release this is agree."""

import re
from pathlib import Path

import yaml

import pipette_opt

ROOT = Path(__file__).resolve().parents[1]


HEADINGS = re.compile(r"^## (.*)$", re.MULTILINE)
"""Headings of releases in the changelog."""

RELEASED = re.compile(r"(\d+\.\d+\.\d+) - (\d{4}-\d{2}-\d{2})")
"""Version and day of a release."""

MAX_ENTRY_CHARACTERS = 240
"""Longest entry of the changelog: two lines."""


def test_version_and_day_of_the_release_agree() -> None:
    """The cited version is the package's; the newest release of the changelog, if any, has it and the cited day."""
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert citation["version"] == pipette_opt.__version__
    released = [found.groups() for heading in _releases() if (found := RELEASED.fullmatch(heading))]
    assert released[:1] in ([], [(pipette_opt.__version__, str(citation["date-released"]))])


def test_the_first_release_says_that_it_is_a_preview() -> None:
    """And that options and plan files change in the next, before any entry."""
    text = (ROOT / "CHANGELOG.md").read_text("utf-8")
    introduction = " ".join(re.split(r"^## .*$", text, flags=re.MULTILINE)[-1].partition("\n### ")[0].split())
    assert "0.1.0, the first release, is a preview." in introduction
    assert "Options and plan files change in 0.2.0" in introduction


def test_changelog_has_the_form_that_it_names() -> None:
    """Releases are dated, newest first; each has short entries in sections of known names, in one order."""
    releases = _releases()
    dated = releases[1:] if releases[0] == "Unreleased" else releases
    assert all(RELEASED.fullmatch(heading) for heading in dated), dated
    days = [heading.split(" - ")[1] for heading in dated]
    assert days == sorted(days, reverse=True)
    for text in HEADINGS.split((ROOT / "CHANGELOG.md").read_text())[2::2]:
        sections = re.findall(r"^### (.*)$", text, re.MULTILINE)
        assert sections == [name for name in ("Added", "Changed", "Fixed") if name in sections]
        entries = re.findall(r"^- (.*(?:\n  .*)*)", text, re.MULTILINE)
        assert entries
        assert not [entry for entry in entries if len(entry) > MAX_ENTRY_CHARACTERS]


def _releases() -> list[str]:
    return HEADINGS.findall((ROOT / "CHANGELOG.md").read_text())


def test_every_page_of_results_is_in_their_list() -> None:
    """A page that is new or gone changes the list."""
    folder = ROOT / "benchmarks" / "results"
    listed = set(re.findall(r"\]\((\S+\.md)\)", (folder / "README.md").read_text()))
    assert listed == {path.name for path in folder.glob("*.md")} - {"README.md"}

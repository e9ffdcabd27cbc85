"""Files that say which release this is agree."""

import re
from pathlib import Path

import yaml

import pipette_opt

ROOT = Path(__file__).resolve().parents[1]


def test_the_version_is_the_same_everywhere() -> None:
    """The package, the citation and the newest heading of the changelog."""
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    newest = next(line for line in (ROOT / "CHANGELOG.md").read_text().splitlines() if line.startswith("## "))
    assert citation["version"] == pipette_opt.__version__
    assert newest.split()[1] == pipette_opt.__version__


def test_every_page_of_results_is_in_their_list() -> None:
    """A page that is new or gone changes the list."""
    folder = ROOT / "benchmarks" / "results"
    listed = set(re.findall(r"\]\((\S+\.md)\)", (folder / "README.md").read_text()))
    assert listed == {path.name for path in folder.glob("*.md")} - {"README.md"}

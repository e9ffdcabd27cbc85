"""The lock file of CI's environment says exact versions, and what in it is stale."""

import re
import tomllib
from pathlib import Path

import pytest
from locked_versions import CONSTRAINTS, LEFT_OUT, stale_lines, text_of

VERSIONS = {"numpy": "2.0.1", "torch": "2.13.0"}


def test_a_file_of_these_versions_is_not_stale() -> None:
    """And another Python's file is not compared."""
    text = text_of(VERSIONS, "3.11")
    assert stale_lines(text, VERSIONS, "3.11") == []
    assert stale_lines(text, {}, "3.12") == []


def test_new_changed_and_needless_packages_are_stale() -> None:
    """Each as a line to add or to remove."""
    text = text_of(VERSIONS, "3.11")
    assert stale_lines(text, {"numpy": "2.1.0", "ray": "2.9.0"}, "3.11") == [
        "+numpy==2.1.0",
        "+ray==2.9.0",
        "-numpy==2.0.1",
        "-torch==2.13.0",
    ]


@pytest.mark.skipif(not CONSTRAINTS.is_file(), reason="source archives have no lock file")
def test_the_file_has_one_version_of_each_package() -> None:
    """No registry, path or local version is in it."""
    head, *lines = CONSTRAINTS.read_text().splitlines()
    assert head.startswith("# Python ")
    assert all(re.fullmatch(r"[a-z0-9-]+==[A-Za-z0-9.]+", line) for line in lines), lines
    names = [line.partition("==")[0] for line in lines]
    assert names == sorted(set(names))


@pytest.mark.skipif(not CONSTRAINTS.is_file(), reason="source archives have no lock file")
def test_every_requirement_is_locked() -> None:
    """A requirement added to ``pyproject.toml`` alone fails here, before CI has made its environment."""
    project = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text())["project"]
    required = [
        *project["dependencies"],
        *(text for extra in project["optional-dependencies"].values() for text in extra),
    ]
    names = {re.split(r"[^A-Za-z0-9_.-]", text)[0].lower().replace("_", "-") for text in required}
    locked = {line.partition("==")[0] for line in CONSTRAINTS.read_text().splitlines()[1:]}
    assert not {name for name in names - locked if not LEFT_OUT.fullmatch(name)}

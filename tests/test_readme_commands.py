"""What the README tells a new user to type is there, whole, and names extras that exist."""

import re
import tomllib
from pathlib import Path

import pytest
from readme_commands import README, readme_command

ROOT = Path(__file__).resolve().parents[1]
PAGES = [ROOT / name for name in ("README.md", "CONTRIBUTING.md", ".ci/run")] + list(ROOT.glob("docs/**/*.md"))
"""Texts that tell what to install."""


def test_both_commands_are_found() -> None:
    """The first installs the plain package and solves an example, the second installs the test extra and tests."""
    text = README.read_text(encoding="utf-8")
    for name, install in (("solve", "pip install ."), ("test", "pip install '.[test]'")):
        assert readme_command(name, text).startswith(install)


def test_one_block_and_no_other() -> None:
    """Prose, output and several blocks are not taken for a command."""
    block = "```\npip install . && pipette-opt solve --example lab-2x8\n```\n"
    text = f"Run `pip install .` and `pipette-opt solve --example x`.\n\n```\n$ pytest\n```\n{block}"
    assert readme_command("solve", text) == "pip install . && pipette-opt solve --example lab-2x8\n"
    for wrong in (block * 2, "", block.replace("pip install", "pip uninstall")):
        with pytest.raises(ValueError, match="there must be one"):
            readme_command("solve", wrong)


def test_extras_that_are_named_exist() -> None:
    """In pages, in .ci/run, and in messages of the program."""
    known = set(tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"])
    texts = [*PAGES, *ROOT.glob("pipette_opt/**/*.py")]
    named = {
        extra.strip()
        for path in texts
        if path.is_file()
        for extras in re.findall(r"(?:pipette-opt|['\" ]\.)\\*\[([a-z, ]+)\\*\]", path.read_text(encoding="utf-8"))
        for extra in extras.split(",")
    }
    assert {"test", "torch"} <= named
    assert named <= known

"""Commands that moved out of ``pipette-opt``."""

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from pipette_opt.cli.moved import MOVED

Command = Callable[..., tuple[int, str, str]]

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("words", MOVED)
@pytest.mark.parametrize("options", [(), ("--help",), ("--csv", "rows.csv", "--json")])
def test_old_names_say_where_the_command_is(command: Command, words: str, options: tuple[str, ...]) -> None:
    """Exit code 2 and the new command, whatever options follow; the new command exists."""
    code, out, err = command(*words.split(), *options)
    assert code == 2
    assert f"is now `python -m {MOVED[words]}`" in (out if "--json" in options else err)
    path = ROOT / MOVED[words].replace(".", "/")
    assert not (ROOT / "benchmarks").is_dir() or path.with_suffix(".py").is_file() or (path / "__main__.py").is_file()


def test_help_lists_no_old_name(command: Command) -> None:
    """The help of a group has only commands that it runs."""
    for group in {words.split()[0] for words in MOVED}:
        _, out, _ = command(group, "--help")
        for words in MOVED:
            assert not re.search(rf"^\W*{words.split()[1]}\s{{2}}", out, re.MULTILINE)

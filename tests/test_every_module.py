"""What all commands of a checkout have in common."""

import inspect
import re
import shlex
from pathlib import Path

import pytest
from modules_here import COMMANDS, parsed_by, typed_module

EXAMPLE = re.compile(r"\[bold\]python -m ([^\[]*)\[/\]")
"""A line to type in the text of a command's help."""


@pytest.mark.parametrize("name", COMMANDS)
def test_options_and_examples(name: str) -> None:
    """Options of all commands, a help that begins with a sentence, and examples that the command takes."""
    parsed = parsed_by(name)
    options = {one for parameter in parsed.params for one in parameter.opts}
    assert {"--json", "--quiet", "-q", "--verbose", "-v"} <= options
    assert inspect.cleandoc(parsed.help).split("\n\n")[0].rstrip().endswith((".", "?"))
    examples = EXAMPLE.findall(parsed.help)
    assert examples
    for text in examples:
        first, *rest = shlex.split(text)
        assert first == name
        parsed.make_context(name, rest)


@pytest.mark.parametrize("name", COMMANDS)
def test_help_cuts_no_option_at_80_columns(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each name of each option stands whole, and texts are wrapped."""
    monkeypatch.setattr("commands_here.COLUMNS", "80")
    code, out, _ = typed_module(tmp_path, name, "--help")
    assert code == 0
    names = {one for parameter in parsed_by(name).params for one in parameter.opts if one.startswith("--")}
    assert names <= set(re.findall(r"--[\w-]+", out))
    assert all(len(line) <= 80 or line.lstrip().startswith("-") for line in out.splitlines())

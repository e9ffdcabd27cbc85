"""What all commands have in common: options, examples that can be typed, plain output, errors as JSON."""

import inspect
import json
import re
import shlex
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import typer.main

from pipette_opt.cli.app import SHOWS_MORE, app
from pipette_opt.cli.output import answer, manner, say, say_progress

Command = Callable[..., tuple[int, str, str]]

EXAMPLE = re.compile(r"\[bold\]((?:srun|torchrun)?[^\[]*?pipette[-_]opt (?:[^\[]|\[\d)*?)\[/\]")
"""A line to type in the text of a command's help."""


def commands(group: Any = None, words: tuple[str, ...] = ()) -> Iterator[tuple[str, Any]]:
    """Each command by its words, groups excluded."""
    for name, one in (typer.main.get_command(app) if group is None else group).commands.items():
        if hasattr(one, "commands"):
            yield from commands(one, (*words, name))
        else:
            yield " ".join((*words, name)), one


COMMANDS = dict(commands())


@pytest.mark.parametrize("name", COMMANDS)
def test_options_of_all(name: str) -> None:
    """``--json`` and ``--quiet``, ``--verbose`` where it shows more, and a help that begins with a sentence."""
    command = COMMANDS[name]
    options = {one for parameter in command.params for one in parameter.opts}
    assert {"--json", "--quiet", "-q"} <= options
    assert ({"--verbose", "-v"} <= options) is (name.split()[-1] in SHOWS_MORE)
    assert inspect.cleandoc(command.help).split("\n\n")[0].rstrip().endswith((".", "?"))


READ_LAUNCHES = {"--launch", "--measured"}
"""Options whose value may be a launch script."""


@pytest.mark.parametrize("name", COMMANDS)
def test_variables_can_be_given_wherever_a_launch_is_read(name: str) -> None:
    """A script may use variables that only its user knows."""
    options = {one for parameter in COMMANDS[name].params for one in parameter.opts}
    assert not options & READ_LAUNCHES or "--env" in options


@pytest.mark.parametrize("name", COMMANDS)
def test_examples_can_be_typed(name: str) -> None:
    """Each help has an example, of this command, whose options and arguments the command takes."""
    examples = [" ".join(text.split()) for text in EXAMPLE.findall(COMMANDS[name].help)]
    assert examples
    for text in examples:
        words = shlex.split(text)
        start = next(place for place, word in enumerate(words) if word in ("pipette-opt", "pipette_opt"))
        rest = words[start + 1 :]
        assert rest[: len(name.split())] == name.split()
        COMMANDS[name].make_context(name, rest[len(name.split()) :])


@pytest.mark.parametrize("name", COMMANDS)
def test_help_cuts_no_option_at_80_columns(name: str, command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each name of each option stands whole, and texts are wrapped."""
    monkeypatch.setenv("COLUMNS", "80")
    code, out, _ = command(*name.split(), "--help")
    names = [one for parameter in COMMANDS[name].params for one in parameter.opts if one.startswith("--")]
    assert code == 0
    assert set(names) <= set(re.findall(r"--[\w-]+", out))
    assert all(len(line) <= 80 or line.lstrip().startswith("-") for line in out.splitlines())
    assert "…" not in out
    assert "[bold]" not in out


@pytest.mark.parametrize("name", COMMANDS)
def test_a_wrong_option_is_one_document(name: str, command: Command) -> None:
    """With ``--json`` an error is JSON on standard output, and nothing else is there."""
    code, out, _ = command(*name.split(), "--no-such-option", "--json")
    assert code == 2
    assert set(json.loads(out)["error"]) == {"place", "problem", "exit_code"}


def test_a_file_that_is_written_is_a_document(command: Command, tmp_path: Path) -> None:
    """A command whose answer is a file says where it is, in people's words or as JSON, or is quiet."""
    arguments = ("init", "--nodes", "2", "--gpu", "h100", "-o", "cluster.yaml")
    code, out, err = command(*arguments)
    assert (code, out) == (0, "")
    assert "cluster written to cluster.yaml" in err
    code, out, err = command(*arguments, "--force", "--json")
    assert (code, err) == (0, "")
    found = json.loads(out)
    assert found["out"] == "cluster.yaml"
    assert "cluster written to cluster.yaml" in found["said"]
    assert command(*arguments, "--force", "--quiet") == (0, "", "")
    assert (tmp_path / "cluster.yaml").is_file()
    code, out, _ = command("init", "--nodes", "2", "-o", "-", "--json")
    assert code == 2
    assert json.loads(out)["error"]["place"] == "--json"


def test_quiet_leaves_the_answer(capsys: pytest.CaptureFixture[str]) -> None:
    """Messages and progress are silent, lines of an answer are not; kept, all but progress is given back."""
    with manner(quiet=True, keep=False) as kept:
        say("message")
        say_progress("1 of 2")
        answer("answer")
    assert (kept, capsys.readouterr()) == ([], ("answer\n", ""))
    with manner(quiet=False, keep=True) as kept:
        say("message")
        say_progress("1 of 2")
        answer("answer")
    assert (kept, capsys.readouterr()) == (["message", "answer"], ("", ""))
    say("message")
    assert capsys.readouterr() == ("", "message\n")


@pytest.mark.parametrize(
    ("variables", "is_coloured", "is_styled"),
    [({}, False, False), ({"FORCE_COLOR": "1"}, True, True), ({"FORCE_COLOR": "1", "NO_COLOR": "1"}, False, True)],
)
def test_colours(
    variables: dict[str, str],
    is_coloured: bool,
    is_styled: bool,
    command: Command,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Plain where it is piped; no colour with NO_COLOR (https://no-color.org), where bold may stay."""
    for name in ("FORCE_COLOR", "NO_COLOR", "TTY_COMPATIBLE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TERM", "xterm-256color")
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    _, _, err = command("models", "no-such-model")
    assert bool(re.search(r"\x1b\[[\d;]*3\d", err)) is is_coloured
    assert ("\x1b[" in err) is is_styled

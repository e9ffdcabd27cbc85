"""One rule for numbers, digits 0 to 9; one for names, no character that cannot be seen; links that lead nowhere."""

import ast
import re
from collections.abc import Callable
from pathlib import Path

import pytest

import pipette_opt
from pipette_opt.base.errors import INVISIBLE, InputError, visible
from pipette_opt.base.files import files_of_run, note_continued, note_targets, resolved, write_atomically
from pipette_opt.base.offload import offload_of
from pipette_opt.cli.option_names import _check_digits, _check_ways, _Typed
from pipette_opt.library.tune import regret_of
from pipette_opt.options.description import fields_of
from pipette_opt.options.questions import WhatifOptions
from pipette_opt.options.values import MAX_SIZE, field_value, sizes
from pipette_opt.read.files import read_yaml
from pipette_opt.read.gpus import read_gpu_entry
from pipette_opt.read.model_names import preset_called
from pipette_opt.read.nics import parse_nics

PACKAGE = Path(pipette_opt.__file__).parent


def test_patterns_know_ascii_digits_alone() -> None:
    """No pattern of the package has the class of digits of all scripts."""
    found = []
    for path in PACKAGE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and "\\d" in node.value:
                found.append(f"{path.name}:{node.lineno}")
    assert not found


@pytest.mark.parametrize("digits", ["\u0662", "\uff12", "\u0968", "1_0", "\u00b2"])
@pytest.mark.parametrize(
    "read",
    [
        lambda text: sizes("--tp", text),
        lambda text: field_value(fields_of(WhatifOptions)["link_speed"], text, "--link-speed"),
        lambda text: regret_of(f"{text}%"),
        lambda text: offload_of(f"layers:{text}"),
        lambda text: offload_of(f"optimizer:0.{text}"),
        lambda text: parse_nics(f"{text}x400", "nics"),
        lambda text: _check_digits("--seed", [_Typed("--seed", text if text != "\u00b2" else "1_0")]),
    ],
)
def test_other_digits_are_no_numbers(read: Callable[[str], object], digits: str) -> None:
    """Digits of other scripts and underscores, which Python reads, are refused wherever a number is read."""
    with pytest.raises(ValueError, match=r"must|no number"):
        read(digits)


@pytest.mark.parametrize("number", [MAX_SIZE + 1, 10**20, 10**17])
def test_whole_numbers_out_of_range_are_errors(number: int) -> None:
    """Whether text or number, a size that no job has is refused."""
    with pytest.raises(InputError, match="--mbs: must be"):
        sizes("--mbs", str(number))


@pytest.mark.parametrize("sign", ["\u200b", "\u200d", "\u202e", "\ufeff", "\u00ad", "\u2060", "\u3164", "\U000e0041"])
def test_names_have_no_invisible_character(sign: str, tmp_path: Path) -> None:
    """A name with one is refused, in files and in look-ups, and the message shows where it is."""
    assert INVISIBLE.search(sign)
    for look in (read_gpu_entry, preset_called):
        with pytest.raises(InputError, match=r"has the invisible character .* behind 'a1'"):
            look(f"a1{sign}00-80gb")
    (tmp_path / "job.yaml").write_text(f'cluster: {{nodes: 1, gpu: "a100{sign}-80gb"}}\n', encoding="utf-8")
    with pytest.raises(InputError, match=r"invisible character in|not valid YAML") as caught:
        read_yaml(tmp_path / "job.yaml")
    assert sign not in str(caught.value)


def test_names_that_people_write_stay() -> None:
    """Letters of any script, blanks and emoji can be seen."""
    for name in ("H100 SXM", "caf\u00e9", "\u6a21\u578b-7b", "a\u0300"):
        assert visible(name, "model") == name


def test_a_link_to_itself_is_one_line(tmp_path: Path) -> None:
    """As an output, an input or a continued file, it is named and no traceback."""
    loop = tmp_path / "loop.json"
    loop.symlink_to(loop)
    (tmp_path / "first").symlink_to(tmp_path / "second")
    (tmp_path / "second").symlink_to(tmp_path / "first")
    for path in (loop, tmp_path / "first"):
        for use in (resolved, note_continued, lambda path: write_atomically(path, "x")):
            with files_of_run(), pytest.raises(InputError, match="is a symbolic link that leads to itself"):
                use(path)
        with files_of_run():
            note_targets(path)


def test_an_option_and_its_opposite() -> None:
    """Both together are an error, each alone is none."""

    class Parameter:
        opts, secondary_opts = ("--overlap",), ("--no-overlap",)

    typed = {"--overlap": [_Typed("--overlap", None)]}
    _check_ways(Parameter, typed)
    with pytest.raises(InputError, match="--overlap: is given together with its opposite --no-overlap"):
        _check_ways(Parameter, typed | {"--no-overlap": [_Typed("--no-overlap", None)]})


def test_an_option_given_twice_is_said(capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture) -> None:
    """The last counts, as ever; that there are two is a warning."""
    from pipette_opt.cli.option_names import with_usual_names

    class Parameter:
        param_type_name, opts, secondary_opts = "option", ("--seed",), ()
        is_flag, count, nargs, multiple = False, False, 1, False

    assert with_usual_names([Parameter], ["--seed", "1", "--seed", "2"], check=True) == ["--seed", "1", "--seed", "2"]
    assert "--seed is given twice; the last, '2', counts" in caplog.text
    assert re.search("twice", caplog.text)

"""``memory evaluate`` without measured runs, and with a wrong folder."""

from pathlib import Path

import pytest
from typer.testing import CliRunner

from pipette_opt.base.errors import InputError
from pipette_opt.cli.memory import app


def test_says_when_there_is_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No folder: a note and success."""
    monkeypatch.setenv("PIPETTE_OPT_SHARED", str(tmp_path / "absent"))
    result = CliRunner().invoke(app, ["evaluate"])
    assert result.exit_code == 0
    assert "nothing evaluated" in result.output


def test_a_wrong_folder_is_refused(tmp_path: Path) -> None:
    """A folder that was asked for must be there."""
    result = CliRunner().invoke(app, ["evaluate", "--folder", str(tmp_path / "absent")])
    assert isinstance(result.exception, InputError)


def test_an_empty_folder_names_what_is_missing(tmp_path: Path) -> None:
    """Every file that is not there, by name."""
    result = CliRunner().invoke(app, ["evaluate", "--folder", str(tmp_path), "--json"])
    assert result.exit_code == 0
    assert "hf_ultrascale_h100.csv" in result.output

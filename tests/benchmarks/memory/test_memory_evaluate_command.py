"""``python -m benchmarks.memory.evaluate`` without measured runs, and with a wrong folder."""

from pathlib import Path

import pytest
from modules_here import typed_benchmark


def test_says_when_there_is_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No folder: a note and success."""
    monkeypatch.setenv("PIPETTE_OPT_SHARED", str(tmp_path / "absent"))
    code, out, _ = typed_benchmark(tmp_path, "memory.evaluate")
    assert code == 0
    assert "nothing evaluated" in out


def test_a_wrong_folder_is_refused(tmp_path: Path) -> None:
    """A folder that was asked for must be there."""
    code, _, err = typed_benchmark(tmp_path, "memory.evaluate", "--folder", str(tmp_path / "absent"))
    assert code == 2
    assert "--folder: is no folder of measured runs" in err


def test_an_empty_folder_names_what_is_missing(tmp_path: Path) -> None:
    """Every file that is not there, by name."""
    code, out, _ = typed_benchmark(tmp_path, "memory.evaluate", "--folder", str(tmp_path), "--json")
    assert code == 0
    assert "hf_ultrascale_h100.csv" in out

"""The command that writes profiles of stacks, without measured runs."""

from pathlib import Path

from modules_here import typed_benchmark


def test_measured_runs_are_needed(tmp_path: Path) -> None:
    """The message names the option, and no profile is written."""
    code, _, err = typed_benchmark(tmp_path, "memory.frameworks", "--folder", "nowhere", "--out", "profiles")
    assert code == 2
    assert "--folder: is no folder of measured runs: nowhere." in err
    assert not (tmp_path / "profiles").exists()

"""Measured layer times from CSV."""

import logging
from pathlib import Path

import pytest

from pipette_opt.read.profile import COLUMNS, read_profile
from pipette_opt.specs import ProfileKey

HEADER = ",".join(COLUMNS)


def written(folder: Path, *lines: str) -> Path:
    """A profile with these lines."""
    path = folder / "layers.csv"
    path.write_text("\n".join(lines) + "\n")
    return path


def test_rows_by_size(tmp_path: Path) -> None:
    """GPU names in any case, seconds as they are."""
    profile = read_profile(
        written(tmp_path, HEADER, "A100-80GB,8,1,4096,0.002,0.004", "a100-80gb,8,2,4096,0.003,0.007")
    )
    key = ProfileKey(gpu="a100-80gb", tensor_model_parallel_size=8, micro_batch_size=1, seq_length=4096)
    assert profile.layers[key] == (0.002, 0.004)
    assert len(profile.layers) == 2


def test_columns_that_nobody_reads_are_named(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A misspelt or foreign column does not pass in silence."""
    path = tmp_path / "layers.csv"
    path.write_text(f"{','.join(COLUMNS)},mine\na100-80gb,1,1,1024,0.1,0.2,3\n")
    with caplog.at_level(logging.WARNING):
        read_profile(path)
    assert "1 column not used: 'mine'." in caplog.text

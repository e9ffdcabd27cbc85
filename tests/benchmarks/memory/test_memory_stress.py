"""Splits that leave out more than large jobs."""

import os
from pathlib import Path

import pytest

from benchmarks.memory import stress as memory_stress
from benchmarks.memory.evaluation import split_cases
from benchmarks.memory.stress import STRESS, stress_rows

pytestmark = pytest.mark.search

FOLDER = Path(os.environ.get("PIPETTE_OPT_SHARED", Path(__file__).parents[3].parent / "shared")) / "measured"
needs_measurements = pytest.mark.skipif(not FOLDER.is_dir(), reason="no measured runs beside the project")


def test_nothing_without_the_file(tmp_path: Path) -> None:
    """No rows."""
    assert stress_rows(tmp_path) == []


@needs_measurements
def test_what_is_judged_was_not_seen() -> None:
    """No value that a split leaves out is among the runs that calibrate; every fourth split is looked at."""
    for split in STRESS[:-1:4]:
        known, tested = ([run for run, _ in part] for part in split_cases(split, FOLDER))
        assert known
        assert tested
        assert {run.num_gpus for run in known} <= {8, 16}
        assert {run.num_gpus for run in tested} == {32}
        name = split.name.split()[0]
        values = "model" if name == "without" else name
        assert not {run.cells[values] for run in known} & {run.cells[values] for run in tested}


@needs_measurements
def test_bounds_hold_where_more_is_new(monkeypatch: pytest.MonkeyPatch) -> None:
    """A risk of 1 % misses at most one in a hundred jobs of three splits; bounds of at most one split fail."""
    monkeypatch.setattr(memory_stress, "STRESS", STRESS[2:5])
    rows = stress_rows(FOLDER)
    missed, died = (sum(int(row["missed OOM"].split(" of ")[part]) for row in rows) for part in (0, 1))
    assert died > 50
    assert missed <= 0.01 * died
    assert sum(any("fails" in cell for cell in row.values()) for row in rows) <= 1

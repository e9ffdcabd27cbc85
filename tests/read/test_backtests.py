"""Public runs by GPU type."""

from benchmarks.backtest.table import read_backtests
from pipette_opt.read.backtests import runs_by_gpu


def test_runs_are_counted_by_gpu() -> None:
    """Rows of one GPU type add up, whichever model ran."""
    rows = [row for row in read_backtests() if row.gpu == "h100-80gb"]
    assert len(rows) > 1
    assert runs_by_gpu()["h100-80gb"] == sum(row.runs for row in rows)

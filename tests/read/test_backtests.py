"""Public runs by GPU type."""

import yaml

from pipette_opt.base.shipped import shipped_path
from pipette_opt.read.backtests import runs_by_gpu


def test_runs_are_counted_by_gpu() -> None:
    """Rows of one GPU type add up, whichever model ran."""
    rows = yaml.safe_load(shipped_path("data", "backtests.yaml").read_text())
    numbers = [row["runs"] for row in rows if row["gpu"] == "h100-80gb"]
    assert len(numbers) > 1
    assert runs_by_gpu()["h100-80gb"] == sum(numbers)

"""Predicted components beside measured peaks."""

import os
from pathlib import Path

import pytest

from benchmarks.memory.parts import measured_parts, parts_rows

pytestmark = pytest.mark.search

FOLDER = Path(os.environ.get("PIPETTE_OPT_SHARED", Path(__file__).parents[3].parent / "shared")) / "measured"


@pytest.mark.skipif(not (FOLDER / "simumax.csv").is_file(), reason="no measured runs here")
def test_dense_rows_of_megatron_are_right_with_nothing_fitted() -> None:
    """SimuMax's eight peaks on B200: none more than half a percent off; parts add up to what is compared."""
    found = [one for one in measured_parts(FOLDER) if one.source == "SimuMax"]
    assert len(found) == 8
    for one, shown in zip(found, parts_rows(found), strict=True):
        assert one.error == pytest.approx(0.0, abs=0.005)
        assert float(shown["predicted"]) == pytest.approx(sum(one.parts_gib), abs=0.01)

"""The page on sparse attention is made from the recorded rows, and prices are near them."""

import json

import numpy as np
import pytest

from benchmarks.silicon.sparse_attention import ROWS, Prices, page, ratio_lines, rows_of
from pipette_opt.read.gpus import recognise_gpu

DATA = json.loads(ROWS.read_text("utf-8"))


@pytest.mark.search
def test_page_is_the_recorded_one() -> None:
    """A changed price changes the page."""
    assert page(DATA) == ROWS.with_name("sparse-attention.md").read_text("utf-8")


def test_prices_are_near_the_measured_seconds() -> None:
    """Both passes of the module are at most a fifth off, and a twentieth in the mean."""
    entry = recognise_gpu(DATA["device"])
    assert entry is not None
    rows = rows_of(DATA)["sparse module"]
    errors = np.array([each - 1 for _, both in ratio_lines(rows, Prices(entry.gpu).module) for each in both])
    assert len(errors) == 2 * len(rows) == 30
    assert np.abs(errors).mean() == pytest.approx(0.03, abs=0.02)
    assert np.abs(errors).max() < 0.2

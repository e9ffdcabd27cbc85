"""Predictions of a table with bands, before and after a run is known."""

from dataclasses import replace

import numpy as np
import pytest
from factories import make_run

from pipette_opt.base.errors import InputError
from pipette_opt.calibrate.anchored import anchored
from pipette_opt.calibrate.predict import Prediction, predict_runs
from pipette_opt.read.stack import read_stack

STACK = read_stack()


@pytest.fixture(scope="module")
def predictions() -> list[Prediction]:
    """Three runs of one job that take 1.2 of the predicted time, and one that ran out of memory."""
    runs = [make_run(row=row, mbs=mbs, iter_time_s=10.0) for row, mbs in enumerate((1, 2, 4))]
    times = [prediction.iter_time_s or 0.0 for prediction in predict_runs(runs, STACK)]
    slow = [replace(run, iter_time_s=1.2 * time_s) for run, time_s in zip(runs, times, strict=True)]
    failed = make_run(row=3, mbs=8, iter_time_s=None, oom=True)
    return predict_runs([*slow, failed], STACK)


def test_bands_hold_the_prediction(predictions: list[Prediction]) -> None:
    """Without a known run times stay, and every run has a band."""
    found, known = anchored(predictions, STACK, None)
    assert known is None
    for before, after in zip(predictions, found, strict=True):
        assert after.iter_time_s == before.iter_time_s
        assert after.low_s is not None
        assert after.high_s is not None
        assert after.low_s < after.high_s


def test_a_known_run_moves_the_others(predictions: list[Prediction]) -> None:
    """Runs longer than predicted are far nearer once one of them is known; bands are narrower."""
    for anchor in (1, "each"):
        found, known = anchored(predictions, STACK, None, anchor=anchor)  # type: ignore[arg-type]
        before = anchored(predictions, STACK, None)[0]
        errors = [abs(prediction.error or 0.0) for prediction in found[:3]]
        assert max(errors) < 0.15
        assert known is not None
        assert known.pairs == (2 if anchor == 1 else 6)
        assert known.error == pytest.approx(np.median(errors), abs=0.1)
        for wide, narrow in zip(before, found, strict=True):
            assert narrow.high_s / narrow.low_s < wide.high_s / wide.low_s  # type: ignore[operator]


@pytest.mark.parametrize("row", [3, 9])
def test_a_row_without_a_time_is_no_anchor(predictions: list[Prediction], row: int) -> None:
    """Neither a failed run nor a row that does not exist."""
    with pytest.raises(InputError, match=rf"\(the table has them in rows 0-2\), got {row}\."):
        anchored(predictions, STACK, None, anchor=row)

"""Predictions of a table with bands."""

from factories import make_run

from pipette_opt.calibrate.bands import with_bands
from pipette_opt.calibrate.predict import predict_runs
from pipette_opt.read.stack import read_stack

STACK = read_stack()


def test_bands_hold_the_prediction() -> None:
    """With a stack without runs of its own times stay, and every run has a band, also one that ran out of memory."""
    runs = [make_run(row=row, mbs=mbs, iter_time_s=10.0) for row, mbs in enumerate((1, 2, 4))]
    predictions = predict_runs([*runs, make_run(row=3, mbs=8, iter_time_s=None, oom=True)], STACK)
    found = with_bands(predictions, STACK, None)
    for before, after in zip(predictions, found, strict=True):
        assert before.iter_time_s == after.iter_time_s
        assert after.iter_time_s is not None
        assert after.low_s is not None
        assert after.high_s is not None
        assert after.low_s < after.iter_time_s < after.high_s


def test_a_run_without_a_time_has_no_band() -> None:
    """A row that cannot be predicted stays as it is."""
    (prediction,) = predict_runs([make_run(hidden=None)], STACK)
    assert prediction.reason
    assert with_bands([prediction], STACK, None) == [prediction]

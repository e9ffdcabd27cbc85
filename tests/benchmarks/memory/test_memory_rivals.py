"""Counts and intervals of the comparison, by hand."""

import numpy as np
import pytest

from benchmarks.memory.rivals import PipetteParams, best_kept, train_pipette, verdicts, wilson


def test_verdicts() -> None:
    """One of two dead jobs called safe, one of three living refused."""
    found = verdicts(np.array([True, False, True, False, False]), np.array([True, True, False, False, False]))
    assert (found.missed, found.ran_out, found.false, found.fitted) == (1, 2, 1, 3)
    assert found.accuracy == pytest.approx(0.6)


def test_wilson_interval() -> None:
    """None of 70: at most 5.2 %; half of 10: 23.7 to 76.3 %."""
    assert wilson(0, 70) == pytest.approx((0.0, 0.052), abs=1e-3)
    assert wilson(5, 10) == pytest.approx((0.237, 0.763), abs=1e-3)


def test_best_kept_counts_groups_that_ran() -> None:
    """The fastest of group a is refused, that of b kept; c never ran."""
    times = np.array([1.0, 2.0, 3.0, 2.0, np.nan])
    assert best_kept(times, np.array([True, False, False, False, True]), ["a", "a", "b", "b", "c"]) == (1, 2)


@pytest.mark.search
def test_pipette_network_learns() -> None:
    """On a smooth function of its inputs it beats the mean."""
    rng = np.random.default_rng(0)
    features = rng.uniform(0, 1, (128, 11))
    peaks = 10 + 20 * features[:, 0] + 5 * features[:, 1]
    predicted = train_pipette(features[:96], peaks[:96], features[96:], PipetteParams(epochs=60))
    assert np.abs(predicted - peaks[96:]).mean() < 0.5 * np.abs(peaks[96:] - peaks[:96].mean()).mean()

"""Counts and intervals of verdicts by hand, and reliability on runs whose truth is known."""

from dataclasses import replace

import numpy as np
import pytest

from benchmarks.memory.verdicts import best_kept, reliability, reliability_rows, verdicts, wilson
from pipette_opt.calibrate.memory_runs import MemoryRun
from pipette_opt.specs.memory_constants import REGRESSORS, MemoryConstants

TRUTH = MemoryConstants(counted=1.0, activations=0.4, unusable_gib=2.0, spread=0.05)


def runs(count: int, seed: int, noise: float = 0.05) -> list[MemoryRun]:
    """Jobs around the edge of 80 GiB that obey ``TRUTH`` up to a normal error."""
    rng = np.random.default_rng(seed)
    found = []
    for index in range(count):
        static, saved = rng.uniform(20, 60), rng.uniform(1, 30)
        regressors = np.zeros((1, len(REGRESSORS)))
        regressors[0, REGRESSORS.index("counted")] = static + saved
        regressors[0, REGRESSORS.index("activations")] = saved
        need = float((regressors @ TRUTH.vector())[0] * np.exp(rng.normal(0, noise)))
        ran_out = need + TRUTH.unusable_gib > 80
        found.append(
            MemoryRun(
                regressors=regressors,
                measured_rows=np.array([0]),
                capacity_gib=80.0,
                peak_gib=None if ran_out else need,
                ran_out=ran_out,
                group=str(index),
            )
        )
    return found


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
def test_true_probabilities_are_reliable() -> None:
    """With the true constants and noise, every bin's mean lies in the interval of what happened."""
    known = replace(TRUTH, activation_spread=1e-6)  # errors of held-out runs were learned: nothing else is unknown
    for one in reliability("some", known, runs(4000, 3)):
        low, high = one.interval
        assert low - 0.02 <= one.predicted <= high + 0.02
    rows = reliability_rows(reliability("some", known, runs(400, 3)))
    assert rows[0]["said"] == "0% - 1%"
    assert rows[-1]["said"] == "99% - 100%"

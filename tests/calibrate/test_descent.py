"""Robust least squares against solutions known by hand."""

from dataclasses import replace

import numpy as np
import pytest

from pipette_opt.base.types import FloatArray
from pipette_opt.calibrate.descent import NOISE, LeastSquares, descend


def line(measured: FloatArray, spread: float = 100.0, largest: float = np.inf) -> LeastSquares:
    """One value, the mean of the measured; the prior is centred on 0."""
    return LeastSquares(
        residuals_of=lambda values: values[0] - measured,
        weights=np.ones(len(measured)),
        centre=np.zeros(1),
        spread=np.array([spread]),
        largest=np.array([largest]),
    )


def test_a_mean() -> None:
    """Small residuals are squares: the mean."""
    values, residuals, *_ = descend(line(np.array([0.5, 0.52, 0.54])), np.zeros(1), 50)
    assert values == pytest.approx([0.52], abs=1e-4)
    assert residuals == pytest.approx([0.02, 0.0, -0.02], abs=1e-4)


def test_one_spoiled_run_pulls_no_further_than_a_near_one() -> None:
    """It counts linearly: each of nine others is moved by a ninth of where that begins."""
    measured = np.array([0.0] * 9 + [3.0])
    values, *_ = descend(line(measured), np.zeros(1), 50)
    assert values == pytest.approx([0.05 / 9], abs=1e-4)


def test_priors_and_limits() -> None:
    """One run against a prior of equal width: half way. A limit holds."""
    values, *_ = descend(line(np.array([0.04]), spread=NOISE), np.zeros(1), 50)
    assert values == pytest.approx([0.02], abs=1e-4)
    values, *_ = descend(line(np.array([0.5, 0.5]), largest=0.3), np.zeros(1), 50)
    assert values == pytest.approx([0.3])


def test_curves() -> None:
    """Two values of an exponential, from far."""
    at = np.linspace(0, 2, 20)
    measured = np.log(2.0 * np.exp(-1.5 * at))
    problem = LeastSquares(
        residuals_of=lambda values: values[0] - np.exp(values[1]) * at - measured,
        weights=np.ones(20),
        centre=np.zeros(2),
        spread=np.full(2, 100.0),
        largest=np.full(2, np.inf),
    )
    values, _, loss, _ = descend(problem, np.zeros(2), 60)
    assert np.exp(values) == pytest.approx([2.0, 1.5], rel=1e-3)
    assert loss < 0.01


def test_known_slopes_lead_to_the_same_place() -> None:
    """Derivatives of elsewhere, a third off, lead to the same values, and none is made anew."""
    at, calls = np.linspace(0, 2, 20), []

    def residuals_of(values: FloatArray) -> FloatArray:
        calls.append(values)
        return values[0] - np.exp(values[1]) * at + 0.5

    fresh = LeastSquares(
        residuals_of=residuals_of,
        weights=np.ones(20),
        centre=np.zeros(2),
        spread=np.full(2, 100.0),
        largest=np.full(2, np.inf),
    )
    start = np.array([0.2, -1.0])
    found = descend(fresh, start, 60)
    off = replace(fresh, known_slopes=found.slopes * np.array([1.0, 1.3]))
    calls.clear()
    again = descend(off, start, 60, found.slopes)
    assert again.loss == pytest.approx(found.loss, rel=1e-2, abs=1e-4)
    assert all(np.count_nonzero(call != start) != 1 for call in calls)  # as a derivative moves one value alone

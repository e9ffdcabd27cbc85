"""Learning curves and reliability on runs whose truth is known."""

from dataclasses import replace

import numpy as np
import pytest

from benchmarks.memory.learning import (
    label_verdicts,
    learning_curve,
    learning_rows,
    reliability,
    reliability_rows,
)
from pipette_opt.calibrate.memory_runs import MemoryRun
from pipette_opt.specs.memory_constants import REGRESSORS, MemoryConstants

pytestmark = pytest.mark.search

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


def test_more_runs_never_hurt_much() -> None:
    """Nothing, five, fifty and all: the error falls towards the noise; sizes beyond what is known are left out."""
    points = learning_curve("some", runs(80, 1), runs(200, 2), MemoryConstants(), sizes=(0, 5, 50, 500), draws=2)
    assert [point.num_runs for point in points] == [0, 5, 50, 80]
    errors = [point.mean_error for point in points]
    assert errors[0] > errors[2]
    assert errors[3] < 0.06
    assert points[3].accuracy > 0.85
    rows = learning_rows(points)
    assert [row["calibrated on"] for row in rows] == ["0", "5", "50", "80"]


def test_true_probabilities_are_reliable() -> None:
    """With the true constants and noise, every bin's mean lies in the interval of what happened."""
    known = replace(TRUTH, activation_spread=1e-6)  # errors of held-out runs were learned: nothing else is unknown
    for one in reliability("some", known, runs(4000, 3)):
        low, high = one.interval
        assert low - 0.02 <= one.predicted <= high + 0.02
    rows = reliability_rows(reliability("some", known, runs(400, 3)))
    assert rows[0]["said"] == "0% - 1%"
    assert rows[-1]["said"] == "99% - 100%"


@pytest.mark.parametrize(("risk", "missed", "false"), [(0.5, 1, 0), (1e-7, 0, 1)])
def test_verdicts_by_hand(risk: float, missed: int, false: int) -> None:
    """A job of 50 GiB that died and one of 60 that ran: at even odds one is missed, at no risk one is refused."""
    regressors = np.zeros((1, len(REGRESSORS)))
    pair = []
    for size, ran_out in ((50.0, True), (60.0, False)):
        row = regressors.copy()
        row[0, REGRESSORS.index("counted")] = size
        pair.append(MemoryRun(regressors=row, measured_rows=np.array([0]), capacity_gib=80.0, ran_out=ran_out))
    found = label_verdicts(TRUTH, pair, risk)
    assert (found.missed, found.false, found.ran_out, found.fitted) == (missed, false, 1, 1)

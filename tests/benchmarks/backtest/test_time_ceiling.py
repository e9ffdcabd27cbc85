"""How good anyone could be, by hand and by what was put into made-up runs."""

import numpy as np
import pytest
from factories import make_run

from benchmarks.backtest.time_ceiling import crossed_spread, explained, redrawn, twin_spread, twins
from pipette_opt.calibrate.metrics import spearman


def test_twins_did_the_same_work() -> None:
    """Sequence parallelism is no difference with one tensor rank, and is one with two; failures are no twins."""
    alone = [make_run(tp=1, dp=8, seq_parallel=flag, iter_time_s=time) for flag, time in ((True, 1.0), (False, 1.1))]
    two = [make_run(seq_parallel=flag) for flag in (True, False)]
    died = make_run(tp=1, dp=8, iter_time_s=None, oom=True)
    other = make_run(tp=1, dp=8, gbs=128)
    assert twins([*alone, *two, died, other]) == [(alone[0], alone[1])]


def test_spread_of_twins() -> None:
    """Differences of 2 % and 4 % are those of two runs: the mean square is halved."""
    times = np.exp([[0.0, 0.02], [1.0, 0.96]])
    assert twin_spread(times) == pytest.approx(np.sqrt((0.02**2 + 0.04**2) / 2 / 2))


def test_crossed_spread_by_hand() -> None:
    """What rows and columns take is no scatter; the differences -0.1 and 0.1 around their mean are, halved."""
    rows, columns = ["a", "a", "b", "b", "c"], ["x", "y", "x", "y", "x"]
    values = np.array([0.0, 1.0 + 0.1, 5.0, 6.0 - 0.1, 9.0])
    assert crossed_spread(rows, columns, values) == pytest.approx(np.sqrt((0.1**2 + 0.1**2) / 1 / 2))
    assert np.isnan(crossed_spread(rows[:2], columns[:2], values[:2]))


def test_crossed_spread_finds_what_was_put_in() -> None:
    """Three hundred rows in three columns, scattered by 3 %."""
    rng = np.random.default_rng(0)
    rows, columns = np.repeat(np.arange(300), 3), np.tile(np.arange(3), 300)
    values = rng.normal(0, 1, 300)[rows] + np.array([0.0, 0.2, 0.5])[columns] + rng.normal(0, 0.03, 900)
    assert crossed_spread(rows.tolist(), columns.tolist(), values) == pytest.approx(0.03, rel=0.1)


def test_redrawn_without_scatter_is_what_was_measured() -> None:
    """Ours ranks as it did, whoever knows all is right."""
    measured, predicted = np.array([1.0, 2.0, 3.0, 1.5]), np.array([1.2, 2.0, 3.0, 1.1])
    ours, best = redrawn(predicted, measured, 0.0, days=3), redrawn(measured, measured, 0.0, days=3)
    assert ours.spearman == ours.spearman_p10 == pytest.approx(spearman(predicted, measured))
    assert (ours.regret, ours.good) == (pytest.approx(0.5), 0.0)
    assert (best.spearman, best.regret, best.good) == (pytest.approx(1.0), 0.0, 1.0)


@pytest.mark.search
def test_nobody_is_right_about_scatter() -> None:
    """Two runs 1 % apart, each scattered by 10 %: the faster is picked, and is within 2 % on about six days in ten."""
    measured = np.array([1.0, 1.01, 9.0])
    found = redrawn(measured, measured, 0.1, days=5_000)
    # The logarithm of their ratio is normal around -0.00995 with 0.1 * sqrt(2).
    assert found.good == pytest.approx(0.583, abs=0.02)
    assert found.spearman < 1.0


def test_explained_by_labels() -> None:
    """Labels that say all, nothing (every run its own, or all one), and by hand."""
    residuals = np.array([0.1, 0.1, -0.1, -0.1])
    assert explained(residuals, "aabb") == pytest.approx(1.0)
    assert explained(residuals, "abcd") == explained(residuals, "aaaa") == pytest.approx(0.0)
    # Without itself, each is predicted to be the other sign.
    assert explained(residuals, "abab") == pytest.approx(1.0 - 0.2**2 / (0.1 + 0.1 / 3) ** 2)

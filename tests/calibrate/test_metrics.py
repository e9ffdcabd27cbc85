"""Errors of predictions, by hand."""

import math

import numpy as np
import pytest
from factories import make_run

from pipette_opt.calibrate.files import predictions_csv
from pipette_opt.calibrate.metrics import by_group, measure, measure_predictions, pick, spearman
from pipette_opt.calibrate.predict import Prediction
from pipette_opt.calibrate.tables import group_rows


def prediction(
    predicted: float, measured: float | None, *, oom: bool = False, risk: float | None = None, **run: object
) -> Prediction:
    """One run with its prediction."""
    return Prediction(
        run=make_run(iter_time_s=measured, oom=oom, **run),
        iter_time_s=predicted,
        memory={} if risk is None else {"oom_probability": risk},
    )


def test_errors_by_hand() -> None:
    """Errors of 0, 10 and 50 %; the one predicted fastest takes 2 s where the best takes 1."""
    errors = measure(np.array([2.0, 1.1, 1.5]), np.array([2.0, 1.0, 3.0]))
    assert errors.mean == pytest.approx(0.2)
    assert errors.p90 == pytest.approx(0.42)
    assert errors.regret == 0.0
    assert measure(np.array([1.0, 1.1]), np.array([2.0, 1.0])).regret == pytest.approx(1.0)


def test_spearman() -> None:
    """1 for any growing curve, -1 for a falling one, ties share ranks, too few pairs have none."""
    left = np.array([1.0, 2.0, 3.0, 10.0])
    assert spearman(left, np.exp(left)) == pytest.approx(1.0)
    assert spearman(left, -left) == pytest.approx(-1.0)
    assert spearman(np.array([1.0, 2.0, 3.0]), np.array([5.0, 5.0, 7.0])) == pytest.approx(math.sqrt(3) / 2)
    assert math.isnan(spearman(left[:2], left[:2]))


def test_runs_that_failed_have_no_error() -> None:
    """They are predicted, and not counted."""
    found = measure_predictions([prediction(1.0, 1.0), prediction(0.1, 9.0, oom=True), prediction(2.0, None)])
    assert found is not None
    assert found.num_runs == 1


def test_the_pick_must_fit() -> None:
    """The fastest that is predicted to fit; it may still die, or be slow."""
    slow, fast = prediction(2.0, 2.0, risk=0.0), prediction(1.0, 1.5, risk=0.5)
    dead = prediction(0.5, None, oom=True, risk=0.0)
    assert pick([slow, fast], 0.01).regret == pytest.approx(2.0 / 1.5 - 1)  # type: ignore[union-attr]
    assert pick([slow, fast], 0.6).regret == 0.0  # type: ignore[union-attr]
    assert pick([slow, fast, dead], 0.01).ran is False  # type: ignore[union-attr]
    assert pick([prediction(1.0, 1.0)], 0.01) is None


def test_one_chooses_among_configurations_of_one_job() -> None:
    """A run of half the batch is twice as fast, and was no choice; neither was a model of the same name."""
    half = prediction(1.0, 1.5, risk=0.0, gbs=128)
    good, better = prediction(2.0, 2.2, risk=0.0, gbs=256), prediction(2.1, 2.0, risk=0.0, gbs=256)
    smaller = prediction(2.2, 1.0, risk=0.0, gbs=256, vocab=1024)
    members = [half, good, better, smaller]
    assert len(by_group(members)) == 1
    errors = measure_predictions(members)
    assert errors is not None
    assert errors.regret == pytest.approx(0.1)
    assert pick(members, 0.01).regret == pytest.approx(0.1)  # type: ignore[union-attr]
    dead = prediction(0.1, None, oom=True, risk=0.0, gbs=256, vocab=1024)
    assert pick([*members, dead], 0.01).ran is False  # type: ignore[union-attr]


def test_groups_keep_models_apart() -> None:
    """Model, sequence length, GPUs, kernel."""
    groups = by_group([prediction(1.0, 1.0), prediction(1.0, 1.0, model="other"), prediction(1.0, 1.0)])
    assert [len(members) for members in groups.values()] == [2, 1]


def test_tables_as_data() -> None:
    """Every group with a measured time."""
    found = [prediction(1.0, 1.0), prediction(2.0, 3.0, model="other")]
    assert [row["mean_error"] for row in group_rows(found, 0.01)] == pytest.approx([0.0, 1 / 3])


def test_files() -> None:
    """One line for each run, empty where nothing is known."""
    found = [prediction(1.25, 1.0, risk=0.25), Prediction(run=make_run(row=1), reason="hidden not given")]
    lines = predictions_csv(found).splitlines()
    assert lines[0] == (
        "row,predicted_iter_time_s,low_s,high_s,predicted_peak_mem_gib,upper_peak_mem_gib,oom_probability,reason"
    )
    assert lines[1].startswith("0,1.25,,,,,0.25,")
    assert lines[2].startswith("1,,")
    assert lines[2].endswith("hidden not given")

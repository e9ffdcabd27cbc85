"""Runs of several versions of one software."""

from dataclasses import replace

import numpy as np
import pytest
from factories import make_run

from pipette_opt.calibrate.fit import calibrate_runs
from pipette_opt.calibrate.predict import predict_runs
from pipette_opt.calibrate.versions import version_factors
from pipette_opt.read.runs import MeasuredRun
from pipette_opt.specs import DEFAULT_STACK

pytestmark = pytest.mark.search


def runs_of(version: str, longer: float, number: int = 9) -> list[MeasuredRun]:
    """What the default stack takes, longer by a factor."""
    runs = [
        make_run(num_gpus=8 * pp, tp=tp, pp=pp, dp=8 // tp, mbs=mbs, gbs=256, stack_version=version)
        for tp in (1, 2, 4)
        for pp in (1, 2, 4)
        for mbs in (1, 2)
    ][:number]
    predicted = [one.iter_time_s for one in predict_runs(runs, DEFAULT_STACK)]
    return [replace(run, iter_time_s=longer * (time or 0.0)) for run, time in zip(runs, predicted, strict=True)]


def test_factors_by_hand() -> None:
    """Nine runs a fifth longer: 9 / (9 + 4) of it. A version of four runs says nothing, nor a single version."""
    runs = runs_of("1", 1.0) + runs_of("few", 1.0, 4) + runs_of("2", 1.0)
    residuals = np.array([0.18] * 9 + [1.0] * 4 + [0.0] * 9)
    assert version_factors(runs, residuals, "2") == {"1": pytest.approx(np.exp(0.18 * 9 / 13))}
    assert version_factors(runs[-9:], residuals[-9:], "2") == {}


def test_an_older_version_does_not_spoil_the_last() -> None:
    """Runs of an older version take a third longer; the stack is the last one's, and both are predicted."""
    runs = [replace(run, row=row) for row, run in enumerate(runs_of("old", 4 / 3, 18) + runs_of("new", 1.0, 18))]
    fit = calibrate_runs(runs, DEFAULT_STACK, validate=False)
    assert fit.stack.versions == {"old": pytest.approx(4 / 3, rel=0.08)}
    mixed = calibrate_runs(
        [replace(run, cells={**run.cells, "stack_version": ""}) for run in runs], DEFAULT_STACK, validate=False
    )
    assert mixed.stack.versions is None
    assert fit.errors.mean < 0.05 < 0.1 < mixed.errors.mean


def test_a_sample_knows_the_last_version() -> None:
    """A few runs of the last version among many: still the stack's; none at all is said."""
    runs = [replace(run, row=row) for row, run in enumerate(2 * runs_of("old", 4 / 3, 18) + runs_of("new", 1.0, 9))]
    fit = calibrate_runs(runs, DEFAULT_STACK, max_runs=20, validate=False)
    assert fit.stack.versions is not None
    assert list(fit.stack.versions) == ["old"]
    unnamed = [*runs[:9], replace(runs[-1], row=9, cells={})]
    fit = calibrate_runs(unnamed, DEFAULT_STACK, validate=False)
    assert fit.stack.versions is None
    assert any("too few of none, as in the last row" in note for note in fit.notes)

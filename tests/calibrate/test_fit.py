"""Calibration finds what made the runs."""

from dataclasses import replace

import numpy as np
import pytest
from factories import make_run

from pipette_opt.base.errors import InputError
from pipette_opt.calibrate.fit import calibrate_runs, usable_cases
from pipette_opt.calibrate.held_out import HeldOut
from pipette_opt.calibrate.metrics import measure_predictions
from pipette_opt.calibrate.predict import predict_runs, predicted_times_s
from pipette_opt.calibrate.problem import Problem
from pipette_opt.read.runs import MeasuredRun
from pipette_opt.specs import DEFAULT_STACK, StackSpec
from pipette_opt.worlds.bands import job_band

pytestmark = pytest.mark.search

TRUTH = DEFAULT_STACK.with_constants(
    {
        "matmul_speed": 0.75,
        "elementwise": 2.0,
        "host_kernel_s": 40e-6,
        "iteration_s": 0.05,
        "assumed_links": 0.15,
    }
)


def runs_of(stack: StackSpec, shapes: list[dict[str, object]], noise: float = 0.0, seed: int = 0) -> list[MeasuredRun]:
    """Runs that took what the stack says, with noise."""
    rng = np.random.default_rng(seed)
    runs = [make_run(row=index, **shape) for index, shape in enumerate(shapes)]
    found = []
    for run, one in zip(runs, predict_runs(runs, stack, rivals=False), strict=True):
        assert one.iter_time_s is not None
        found.append(replace(run, iter_time_s=one.iter_time_s * float(np.exp(noise * rng.standard_normal()))))
    return found


def shapes(gpus: tuple[int, ...], hidden: int) -> list[dict[str, object]]:
    """Layouts on some numbers of GPUs."""
    return [
        {"num_gpus": num, "tp": tp, "pp": pp, "dp": num // tp // pp, "mbs": mbs, "hidden": hidden, "gbs": 256}
        for num in gpus
        for tp in (1, 2, 4)
        for pp in (1, 2)
        for mbs in (1, 2)
        if 256 % (num // tp // pp * mbs) == 0
    ]


def test_it_finds_a_stack_and_extrapolates() -> None:
    """Fitted to small noisy jobs, right on larger jobs with a model twice as wide."""
    seen = runs_of(TRUTH, shapes((8, 16, 32), 2048), noise=0.02)
    spoiled = [replace(run, iter_time_s=4 * (run.iter_time_s or 0.0)) if run.row == 5 else run for run in seen]
    fit = calibrate_runs(spoiled, DEFAULT_STACK, validate=False)
    judged = runs_of(TRUTH, shapes((64,), 4096))
    before = measure_predictions(predict_runs(judged, DEFAULT_STACK, rivals=False))
    after = measure_predictions(predict_runs(judged, fit.stack, rivals=False))
    assert before is not None
    assert after is not None
    assert before.mean > 0.2
    assert after.mean < 0.08
    assert fit.stack.matmul_speed == pytest.approx(0.75, rel=0.1)


def test_few_runs_move_little() -> None:
    """Five runs as the starting stack has them leave it where it was, and a note says that five are few."""
    seen = runs_of(DEFAULT_STACK, shapes((8,), 2048)[:5])
    fit = calibrate_runs(seen, DEFAULT_STACK, validate=False)
    assert fit.stack.matmul_speed == pytest.approx(DEFAULT_STACK.matmul_speed, rel=0.15)
    assert any("only 5 runs" in note for note in fit.notes)
    assert fit.errors.mean < 0.03


def test_it_says_how_far_it_can_be_trusted() -> None:
    """Groups left out, and the largest jobs."""
    seen = runs_of(TRUTH, shapes((8, 16), 2048)[::2], noise=0.02)
    fit = calibrate_runs(seen, DEFAULT_STACK)
    assert fit.held_out is not None
    assert fit.larger is not None
    assert fit.held_out.num_runs == len(seen)
    assert fit.larger.num_runs == sum(run.num_gpus == 16 for run in seen)
    assert fit.more["tp"].num_runs == sum(run.tp == 4 for run in seen)
    assert "mbs" not in fit.more or fit.more["mbs"].num_runs < len(seen)
    errors = fit.record()["p90_error"]
    assert isinstance(errors, dict)
    assert errors["more_tp"] == pytest.approx(fit.more["tp"].p90, abs=1e-4)


def test_an_interrupt_while_validating_keeps_the_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    """The constants are those of the whole fit, and a note says what is missing; before, it interrupts."""
    seen = runs_of(TRUTH, shapes((8, 16), 2048)[::2])
    whole = calibrate_runs(seen, DEFAULT_STACK, validate=False)

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(HeldOut, "groups", interrupt)
    fit = calibrate_runs(seen, DEFAULT_STACK)
    assert replace(fit.stack, layers=None) == replace(whole.stack, layers=None)
    assert fit.stack.layers is not None
    assert whole.stack.layers is not None
    assert fit.stack.layers.shapes == whole.stack.layers.shapes
    assert (fit.interrupted, whole.interrupted) == (True, False)
    assert "cross-validation was interrupted" in fit.notes[-1]
    monkeypatch.setattr(Problem, "fit", interrupt)
    with pytest.raises(KeyboardInterrupt):
        calibrate_runs(seen, DEFAULT_STACK)


def test_times_in_milliseconds_are_not_fitted() -> None:
    """Constants would become absurd; some such rows are left out, and a file of them is refused."""
    runs = runs_of(TRUTH, shapes((8,), 2048)[:6])
    slow = [replace(run, row=index, iter_time_s=1e3 * (run.iter_time_s or 0.0)) for index, run in enumerate(runs)]
    with pytest.raises(InputError, match=r"6 of 6 rows left out \(rows 0-5\): takes .* must be in seconds"):
        calibrate_runs(slow, DEFAULT_STACK, validate=False)
    fit = calibrate_runs([slow[0], *runs[1:]], DEFAULT_STACK, validate=False)
    assert [one.row for one in fit.left_out] == [0]
    assert len(fit.runs) == 5
    assert fit.errors.mean < 0.05


def test_times_in_hours_are_not_fitted() -> None:
    """Nor what takes a thousandth of the prediction."""
    runs = runs_of(TRUTH, shapes((8,), 2048)[:6])
    fast = replace(runs[0], iter_time_s=1e-3 * (runs[0].iter_time_s or 0.0))
    fit = calibrate_runs([fast, *runs[1:]], DEFAULT_STACK, validate=False)
    assert [(one.row, "must be in seconds" in one.reason) for one in fit.left_out] == [(0, True)]


def test_it_says_what_the_runs_do_not_tell() -> None:
    """Runs on one host: nothing of links between hosts, little of what no run is near; but of products."""
    runs = runs_of(TRUTH, shapes((8,), 2048))
    notes = calibrate_runs(runs, DEFAULT_STACK, validate=False).notes
    (nothing,) = [note for note in notes if note.startswith("the runs do not determine")]
    assert "straggling" in nothing
    assert "assumed_links" in nothing
    assert not any("matmul_speed" in note for note in notes if note.startswith("the runs say"))


def test_runs_of_two_clusters_are_told_apart() -> None:
    """A third slower in one of two sources: a note names both. Equal ones have no note."""
    runs = runs_of(TRUTH, shapes((8,), 2048))
    halves = [replace(run, source=("slow", "fast")[run.row.bit_count() % 2]) for run in runs]
    mixed = [
        replace(run, iter_time_s=(1.33 if run.source == "slow" else 1.0) * (run.iter_time_s or 0.0)) for run in halves
    ]
    for given, expected in ((halves, 0), (mixed, 1)):
        notes = calibrate_runs(given, DEFAULT_STACK, validate=False).notes
        found = [note for note in notes if note.startswith("sources differ")]
        assert len(found) == expected
        assert all("fast on" in note and "slow on" in note for note in found)


def test_nothing_to_fit() -> None:
    """Failed runs tell nothing about time."""
    failed = [make_run(row=index, iter_time_s=None, oom=True) for index in range(9)]
    with pytest.raises(InputError, match="needs a run with a time"):
        calibrate_runs(failed, DEFAULT_STACK)


@pytest.mark.parametrize("count", [1, 3, 6])
def test_few_runs_lie_inside_the_band_that_they_make(count: int) -> None:
    """Slower by half than the starting stack says, with noise: the band is of the fit, and holds for runs left out."""
    seen = runs_of(DEFAULT_STACK, shapes((8, 16), 2048), noise=0.05)
    slow = [replace(run, iter_time_s=1.5 * (run.iter_time_s or 0.0)) for run in seen]
    fit = calibrate_runs(slow[::4][:count], DEFAULT_STACK)
    stack = replace(fit.stack, fitted=fit.record())
    inside = []
    cases, _ = usable_cases(slow, stack)
    for case, predicted in zip(cases, predicted_times_s(cases), strict=True):
        band = job_band(case.instance, case.config, float(predicted))
        inside.append(band.low_s <= (case.run.iter_time_s or 0.0) <= band.high_s)
        assert band.runs == count
    assert all(inside[::4][:count])
    assert np.mean(inside) >= 0.9


def test_copies_of_a_row_are_one_row() -> None:
    """Three times the same row is that row, and two are left out by name; another time of the same job counts."""
    runs = runs_of(TRUTH, shapes((8,), 2048)[:1])
    copies = [replace(runs[0], row=row) for row in range(3)]
    once, thrice = calibrate_runs(runs, DEFAULT_STACK), calibrate_runs(copies, DEFAULT_STACK)
    assert thrice.stack == once.stack
    assert thrice.record() == once.record()
    assert [(one.row, one.reason) for one in thrice.left_out] == [(1, "a copy of row 0"), (2, "a copy of row 0")]
    again = replace(runs[0], row=1, iter_time_s=1.01 * (runs[0].iter_time_s or 0.0))
    assert len(calibrate_runs([*runs, again], DEFAULT_STACK).runs) == 2


def test_few_runs_make_others_hardly_worse() -> None:
    """Six runs of a stack like the starting one, whose jobs differ by a tenth: that is hardly taken for constants."""
    seen = runs_of(DEFAULT_STACK, shapes((8, 16), 2048), noise=0.1)
    kept = seen[1::3][:6]
    stack = calibrate_runs(kept, DEFAULT_STACK, validate=False).stack
    others = [run for run in seen if run not in kept]
    after = measure_predictions(predict_runs(others, stack, rivals=False))
    before = measure_predictions(predict_runs(others, DEFAULT_STACK, rivals=False))
    assert before is not None
    assert after is not None
    assert after.rms < before.rms + 0.05


def test_slopes_that_steps_bring_up_to_date_lead_to_the_same_place() -> None:
    """Noise-free runs are matched almost exactly, though most steps reuse old slopes."""
    seen = runs_of(TRUTH, shapes((8, 16), 2048)[::2])
    fit = calibrate_runs(seen, DEFAULT_STACK, validate=False)
    assert fit.errors.mean < 0.02

"""Calibration finds what made the runs."""

from dataclasses import replace

import numpy as np
import pytest
from factories import make_run

from pipette_opt.base.errors import InputError
from pipette_opt.calibrate.bands import with_bands
from pipette_opt.calibrate.fit import calibrate_runs, usable_cases
from pipette_opt.calibrate.held_out import HeldOut
from pipette_opt.calibrate.metrics import Errors, measure_predictions
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
    for run, one in zip(runs, predict_runs(runs, stack), strict=True):
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


def errors_by(runs: list[MeasuredRun], stack: StackSpec) -> Errors:
    """Errors of the times that a back-test shows."""
    errors = measure_predictions(with_bands(predict_runs(runs, stack), stack, None))
    assert errors is not None
    return errors


def test_runs_move_the_times_of_larger_jobs() -> None:
    """A slower stack is learnt from small noisy jobs, and helps on larger jobs with a model twice as wide."""
    seen = runs_of(TRUTH, shapes((8, 16), 2048)[::2], noise=0.02)
    stack = calibrate_runs(seen, DEFAULT_STACK, validate=False).stack
    judged = runs_of(TRUTH, shapes((64,), 4096)[::4])
    assert errors_by(judged, stack).mean < 0.7 * errors_by(judged, DEFAULT_STACK).mean
    assert len(stack.anchors) == len(seen)


def test_constants_are_fitted_with_many_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Few runs move constants to their posterior mean; a fit is kept if it predicts the largest jobs clearly better."""
    seen = runs_of(TRUTH, shapes((8, 16), 2048)[::2], noise=0.02)
    moved = calibrate_runs(seen, DEFAULT_STACK, validate=False)
    assert not moved.is_fitted
    assert moved.stack.moved_from["matmul_speed"] == DEFAULT_STACK.matmul_speed
    monkeypatch.setitem(calibrate_runs.__globals__, "MIN_FITTED", 10)
    fitted = calibrate_runs(seen, DEFAULT_STACK, validate=False)
    assert moved.larger is not None
    assert fitted.larger is not None
    assert fitted.larger.median < moved.larger.median
    assert fitted.is_fitted
    assert not fitted.stack.moved_from
    assert fitted.stack.matmul_speed == pytest.approx(0.75, rel=0.15)
    assert fitted.errors.mean < 0.025
    monkeypatch.setitem(calibrate_runs.__globals__, "CLEARLY", 0.0)
    assert not calibrate_runs(seen, DEFAULT_STACK, validate=False).is_fitted


def test_few_runs_move_little() -> None:
    """Five runs as the starting stack predicts them leave times where they were, and a note says that five are few."""
    seen = runs_of(DEFAULT_STACK, shapes((8,), 2048)[:5])
    fit = calibrate_runs(seen, DEFAULT_STACK, validate=False)
    assert any("only 5 runs" in note for note in fit.notes)
    assert fit.errors.mean < 0.03
    assert fit.base_errors.bias > 1.05  # of expected times, where the runs took the simulated ones


def test_a_run_that_all_others_contradict_is_left_out() -> None:
    """A run of four times its length does not move the others, and is named."""
    seen = runs_of(DEFAULT_STACK, shapes((8, 16), 2048)[::2], noise=0.02)
    spoiled = [replace(run, iter_time_s=4 * (run.iter_time_s or 0.0)) if run.row == 10 else run for run in seen]
    fit = calibrate_runs(spoiled, DEFAULT_STACK, validate=False)
    assert [row.row for row in fit.left_out] == [10]
    assert "times what all other runs say" in fit.left_out[0].reason
    assert fit.errors.mean < 0.03


def test_it_says_how_far_it_can_be_trusted() -> None:
    """Errors of groups left out and of the largest jobs are recorded beside those of the starting stack."""
    seen = runs_of(TRUTH, shapes((8, 16), 2048)[::2], noise=0.02)
    fit = calibrate_runs(seen, DEFAULT_STACK)
    assert fit.held_out is not None
    assert fit.larger is not None
    assert fit.base_larger is not None
    assert fit.held_out.num_runs == len(seen)
    assert fit.larger.num_runs == fit.base_larger.num_runs == sum(run.num_gpus == 16 for run in seen)
    assert fit.larger.mean < fit.base_larger.mean
    errors = fit.record()["p90_error"]
    assert isinstance(errors, dict)
    assert errors["larger_jobs"] == pytest.approx(fit.larger.p90, abs=1e-4)


def test_smaller_runs_that_mislead_are_said() -> None:
    """Small jobs half as slow again, larger ones as the starting stack predicts: a note warns of larger jobs."""
    seen = runs_of(DEFAULT_STACK, shapes((8, 16, 32), 2048)[::3])
    mixed = [replace(run, iter_time_s=(1.5 if run.num_gpus < 32 else 1.0) * (run.iter_time_s or 0.0)) for run in seen]
    notes = calibrate_runs(mixed, DEFAULT_STACK, validate=False).notes
    assert any("do not trust this calibration for larger jobs" in note for note in notes)


def test_an_interrupt_while_validating_keeps_the_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    """Constants are those of the whole fit, and a note says what is missing; during the fit, it interrupts."""
    monkeypatch.setitem(calibrate_runs.__globals__, "MIN_FITTED", 10)
    seen = runs_of(TRUTH, shapes((8, 16), 2048)[::2])
    whole = calibrate_runs(seen, DEFAULT_STACK, validate=False)

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(HeldOut, "groups", interrupt)
    fit = calibrate_runs(seen, DEFAULT_STACK)
    assert fit.stack.matmul_speed == whole.stack.matmul_speed
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
    assert len(fit.cases) == 5
    assert fit.errors.mean < 0.05


def test_times_in_hours_are_not_fitted() -> None:
    """Nor what takes a thousandth of the prediction."""
    runs = runs_of(TRUTH, shapes((8,), 2048)[:6])
    fast = replace(runs[0], iter_time_s=1e-3 * (runs[0].iter_time_s or 0.0))
    fit = calibrate_runs([fast, *runs[1:]], DEFAULT_STACK, validate=False)
    assert [(one.row, "must be in seconds" in one.reason) for one in fit.left_out] == [(0, True)]


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
def test_runs_of_a_slow_stack_lie_in_the_bands_that_few_make(count: int) -> None:
    """A few runs that take half as long again, with noise, make bands that hold the other runs."""
    seen = runs_of(DEFAULT_STACK, shapes((8, 16), 2048), noise=0.05)
    slow = [replace(run, iter_time_s=1.5 * (run.iter_time_s or 0.0)) for run in seen]
    stack = calibrate_runs(slow[::4][:count], DEFAULT_STACK).stack
    inside = []
    cases, _ = usable_cases(slow[::3], stack)
    for case, predicted in zip(cases, predicted_times_s(cases), strict=True):
        band = job_band(case.instance, case.config, float(predicted))
        inside.append(band.low_s <= (case.run.iter_time_s or 0.0) <= band.high_s)
        assert band.runs == count
    assert np.mean(inside) >= 0.8


def test_copies_of_a_row_are_one_row() -> None:
    """Three times the same row is that row, and two are left out by name; another time of the same job counts."""
    runs = runs_of(TRUTH, shapes((8,), 2048)[:1])
    copies = [replace(runs[0], row=row) for row in range(3)]
    once, thrice = calibrate_runs(runs, DEFAULT_STACK), calibrate_runs(copies, DEFAULT_STACK)
    assert thrice.stack == once.stack
    assert thrice.record() == once.record()
    assert [(one.row, one.reason) for one in thrice.left_out] == [(1, "a copy of row 0"), (2, "a copy of row 0")]
    again = replace(runs[0], row=1, iter_time_s=1.01 * (runs[0].iter_time_s or 0.0))
    assert len(calibrate_runs([*runs, again], DEFAULT_STACK).cases) == 2


def test_few_runs_make_others_hardly_worse() -> None:
    """Six runs of a stack like the starting one, whose jobs differ by a tenth, leave the others nearly as they were."""
    seen = runs_of(DEFAULT_STACK, shapes((8, 16), 2048), noise=0.1)
    kept = seen[1::3][:6]
    stack = calibrate_runs(kept, DEFAULT_STACK, validate=False).stack
    others = [run for run in seen if run not in kept]
    assert errors_by(others, stack).median < errors_by(others, DEFAULT_STACK).median + 0.05


def test_a_calibrated_stack_can_be_calibrated_further() -> None:
    """Runs in two tables are as many anchors as in one table, and a run given again counts once."""
    seen = runs_of(DEFAULT_STACK, shapes((8,), 2048)[:6], noise=0.05)
    first = calibrate_runs(seen[:4], DEFAULT_STACK, validate=False).stack
    second = calibrate_runs(seen[2:], first, validate=False).stack
    whole = calibrate_runs(seen, DEFAULT_STACK, validate=False).stack
    assert set(second.anchors) == set(whole.anchors)
    assert len(second.anchors) == 6

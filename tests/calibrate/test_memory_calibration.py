"""Fits of constants to runs whose truth is known."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from factories import make_regressors

from pipette_opt.calibrate.memory_calibration import fit_constants, refit_constants
from pipette_opt.calibrate.memory_runs import MemoryRun, predict_memory
from pipette_opt.calibrate.memory_spread import error_quantile, fit_with_errors, oom_probability, upper_gib
from pipette_opt.specs.memory_constants import MemoryConstants, needed

TRUTH = MemoryConstants(counted=1.02, activations=0.35, whole_logit_bytes=6.0, logit_bytes=4.0, unusable_gib=2.0)


def test_constants_that_no_run_tells_stay() -> None:
    """These runs have no embedding table, no step and no waiting buffers; none of their constants moves at all."""
    found, usual = fit_constants(random_runs(30, 1, peaks=False), MemoryConstants()), MemoryConstants()
    untold = ("table_bytes", "step_bytes", "gradient_copy_bytes", "norm_bytes", "fused_score_bytes", "group_gib")
    assert {name: getattr(found, name) for name in untold} == {name: getattr(usual, name) for name in untold}


def random_runs(count: int, seed: int, *, noise: float = 0.02, peaks: bool = True) -> list[MemoryRun]:
    """Runs on 80 GiB that obey ``TRUTH`` up to noise."""
    rng = np.random.default_rng(seed)
    runs = []
    for index in range(count):
        static, saved, gathered = rng.uniform(2, 40), rng.uniform(1, 40, 2), rng.uniform(0, 0.5)
        logits = (0.0, rng.uniform(0, 1.0))
        regressors = np.stack(
            [
                make_regressors(
                    counted=static + saved[stage],
                    base_gib=1.0,
                    activations=saved[stage],
                    whole_logit_bytes=gathered,
                    logit_bytes=logits[stage],
                )
                for stage in range(2)
            ]
        )
        need = regressors @ needed(TRUTH.vector()) * np.exp(rng.normal(0, noise))
        ran_out = bool(need.max() + TRUTH.unusable_gib > 80)
        runs.append(
            MemoryRun(
                regressors=regressors,
                measured_rows=np.array([0, 1]),
                capacity_gib=80.0,
                peak_gib=float(need.max()) if peaks and not ran_out else None,
                ran_out=ran_out,
                group=str(index),
            )
        )
    return runs


@pytest.mark.parametrize(("peak_gib", "is_told"), [(60.0, True), (70.0, True), (78.0, False)])
def test_a_peak_below_the_memory_tells_the_need(peak_gib: float, is_told: bool) -> None:
    """Also if more than the GPU has was predicted; a full GPU leaves open how much more is needed."""
    regressors = make_regressors(counted=90.0, base_gib=1.0, activations=40.0)[None]
    run = MemoryRun(regressors=regressors, measured_rows=np.array([0]), capacity_gib=80.0, peak_gib=peak_gib)
    before, after = (
        float((regressors @ constants.vector())[0])
        for constants in (MemoryConstants(), refit_constants([run], MemoryConstants(), MemoryConstants()))
    )
    assert after == pytest.approx(peak_gib if is_told else before, rel=0.15)
    assert before > 80


def gathering_runs(kept: float, seed: int, *, peaks: bool = True) -> list[MemoryRun]:
    """Runs on 80 GiB with about 40 buffers that wait, and ``kept`` of each layer's gathered inputs."""
    rng = np.random.default_rng(seed)
    truth = MemoryConstants(run_ahead_buffers=40.0, pile_up_buffers=40.0, gathered_per_layer=kept)
    runs = []
    for index in range(40):
        gathered, layers = rng.uniform(0.05, 0.3), int(rng.integers(8, 49))
        regressors = make_regressors(
            counted=rng.uniform(2, 70),
            base_gib=1.0,
            gathered_per_layer=gathered * layers,
            run_ahead_buffers=gathered,
        )[None]
        need = float((regressors @ needed(truth.vector()))[0] * np.exp(rng.normal(0, 0.02)))
        runs.append(
            MemoryRun(
                regressors=regressors,
                measured_rows=np.array([0]),
                capacity_gib=80.0,
                peak_gib=need if peaks and need < 75 else None,
                ran_out=need > 78,
                group=str(index),
            )
        )
    return runs


def mean_error(memory_constants: MemoryConstants, runs: Sequence[MemoryRun]) -> float:
    """Of the peaks, relative."""
    pairs = [
        (run.peak_gib, predict_memory(memory_constants, run).taken_gib) for run in runs if run.peak_gib is not None
    ]
    return float(np.mean([abs(predicted / measured - 1) for measured, predicted in pairs]))


@pytest.mark.search
def test_five_runs_help_and_fifty_are_good() -> None:
    """Error on unseen runs: far off unfitted, useful with five, near the noise with fifty."""
    unseen = random_runs(200, seed=9)
    errors = [
        mean_error(fit_with_errors(random_runs(count, seed=1), MemoryConstants()), unseen) for count in (0, 5, 50)
    ]
    assert errors[0] > 0.1
    assert errors[1] < 0.6 * errors[0]
    assert errors[2] < 0.03


@pytest.mark.search
def test_a_few_spoiled_peaks_do_not_decide() -> None:
    """Five of fifty peaks are doubled; the fit hardly moves."""
    runs = random_runs(60, seed=2)
    spoiled = [
        replace(run, peak_gib=run.peak_gib * 2) if run.peak_gib and index % 12 == 0 else run
        for index, run in enumerate(runs)
    ]
    assert mean_error(fit_constants(spoiled, MemoryConstants()), random_runs(200, seed=8)) < 0.05


@pytest.mark.search
def test_labels_alone_find_the_edge() -> None:
    """Without a single peak, nine in ten of unseen runs are on the right side."""
    fitted = fit_with_errors(random_runs(150, seed=3, peaks=False), MemoryConstants())
    unseen = random_runs(300, seed=7, peaks=False)
    right = [(oom_probability(predict_memory(fitted, run)) > 0.5) == run.ran_out for run in unseen]
    assert np.mean(right) > 0.9
    assert 0.1 < np.mean([run.ran_out for run in unseen]) < 0.9


@pytest.mark.search
def test_bounds_cover_what_they_state() -> None:
    """On unseen runs of the same kind, 90 % and 98 % bounds hold within three binomial deviations."""
    fitted = fit_with_errors(random_runs(150, seed=4), MemoryConstants())
    unseen = [run for run in random_runs(400, seed=6) if run.peak_gib is not None]
    for risk in (0.1, 0.02):
        covered = np.mean(
            [(run.peak_gib or 0.0) <= upper_gib(fitted, predict_memory(fitted, run), risk) for run in unseen]
        )
        assert covered > 1 - risk - 3 * np.sqrt(risk * (1 - risk) / len(unseen)) - 0.01


def test_error_quantiles_are_conformal() -> None:
    """Of 99 errors, a risk of 1 % takes the largest, 2 % the second; beyond their reach, and without, tails decide."""
    errors = tuple(float(value) for value in np.linspace(-0.5, 0.48, 99))
    memory_constants = MemoryConstants(errors=errors, spread=0.05)
    assert error_quantile(memory_constants, 0.01) == errors[-1]
    assert error_quantile(memory_constants, 0.02) == errors[-2]
    assert error_quantile(memory_constants, 0.001) > errors[-1]


@pytest.mark.parametrize(("risk", "table"), [(0.5, 0.0), (0.1, 1.533), (0.05, 2.132), (0.01, 3.747), (0.001, 7.173)])
def test_without_errors_quantiles_are_students(risk: float, table: float) -> None:
    """Four degrees of freedom, by the table; as far below the median as above it."""
    memory_constants = MemoryConstants(spread=0.05)
    assert error_quantile(memory_constants, risk) == pytest.approx(table, abs=1e-3)
    assert error_quantile(memory_constants, 1 - risk) == pytest.approx(-table, abs=1e-3)


def test_a_device_has_what_was_reserved_on_it() -> None:
    """Peaks of up to 79 of 80 GiB leave at most one to context and groups, whatever was assumed."""
    runs = [
        MemoryRun(
            regressors=make_regressors(counted=peak, group_gib=3.0)[None],
            measured_rows=np.array([0]),
            capacity_gib=80.0,
            peak_gib=peak,
            group=str(peak),
        )
        for peak in np.linspace(40.0, 79.0, 14).tolist()
    ]
    assert MemoryConstants().unusable_gib + 3 * MemoryConstants().group_gib > 2.5
    fitted = fit_constants(runs, MemoryConstants())
    assert fitted.unusable_gib + 3 * fitted.group_gib == pytest.approx(1.0, abs=0.1)


def test_kernels_that_nobody_names_widen_bounds_until_a_fit() -> None:
    """50 GiB as assumed, 75 with the other kernel: half as much more, which a fitted stack leaves out."""
    run = MemoryRun(
        regressors=make_regressors(base_gib=50.0)[None],
        measured_rows=np.array([0]),
        capacity_gib=80.0,
        other_regressors=make_regressors(base_gib=75.0)[None],
    )
    stack = replace(MemoryConstants(), base_gib=1.0)
    alone = upper_gib(stack, predict_memory(stack, replace(run, other_regressors=None)), 0.05)
    assert upper_gib(stack, predict_memory(stack, run), 0.05) == pytest.approx(1.5 * alone)
    assert predict_memory(stack, run).taken_gib == pytest.approx(50.0, rel=1e-5)
    assert predict_memory(replace(stack, largest_job=8.0), run).more == 1.0


def test_one_queue_behind_two_constants() -> None:
    """Fifty buffers wait in jobs with a pipeline; what waits without one, nobody measured, is near that."""
    rng = np.random.default_rng(3)
    runs = []
    for index in range(40):
        base, unit = rng.uniform(5, 20), rng.uniform(0.1, 0.5)
        regressors = make_regressors(counted=base, pile_up_buffers=unit)[None]
        taken = 1.02 * base + 50 * unit
        runs.append(MemoryRun(regressors=regressors, measured_rows=np.array([0]), capacity_gib=80.0, peak_gib=taken,
                              group=str(index)))  # fmt: skip
    fitted = fit_constants(runs, MemoryConstants())
    assert fitted.pile_up_buffers == pytest.approx(50, abs=3)
    assert fitted.run_ahead_buffers == pytest.approx(50, abs=6)


def test_a_term_that_needs_a_start_is_found() -> None:
    """Leftovers of the step show only where they are the fullest moment: from zero no slope leads there."""
    rng = np.random.default_rng(5)
    runs = []
    for index in range(40):
        static, saved, size = rng.uniform(5, 20), rng.uniform(1, 12), rng.uniform(1, 6)
        regressors = np.stack(
            [make_regressors(counted=static + saved), make_regressors(counted=static, step_state_bytes=size)]
        )
        taken = max(1.02 * (static + saved), 1.02 * static + 5 * size)
        runs.append(MemoryRun(regressors=regressors, measured_rows=np.array([0, 1]), capacity_gib=80.0, peak_gib=taken,
                              group=str(index)))  # fmt: skip
    assert fit_constants(runs, MemoryConstants()).step_state_bytes == pytest.approx(5, abs=0.3)


def test_no_runs_leave_the_start() -> None:
    """Nothing measured, nothing changed."""
    assert fit_with_errors([], TRUTH) == TRUTH


@pytest.mark.search
@pytest.mark.parametrize("seed", range(4))
def test_gathered_inputs_are_kept_or_not(seed: int) -> None:
    """A little of what is kept does not stand in for buffers that wait; where it is, or a stack has it, it stays."""
    gathered_again = fit_constants(gathering_runs(0.0, seed), MemoryConstants())
    assert gathered_again.gathered_per_layer == 0
    assert refit_constants(gathering_runs(0.0, seed + 4), MemoryConstants(), gathered_again).gathered_per_layer == 0
    kept = fit_constants(gathering_runs(2.0, seed), MemoryConstants())
    assert kept.gathered_per_layer > 1
    known = replace(MemoryConstants(), gathered_per_layer=1.0)
    assert fit_constants(gathering_runs(1.0, seed)[:5], known).gathered_per_layer > 0.2
    labels = fit_constants(gathering_runs(2.0, seed, peaks=False), MemoryConstants())
    assert refit_constants(gathering_runs(2.0, seed, peaks=False), MemoryConstants(), labels).gathered_per_layer > 0


@pytest.mark.parametrize("count", [1, 3, 6])
def test_parts_of_memory_stay_physical_with_few_peaks(count: int) -> None:
    """Peaks as predicted, a little off: no term that does not show is taken for there, and activations remain."""
    rng = np.random.default_rng(count)
    runs = []
    for index in range(count):
        static, saved, size = rng.uniform(5, 20), rng.uniform(5, 12), rng.uniform(1, 6)
        unit = rng.uniform(0.1, 0.5)
        regressors = np.stack(
            [
                make_regressors(counted=static + saved, run_ahead_buffers=unit, activations=saved),
                make_regressors(counted=static, step_state_bytes=size),
            ]
        )
        taken = (static + saved) * float(np.exp(0.03 * rng.normal()))
        runs.append(MemoryRun(regressors=regressors, measured_rows=np.array([0, 1]), capacity_gib=80.0, peak_gib=taken,
                              group=str(index)))  # fmt: skip
    found = fit_with_errors(runs, MemoryConstants())
    assert found.step_state_bytes < 1.0
    assert found.run_ahead_buffers < 5.0
    assert found.activations > -0.2
    for run in runs:
        passes, step = run.regressors @ found.vector()
        assert passes > step

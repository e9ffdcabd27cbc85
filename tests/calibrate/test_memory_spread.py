"""Widths that are learnt: where predictions are uncertain, and for how much larger jobs."""

from dataclasses import replace
from math import comb

import numpy as np
import pytest

from pipette_opt.calibrate.memory_runs import MemoryRun, predict_memory
from pipette_opt.calibrate.memory_spread import fit_with_errors, oom_probability, quantile_limit, upper_gib
from pipette_opt.specs.memory_constants import KINDS, REGRESSORS, MemoryConstants
from pipette_opt.specs.memory_prior import SPREADS

CERTAIN, BUFFERS = REGRESSORS.index("counted"), REGRESSORS.index("run_ahead_buffers")
START = MemoryConstants(counted=1.0, run_ahead_buffers=1.0)


def runs(count: int, seed: int, *, num_gpus: int = 16, shift: float = 0.0) -> list[MemoryRun]:
    """Half of a few is certain to 1.5 %, buffers to 30 %; ``shift`` makes larger jobs worse."""
    rng = np.random.default_rng(seed)
    found = []
    for index in range(count):
        total, share = rng.uniform(10, 60), rng.choice([0.0, 0.5])
        regressors = np.zeros((1, len(REGRESSORS)))
        regressors[0, CERTAIN], regressors[0, BUFFERS] = total * (1 - share), total * share
        real = regressors[0, CERTAIN] * np.exp(rng.normal(0, 0.015 + shift))
        real += regressors[0, BUFFERS] * np.exp(rng.normal(0, 0.3))
        found.append(
            MemoryRun(
                regressors=regressors,
                measured_rows=np.array([0]),
                capacity_gib=1e3,
                peak_gib=float(real),
                group=str(index),
                num_gpus=num_gpus,
            )
        )
    return found


def covered(memory_constants: MemoryConstants, outside: list[MemoryRun], risk: float) -> float:
    """Share of peaks at or below their bound."""
    bounds = [upper_gib(memory_constants, predict_memory(memory_constants, run), risk) for run in outside]
    return float(np.mean([(run.peak_gib or 0) <= bound for run, bound in zip(outside, bounds, strict=True)]))


@pytest.mark.search
def test_uncertain_terms_get_wider_bounds() -> None:
    """The bound of a job without buffers is tight, of one with half its memory in buffers wide; both cover."""
    fitted = fit_with_errors(runs(200, 1), START)
    assert fitted.spread < 0.03
    assert fitted.buffer_spread > 0.15
    unseen = runs(600, 2)
    plain = [run for run in unseen if not run.regressors[0, BUFFERS]]
    mixed = [run for run in unseen if run.regressors[0, BUFFERS]]
    tight, wide = (predict_memory(fitted, part[0]).taken_spread for part in (plain, mixed))
    assert wide > 3 * tight
    for part in (plain, mixed):
        assert covered(fitted, part, 0.1) == pytest.approx(0.9, abs=0.06)


def test_larger_jobs_get_wider_bounds() -> None:
    """Each doubling beyond the largest job of the fit adds its share of the variance; inside nothing changes."""
    fitted = replace(START, spread=0.02, growth=0.5, largest_job=32)
    (run,) = runs(1, 3)
    inside, double, eight = (
        predict_memory(fitted, replace(run, num_gpus=num_gpus)).taken_spread for num_gpus in (16, 64, 256)
    )
    assert double / inside == pytest.approx(np.sqrt(1.5))
    assert eight / inside == pytest.approx(np.sqrt(2.5))
    assert predict_memory(replace(fitted, largest_job=0), replace(run, num_gpus=256)).taken_spread == inside


@pytest.mark.search
def test_growth_is_measured_where_sizes_differ() -> None:
    """Errors five times as large on the larger jobs: the variance grows more than where they are alike."""
    alike = fit_with_errors(runs(60, 4, num_gpus=8) + runs(60, 5, num_gpus=16), START)
    worse = fit_with_errors(runs(60, 4, num_gpus=8) + runs(60, 5, num_gpus=16, shift=0.1), START)
    assert alike.growth < 0.6
    assert worse.growth > 1
    assert fit_with_errors(runs(120, 6), START).growth == START.growth


@pytest.mark.search
def test_rare_errors_of_larger_jobs_widen_bounds_alone() -> None:
    """A tenth of the larger jobs take half as much again: bounds beyond the fit reach further, the risk stays."""
    known = runs(60, 4, num_gpus=8) + runs(60, 5, num_gpus=16)
    odd = [
        replace(run, peak_gib=1.5 * (run.peak_gib or 0)) if run.num_gpus == 16 and index % 10 == 0 else run
        for index, run in enumerate(known)
    ]
    fitted = fit_with_errors(odd, START)
    assert fitted.shift > 1.5
    assert fitted.growth < 0.6
    (run,) = runs(1, 3)
    inside, beyond = (predict_memory(fitted, replace(run, num_gpus=num_gpus)) for num_gpus in (16, 32))
    wider = np.log(upper_gib(fitted, beyond, 0.05) / beyond.taken_gib) / np.log(
        upper_gib(fitted, inside, 0.05) / inside.taken_gib
    )
    assert wider == pytest.approx(fitted.shift * np.sqrt(1 + fitted.growth))
    assert oom_probability(beyond) == oom_probability(replace(beyond, shift=1.0))


@pytest.mark.parametrize("count", [1, 20, 44, 45, 145, 400])
def test_the_limit_of_a_quantile_is_an_order_statistic(count: int) -> None:
    """By counting: the first with the quantile of 95 % below it in 9 of 10 samples; the largest of fewer than 45."""
    chances = [comb(count, below) * 0.95**below * 0.05 ** (count - below) for below in range(count)]
    ranks = [rank for rank in range(1, count + 1) if sum(chances[:rank]) >= 0.9]
    assert quantile_limit(np.arange(count, 0, -1.0), 0.95, 0.9) == (ranks[0] if ranks else count)
    assert bool(ranks) == (count >= 45)


def test_the_limit_of_a_quantile_nears_it() -> None:
    """Of many values, 1.28 binomial standard deviations above."""
    assert quantile_limit(np.arange(5000.0), 0.95, 0.9) == pytest.approx(4750 + 1.2816 * np.sqrt(0.0475 * 5000), abs=2)


@pytest.mark.search
def test_few_peaks_keep_usual_widths() -> None:
    """Four peaks teach no width; six teach some, without conformal errors."""
    four, six = (fit_with_errors(runs(count, 7), START) for count in (4, 6))
    assert all(getattr(four, name) == 0 for name in KINDS)
    assert all(getattr(six, name) > 0 for name in KINDS)
    assert not six.errors


def test_room_decides_the_risk() -> None:
    """
    A job with room for two standard deviations has a probability of 2 % of running out; its bound is wider.

    The sum of the tensors is unknown by 3 % of it, and a prediction with known constants errs by 5 %.
    """
    deviation = np.hypot(0.05, np.sqrt(np.log1p(SPREADS["counted"] ** 2)))
    memory_constants = replace(START, spread=0.05, base_gib=0.0, unusable_gib=0.0)
    regressors = np.zeros((1, len(REGRESSORS)))
    regressors[0, CERTAIN] = 50.0
    capacity = 50.0 * np.exp(2.0537 * deviation)
    memory = predict_memory(
        memory_constants, MemoryRun(regressors=regressors, measured_rows=np.array([0]), capacity_gib=capacity)
    )
    assert oom_probability(memory) == pytest.approx(0.02, rel=1e-3)
    assert upper_gib(memory_constants, memory, 0.02) == pytest.approx(50.0 * np.exp(2.9985 * deviation), rel=1e-4)

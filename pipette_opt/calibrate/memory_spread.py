"""
Errors of memory predictions, learned from held-out runs: a standard deviation for each run, and upper bounds.

Locally weighted conformal prediction. The standard deviation of an error grows with the share of uncertain parts:
waiting buffers, leftovers of the step, logits, activations. It also grows with each doubling of the job beyond the
largest fitted job. Held-out groups determine the first. Larger jobs, predicted by a fit to smaller jobs, determine the
second. An upper bound uses the quantile of errors in units of their own standard deviations.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

from pipette_opt.base.types import FloatArray
from pipette_opt.calibrate.memory_calibration import fit_constants, refit_constants, with_information
from pipette_opt.calibrate.memory_runs import MemoryRun, RunMemory, predict_memory
from pipette_opt.calibrate.memory_versions import as_last_version, version_offsets
from pipette_opt.memory.odds import normal_beyond
from pipette_opt.memory.twins import TAILS, likeliest_alike, twin_offsets, without_twins
from pipette_opt.specs.memory_constants import KINDS, SHOWN, MemoryConstants, shares

USUAL = {
    "spread": 0.03,
    "activation_spread": 0.1,
    "logit_spread": 0.15,
    "buffer_spread": 0.3,
    "step_spread": 0.4,
}
"""Prior centres of the standard deviations, as shares of the memory part that each is for."""

DOUBT = 0.5
"""Prior standard deviation of the logarithm of each standard deviation. Chosen."""

STEPS = (2.0, 1.4, 1.15, 1.05)
"""Factors by which standard deviations are scaled in the search for the likeliest, in turn. Chosen."""

NARROWEST, WIDEST = 0.01, 2.0
"""Limits of the standard deviations. Chosen."""

MIN_ERRORS = 20
"""Fewest errors for empirical quantiles; with fewer, quantiles are those of Student's t. Chosen."""

MIN_LEFT_OUT = 5
"""Fewest measured peaks from which standard deviations are learned. Chosen."""

FOLDS = 5
"""Number of folds of the cross-validation over groups. Chosen."""

SMALLEST_GROWTH, LARGEST_GROWTH = 0.2, 1.5
"""Limits of the growth of the variance with each doubling of the job. Chosen."""

RARE = 0.95
"""Quantile of errors from which the growth of rare errors is learned. Chosen."""

SURE = 0.9
"""Confidence of the upper limit of the quantile ``RARE``; few errors say little about rare errors. Chosen."""

LARGEST_SHIFT = 3.0
"""Largest factor on rare errors; a calibration beyond it says nothing about larger jobs. Chosen."""


@dataclass(frozen=True, slots=True, eq=False)
class _LeftOut:
    """Errors of runs, mostly held out, with each run's shares of ``KINDS``, its GPUs and its work per rank."""

    errors: FloatArray
    parts: FloatArray
    num_gpus: FloatArray
    work: NDArray[np.str_]

    def __len__(self) -> int:
        return len(self.errors)


def fit_with_errors(runs: Sequence[MemoryRun], base: MemoryConstants) -> MemoryConstants:
    """Return fitted constants with standard deviations and held-out errors; the starting stack if there are no runs."""
    if not runs:
        return base
    base = without_twins(base)  # offsets belong to other constants
    versions = version_offsets(runs, base)
    runs = as_last_version(runs, versions)
    found = replace(fit_constants(runs, base), largest_job=float(max(run.num_gpus for run in runs)))
    learned = learn_spread(runs, base, found)
    if learned is found:  # too few peaks for errors of held-out runs
        learned = with_information(found, runs, base)
    return replace(learned, versions=versions)


def learn_spread(runs: Sequence[MemoryRun], base: MemoryConstants, found: MemoryConstants) -> MemoryConstants:
    """Return a fit with standard deviations, growth and scaled errors added; unchanged with too few measured peaks."""
    with_peaks = [run for run in runs if run.peak_gib is not None]
    if len(with_peaks) < MIN_LEFT_OUT:
        return found
    grouped = _groups_left_out(runs, base, found)
    widths = _learn_widths(grouped)
    fitted = replace(found, **widths)  # type: ignore[arg-type]
    fitted = _learn_shift(runs, base, fitted)
    scaled = np.sort(grouped.errors / _widths(grouped, widths))
    errors = tuple(float(value) for value in scaled) if len(scaled) >= MIN_ERRORS else ()
    alike = likeliest_alike(grouped.work.tolist(), grouped.errors / _widths(grouped, widths))
    seen = _left_out(fitted, runs)
    twins = twin_offsets(seen.work.tolist(), seen.errors / _widths(seen, widths), alike)
    return replace(fitted, errors=errors, alike=alike, twins=twins)


def error_quantile(memory_constants: MemoryConstants, risk: float) -> float:
    """
    Return the error, in standard deviations, that is exceeded with probability at most ``risk``.

    If the fit kept its errors, the result is a split conformal quantile, and at least the largest error for small
    risks. Otherwise it is a quantile of Student's t, since errors have tails.
    """
    errors = np.array(memory_constants.errors)
    if not len(errors):
        return _student_quantile(risk)
    normal = NormalDist().inv_cdf(1 - risk)
    if risk * (len(errors) + 1) >= 1:
        exceeding = int(np.floor(risk * (len(errors) + 1) + 1e-9))
        return float(errors[len(errors) - exceeding])
    return max(normal, float(errors[-1]))


def _student_quantile(risk: float) -> float:
    """Return the quantile of Student's t with ``TAILS`` = 4 (Shaw, J. Comput. Finance 9(4), 2006)."""
    root = 2 * np.sqrt(risk * (1 - risk))
    size = 2 * np.sqrt(max(np.cos(np.arccos(min(root, 1.0)) / 3) / root - 1, 0.0))
    return float(np.copysign(size, 0.5 - risk))


def oom_probability(memory: RunMemory) -> float:
    """Return the probability that a run needs more than the usable memory, with all that is unknown about the stack."""
    room = np.log(max(memory.usable_gib, 1e-3) / memory.needed_gib)
    return float(normal_beyond(np.array(room / np.hypot(memory.needed_spread, memory.needed_unknown))))


def upper_gib(memory_constants: MemoryConstants, memory: RunMemory, risk: float) -> float:
    """Return the memory of the measured stages that is exceeded with probability ``risk``, GiB."""
    most = memory.taken_gib * memory.more
    spread = np.hypot(memory.shift * memory.taken_spread, memory.taken_unknown)
    return most * float(np.exp(error_quantile(memory_constants, risk) * spread))


def _left_out(memory_constants: MemoryConstants, outside: Sequence[MemoryRun]) -> _LeftOut:
    """Return the errors of a fit on the runs with measured peaks."""
    measured = [run for run in outside if run.peak_gib is not None]
    constants = memory_constants.vector() * SHOWN
    errors, parts = np.zeros(len(measured)), np.zeros((len(measured), len(KINDS)))
    work = []
    for index, run in enumerate(measured):
        rows = run.regressors[run.measured_rows]
        errors[index] = np.log((run.peak_gib or 0.0) / predict_memory(memory_constants, run).taken_gib)
        fullest = int((rows @ constants).argmax())
        parts[index] = shares(rows[fullest], constants)
        work.append(run.work[run.measured_rows[fullest]] if run.work else "")
    return _LeftOut(errors, parts, np.array([float(run.num_gpus) for run in measured]), np.array(work, dtype=np.str_))


def _groups_left_out(runs: Sequence[MemoryRun], base: MemoryConstants, found: MemoryConstants) -> _LeftOut:
    """Return the error of each run with a peak, predicted by a fit without its group."""
    groups = sorted({run.group for run in runs})
    folds = min(FOLDS, len(groups))
    fold_of = {group: index % folds for index, group in enumerate(groups)}
    pieces = []
    for fold in range(folds):
        inside = [run for run in runs if fold_of[run.group] != fold]
        outside = [run for run in runs if fold_of[run.group] == fold]
        pieces.append(_left_out(refit_constants(inside or outside, base, found), outside))
    columns = zip(*((piece.errors, piece.parts, piece.num_gpus, piece.work) for piece in pieces), strict=True)
    return _LeftOut(*map(np.concatenate, columns))


def _widths(left_out: _LeftOut, widths: dict[str, float]) -> FloatArray:
    kinds = np.array([widths[name] for name in KINDS])
    found: FloatArray = np.sqrt(widths["spread"] ** 2 + left_out.parts**2 @ kinds**2)
    return found


def _learn_widths(left_out: _LeftOut) -> dict[str, float]:
    """Return the likeliest standard deviations, found by scaling each in turn with ever smaller factors."""
    widths = dict(USUAL)
    best = _minus_log_posterior(left_out, widths)
    for factor in STEPS:
        moved = True
        while moved:
            moved = False
            for name in widths:
                for trial in (widths[name] * factor, widths[name] / factor):
                    changed = widths | {name: float(np.clip(trial, NARROWEST, WIDEST))}
                    loss = _minus_log_posterior(left_out, changed)
                    if loss < best - 1e-9:
                        widths, best, moved = changed, loss, True
    return widths


def _minus_log_posterior(left_out: _LeftOut, widths: dict[str, float]) -> float:
    """Return minus the log posterior of the standard deviations, with Student's t errors and log-normal priors."""
    scale = _widths(left_out, widths)
    errors = (TAILS + 1) / 2 * np.log1p((left_out.errors / scale) ** 2 / TAILS) + np.log(scale)
    priors = [0.5 * (np.log(widths[name] / usual) / DOUBT) ** 2 for name, usual in USUAL.items()]
    return float(errors.sum() + sum(priors))


def _learn_shift(runs: Sequence[MemoryRun], base: MemoryConstants, fitted: MemoryConstants) -> MemoryConstants:
    """
    Return a fit with the errors of larger jobs: the largest jobs are predicted by a fit to the smaller jobs.

    The median error gives the growth of the variance per doubling, on which OOM risks depend. An upper limit of the
    quantile
    ``RARE`` gives the additional growth of rare errors, on which upper bounds depend; the worst step between sizes
    counts. The fit is unchanged without enough jobs of several sizes.
    """
    largest = max(run.num_gpus for run in runs if run.peak_gib is not None)
    smaller = [run for run in runs if run.num_gpus < largest]
    larger = [run for run in runs if run.num_gpus == largest and run.peak_gib is not None]
    if min(sum(run.peak_gib is not None for run in smaller), len(larger)) < MIN_ERRORS:
        return fitted
    small = without_twins(fit_with_errors(smaller, base))  # most larger jobs have no offsets
    shifted = _left_out(small, larger)
    after = shifted.errors / _widths(shifted, {name: getattr(small, name) for name in USUAL})
    doublings = np.log2(largest / small.largest_job)
    ratio = np.median(np.abs(after)) / np.median(np.abs(small.errors))
    growth = float(np.clip((ratio**2 - 1) / doublings, SMALLEST_GROWTH, LARGEST_GROWTH))
    usual = max(float(np.quantile(small.errors, RARE)), 1.0) * np.sqrt(1 + growth * doublings)
    shift = float(np.clip(quantile_limit(after, RARE, SURE) / usual, small.shift, LARGEST_SHIFT))
    return replace(fitted, growth=growth, shift=shift)


def quantile_limit(values: FloatArray, level: float, sure: float) -> float:
    """
    Return an upper limit of a quantile with confidence ``sure``; the largest value if no limit is that certain.

    The limit is the smallest order statistic above enough values: of ``n`` values, the number below the quantile is
    binomial (David and Nagaraja, Order Statistics, 3rd edition, section 7.1).
    """
    count = len(values)
    logs = np.cumsum([0.0, *np.log(np.arange(1, count + 1))])  # logarithms of factorials
    index = np.arange(count)
    chances = logs[-1] - logs[:-1] - logs[:0:-1] + index * np.log(level) + (count - index) * np.log(1 - level)
    enough = np.flatnonzero(np.cumsum(np.exp(chances)) >= sure)
    return float(np.sort(values)[enough[0] if len(enough) else -1])

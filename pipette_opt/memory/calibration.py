"""
Fit the constants of a stack to measured runs: peaks where they were measured, and whether runs had enough memory.

A penalised likelihood. A peak says what its stage takes, within a relative error under a Huber loss; a run that died,
or did not, says on which side of the device's memory the largest need lies (a probit with a share of labels that mean
nothing, as jobs fail for many reasons). Every constant has a prior around the starting stack, so that five runs move
what they can tell and leave the rest. The errors that bounds are made of are those of runs left out of the fit.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np

from pipette_opt.memory.framework import COLUMNS, LOWEST, Framework, needed, normal_beyond
from pipette_opt.types import FloatArray, IntArray

SPREADS = {
    "counted": 0.03,
    "base_gib": 0.7,
    "parameter_bytes": 1.5,
    "gradient_copy_bytes": 1.5,
    "step_bytes": 2.0,
    "activations": 0.4,
    "norm_bytes": 6.0,
    "score_bytes": 4.0,
    "logit_bytes": 6.0,
    "whole_logit_bytes": 12.0,
    "table_bytes": 5.0,
    "gathered_buffers": 8.0,
    "gathered_per_layer": 1.5,
    "run_ahead_buffers": 25.0,
    "pile_up_buffers": 1.0,
    "unusable_gib": 0.8,
}
"""Standard deviations of the priors: by how much stacks differ."""

HUBER = 1.5
"""Errors beyond so many standard deviations count linearly."""

MEANINGLESS = 0.05
"""Share of labels that do not speak of memory."""

FEWEST_ERRORS = 20
TYPICAL_SPREAD = 0.03
SMALLEST_SPREAD, LARGEST_SPREAD = 0.015, 0.3
FOLDS = 5


CERTAIN = np.array([name != "run_ahead_buffers" for name in COLUMNS])
"""Columns that no pause of the host makes smaller."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class MemoryRun:
    """
    What is known of the memory of one run.

    Parameters
    ----------
    columns
        What one unit of each constant weighs in each stage, GiB, shape ``(num_stages, len(COLUMNS))``.
    measured_stages
        Stages among which the peak was the largest.
    capacity_gib
        Memory of one GPU.
    peak_gib
        ``None`` if not measured.
    ran_out
        Whether the job ran out of memory; ``None`` if nobody knows.
    group
        Runs of one group are left out together.
    num_gpus
        Of the whole job.
    formula_gib
        The closed formula alone, of each stage, shape ``(num_stages,)``; for comparison.
    """

    columns: FloatArray
    measured_stages: IntArray
    capacity_gib: float
    peak_gib: float | None = None
    ran_out: bool | None = None
    group: str = ""
    num_gpus: int = 1
    formula_gib: FloatArray | None = None


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RunMemory:
    """What is said about one run, GiB: what the measured stages take, what the fullest stage needs, what there is."""

    taken_gib: float
    needed_gib: float
    usable_gib: float


def predict_memory(framework: Framework, run: MemoryRun) -> RunMemory:
    """
    What a run takes and needs.

    What it takes is at most what there is, unless even what cannot be shared in time is more.
    """
    usable = run.capacity_gib - framework.unusable_gib
    constants = framework.vector()
    needs = run.columns @ needed(constants)
    certain = run.columns @ (needed(constants) * CERTAIN)
    bounded = np.minimum(run.columns @ constants, np.maximum(usable, certain))
    return RunMemory(
        taken_gib=float(bounded[run.measured_stages].max()), needed_gib=float(needs.max()), usable_gib=usable
    )


def fit_framework(runs: Sequence[MemoryRun], base: Framework) -> Framework:
    """Constants, spread and left-out errors for the runs; the starting stack where they say nothing."""
    if not runs:
        return base
    found = _fit(runs, base)
    largest = max(run.num_gpus for run in runs)
    return replace(found, errors=tuple(_left_out_errors(runs, base, found)), largest_job=float(largest))


def _fit(runs: Sequence[MemoryRun], base: Framework) -> Framework:
    """Alternate between constants and spread."""
    framework, has_peaks = base, sum(run.peak_gib is not None for run in runs) >= 3
    for _ in range(4):
        framework = _Posterior(runs, base, framework.spread).maximise(framework)
        if has_peaks:
            framework = replace(framework, spread=_robust_spread(peak_errors(framework, runs)))
    if has_peaks:
        return framework
    grid = [0.015, 0.02, 0.03, 0.045, 0.07, 0.1, 0.15]
    tries = [(_Posterior(runs, base, spread), spread) for spread in grid]
    fits = [(posterior, replace(posterior.maximise(framework), spread=spread)) for posterior, spread in tries]
    return min(fits, key=lambda pair: pair[0].loss(_state(pair[1])) + _spread_penalty(pair[1].spread))[1]


def _spread_penalty(spread: float) -> float:
    """Needs are predicted to about 3 % once a stack is known; labels alone hardly tell."""
    return float(0.5 * (np.log(spread / TYPICAL_SPREAD) / 0.4) ** 2)


def peak_errors(framework: Framework, runs: Sequence[MemoryRun]) -> FloatArray:
    """``log(measured / predicted)`` of every run with a peak."""
    pairs = [(run.peak_gib, predict_memory(framework, run).taken_gib) for run in runs if run.peak_gib is not None]
    return np.array([np.log(measured / predicted) for measured, predicted in pairs])


def _robust_spread(errors: FloatArray) -> float:
    """From the median of absolute errors, as if they were normal."""
    return float(np.clip(1.4826 * np.median(np.abs(errors)), SMALLEST_SPREAD, LARGEST_SPREAD))


def _left_out_errors(runs: Sequence[MemoryRun], base: Framework, found: Framework) -> list[float]:
    """
    Errors of groups left out, or of the larger jobs by a fit to the smaller ones if those are larger.

    None where there are too few to say more than the spread does.
    """
    if sum(run.peak_gib is not None for run in runs) < FEWEST_ERRORS:
        return []

    def errors_of(inside: Sequence[MemoryRun], outside: Sequence[MemoryRun]) -> list[float]:
        errors = peak_errors(_Posterior(inside, base, found.spread).maximise(found), outside)
        return [float(error) for error in errors]

    groups = sorted({run.group for run in runs})
    folds = min(FOLDS, len(groups))
    fold_of = {group: index % folds for index, group in enumerate(groups)}
    errors: list[float] = []
    for fold in range(folds):
        inside = [run for run in runs if fold_of[run.group] != fold]
        outside = [run for run in runs if fold_of[run.group] == fold]
        errors += errors_of(inside, outside) if inside else errors_of(outside, outside)
    largest = max(run.num_gpus for run in runs)
    smaller = [run for run in runs if run.num_gpus < largest]
    larger = [run for run in runs if run.num_gpus == largest]
    if min(sum(run.peak_gib is not None for run in part) for part in (smaller, larger)) >= FEWEST_ERRORS:
        shifted = errors_of(smaller, larger)
        errors = max(errors, shifted, key=lambda some: float(np.quantile(some, 0.9)))
    return sorted(errors)


def _state(framework: Framework) -> FloatArray:
    """The free numbers: constants of the columns, and what is not usable."""
    return np.append(framework.vector(), framework.unusable_gib)


class _Posterior:
    """Likelihood and priors over the free numbers, with a spread given."""

    def __init__(self, runs: Sequence[MemoryRun], base: Framework, spread: float) -> None:
        self.spread = spread
        self.centre = _state(base)
        self.widths = np.array([SPREADS[name] for name in (*COLUMNS, "unusable_gib")])
        self.lowest = np.array([LOWEST.get(name, 0.0) for name in (*COLUMNS, "unusable_gib")])
        self.kept = np.append(needed(np.ones(len(COLUMNS))), 1.0)
        peaks = [run for run in runs if run.peak_gib is not None]
        labels = [run for run in runs if run.ran_out is not None]
        self.peaks, self.labels = _Stacked(peaks, measured=True), _Stacked(labels, measured=False)
        self.measured = np.array([run.peak_gib for run in peaks], dtype=np.float64)
        self.ran_out = np.array([run.ran_out for run in labels], dtype=bool)

    def maximise(self, start: Framework) -> Framework:
        """Gauss-Newton steps in what is not held by a limit, halved until they help."""
        state = np.maximum(_state(start), self.lowest)
        loss = self.loss(state)
        for _ in range(60):
            gradient, curvature = self._slopes(state)
            free = (state > self.lowest) | (gradient < 0)
            step = np.zeros_like(state)
            step[free] = -np.linalg.solve(curvature[np.ix_(free, free)], gradient[free])
            before = loss
            for _ in range(12):
                trial = np.maximum(state + step, self.lowest)
                trial_loss = self.loss(trial)
                if trial_loss < loss:
                    state, loss = trial, trial_loss
                    break
                step = step / 2
            if before - loss < 1e-6 * (1 + abs(before)):
                break
        values = dict(zip((*COLUMNS, "unusable_gib"), state.tolist(), strict=True))
        return replace(start, **values)

    def loss(self, state: FloatArray) -> float:
        """Minus the logarithm of the posterior."""
        total = 0.5 * (((state - self.centre) / self.widths) ** 2).sum()
        if len(self.measured):
            size = np.abs(self._peak_errors(state)[0])
            total += np.where(size < HUBER, 0.5 * size**2, HUBER * (size - 0.5 * HUBER)).sum()
        if len(self.ran_out):
            total -= np.log(self._likelihood(self._margins(state)[0])).sum()
        return float(total)

    def _slopes(self, state: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Gradient, and a positive approximation of the curvature."""
        gradient = (state - self.centre) / self.widths**2
        curvature = np.diag(1 / self.widths**2)
        if len(self.measured):
            errors, slopes = self._peak_errors(state)
            weights = np.minimum(1.0, HUBER / np.maximum(np.abs(errors), 1e-9))
            gradient = gradient + slopes.T @ (weights * errors)
            curvature = curvature + slopes.T @ (slopes * weights[:, None])
        if len(self.ran_out):
            margins, slopes = self._margins(state)
            likelihood = self._likelihood(margins)
            rise = (1 - MEANINGLESS) * np.exp(-0.5 * margins**2) / np.sqrt(2 * np.pi) / likelihood
            gradient = gradient - slopes.T @ rise
            curvature = curvature + slopes.T @ (slopes * (rise**2)[:, None])
        return gradient, curvature

    def _peak_errors(self, state: FloatArray) -> tuple[FloatArray, FloatArray]:
        """
        Errors in units of the spread, and their slopes.

        A stage that takes more than there is shows only what there is, and that it does.
        """
        rows = self.peaks.largest(state[:-1])
        taken = rows @ state[:-1]
        usable = self.peaks.capacity - state[-1]
        errors = np.log(np.minimum(taken, usable) / self.measured) / self.spread
        inside = taken < usable
        slopes = np.zeros((len(errors), len(state)))
        slopes[:, :-1] = np.where(inside[:, None], rows / taken[:, None] / self.spread, 0.0)
        errors = np.where(inside, errors, 0.0)
        return errors, slopes

    def _margins(self, state: FloatArray) -> tuple[FloatArray, FloatArray]:
        """How far, in units of the spread, each label is on its right side; and the slopes."""
        kept = state[:-1] * self.kept[:-1]
        rows = self.labels.largest(kept) * self.kept[:-1]
        total = rows @ state[:-1] + state[-1]
        sign = np.where(self.ran_out, 1.0, -1.0)
        margins = sign * np.log(total / self.labels.capacity) / self.spread
        slopes = np.column_stack([rows, np.ones(len(total))]) * (sign / total / self.spread)[:, None]
        return margins, slopes

    def _likelihood(self, margins: FloatArray) -> FloatArray:
        likelihood: FloatArray = (1 - MEANINGLESS) * _normal_cdf(margins) + MEANINGLESS / 2
        return likelihood


class _Stacked:
    """The stages of many runs as one matrix."""

    def __init__(self, runs: Sequence[MemoryRun], *, measured: bool) -> None:
        parts = [run.columns[run.measured_stages] if measured else run.columns for run in runs]
        self.rows = np.concatenate(parts) if parts else np.zeros((0, len(COLUMNS)))
        self.ends = np.concatenate([[0], np.cumsum([len(part) for part in parts])]).astype(np.int64)
        self.capacity = np.array([run.capacity_gib for run in runs])

    def largest(self, constants: FloatArray) -> FloatArray:
        """The row of each run's fullest stage."""
        totals = self.rows @ constants
        picked = [start + int(totals[start:end].argmax()) for start, end in pairwise(self.ends)]
        rows: FloatArray = self.rows[picked]
        return rows


def _normal_cdf(values: FloatArray) -> FloatArray:
    return 1 - normal_beyond(values)


def error_quantile(framework: Framework, risk: float) -> float:
    """
    ``log(real / predicted)`` that is exceeded with at most that probability.

    Split conformal where the fit left errors, and at least what they allow; else normal with the spread.
    """
    errors = np.array(framework.errors)
    if len(errors) and risk * (len(errors) + 1) >= 1:
        exceeding = int(np.floor(risk * (len(errors) + 1) + 1e-9))
        return float(errors[len(errors) - exceeding])
    return _normal_quantile(1 - risk) * max(framework.spread, float(errors.std()) if len(errors) else 0.0)


def oom_probability(framework: Framework, memory: RunMemory) -> float:
    """Probability that a run needs more than there is."""
    room = np.log(max(memory.usable_gib, 1e-3) / memory.needed_gib)
    return float(normal_beyond(np.array(room / framework.spread)))


def upper_gib(framework: Framework, memory: RunMemory, risk: float, num_gpus: int = 1) -> float:
    """
    What the measured stages take with at most that risk of more.

    Parameters
    ----------
    num_gpus
        Of the job. Beyond the largest job of the fit the variance of errors is taken to grow by one unit with each
        doubling: an assumption, as runs of one size cannot tell.
    """
    doublings = np.log2(max(num_gpus / framework.largest_job, 1.0)) if framework.largest_job else 0.0
    return memory.taken_gib * float(np.exp(error_quantile(framework, risk) * np.sqrt(1 + doublings)))


def _normal_quantile(share: float) -> float:
    from statistics import NormalDist

    return NormalDist().inv_cdf(share)

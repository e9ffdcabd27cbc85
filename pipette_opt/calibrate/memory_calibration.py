"""
Fit of a stack's memory constants to measured peaks, and to whether runs ran out of memory.

Maximises a penalised likelihood. A peak measures the memory of its stage, with a relative error under a Huber loss, and
is at most the GPU's memory. A label (ran out of memory, or did not) shows on which side of the GPU's memory the run's
largest need lies. Its likelihood is a probit, with a share of meaningless labels, since jobs fail for many reasons.
Each constant has a prior around the starting stack, so five runs change only the constants that they determine.
Held-out runs determine the error of predictions (:mod:`~pipette_opt.calibrate.memory_spread`).
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from pipette_opt.base.typed import limits_of
from pipette_opt.base.types import FloatArray
from pipette_opt.calibrate.memory_runs import MemoryRun, peak_errors
from pipette_opt.memory.filter import FULL
from pipette_opt.memory.odds import normal_beyond
from pipette_opt.specs.memory_constants import HIDDEN, NEEDED, REGRESSORS, SHOWN, MemoryConstants, needed
from pipette_opt.specs.memory_prior import SPREADS, STATE, precision_of, with_figures

HOPS: Sequence[Mapping[str, float]] = (
    {"run_ahead_buffers": 40.0, "pile_up_buffers": 40.0},
    {"step_state_bytes": 7.0},
)
"""Values at which the search starts again; at their usual start these constants have no derivative."""

OPTIONAL = "gathered_per_layer"
"""
Constant that a stack either has or lacks: inputs of sequence parallelism are kept gathered for the backward pass.

A small value stands in for other terms (in few runs waiting buffers also grow with layers). Unless the starting stack
has the constant, it is kept only if Schwarz's criterion prefers it over one parameter less (Annals of Statistics 6,
1978). Without measured peaks the criterion cannot be applied.
"""

UNDECIDED = 1.0
"""Log likelihood by which a restart from ``HOPS`` may be worse: predicting too little memory costs more."""

FEW_RUNS = 20
"""Number of runs below which a restart from ``HOPS`` must be better by ``UNDECIDED``. Chosen."""

HUBER = 1.5
"""Absolute error, in standard deviations, above which the loss is linear. Chosen."""

MEANINGLESS = 0.05
"""Share of OOM labels with causes other than memory. Chosen."""

LIMIT_GIB = 0.1
"""Standard deviation of a measured peak's excess over the GPU's memory, GiB. Chosen."""

MIN_PEAKS = 3
"""Fewest measured peaks from which the standard deviation of errors is fitted. Chosen."""

USUAL_SPREAD, USUAL_PEAKS = 0.05, 8
"""Prior standard deviation of a stack's errors, and the number of peaks that this prior counts as. Chosen."""

TYPICAL_SPREAD, SMALLEST_SPREAD, LARGEST_SPREAD = 0.03, 0.015, 0.3
"""Prior centre, lower and upper limit of the standard deviation of relative errors. Chosen."""

LABEL_SPREADS = (0.015, 0.02, 0.03, 0.045, 0.07, 0.1, 0.15)
"""Standard deviations of relative errors that are tried if no peaks were measured. Chosen."""

UNTOLD = 1e-4
"""Distance from the starting stack, in standard deviations of the prior, up to which a constant stays. Chosen."""

MAX_STEPS, INSIDE = 60, 1e-9
"""Most steps of a search, and the distance of its start from the lower limits. Chosen."""


def refit_constants(runs: Sequence[MemoryRun], base: MemoryConstants, start: MemoryConstants) -> MemoryConstants:
    """Return constants fitted to some of the runs, with standard deviation and start of a fit to more runs."""
    return _Posterior(runs, base, start.spread, without_optional=_is_without(start, runs)).maximise(start)


def moved_constants(runs: Sequence[MemoryRun], base: MemoryConstants) -> MemoryConstants:
    """Return the constants moved by further runs, and what these runs tell (``information``)."""
    return with_information(refit_constants(runs, base, base), runs, base)


def with_information(found: MemoryConstants, runs: Sequence[MemoryRun], base: MemoryConstants) -> MemoryConstants:
    """Return constants that were fitted to runs from ``base``, with what the runs tell added to ``information``."""
    posterior = _Posterior(runs, base, found.spread)
    return with_figures(found, posterior.information(_state(found)))


def fit_constants(runs: Sequence[MemoryRun], base: MemoryConstants) -> MemoryConstants:
    """
    Return fitted constants and their standard deviation: from the starting stack, then from each restart that is
    likelier.

    The standard deviation is that of the peaks; without peaks, the one that makes the OOM labels likeliest.
    """
    has_peaks = _have_peaks(runs)
    memory_constants = _alternate(runs, base, has_peaks)
    for values in HOPS:
        posterior = _Posterior(runs, base, memory_constants.spread)
        hopped = posterior.maximise(replace(memory_constants, **values))  # type: ignore[arg-type]
        undecided = UNDECIDED if len(runs) >= FEW_RUNS else -UNDECIDED
        if posterior.loss(_state(hopped)) < posterior.loss(_state(memory_constants)) + undecided:
            memory_constants = hopped
    if has_peaks:
        if getattr(base, OPTIONAL) == 0:
            memory_constants = _simplified(runs, base, memory_constants)
        return replace(memory_constants, spread=robust_spread(peak_errors(memory_constants, runs)))
    tries = [(_Posterior(runs, base, spread), spread) for spread in LABEL_SPREADS]
    fits = [(posterior, replace(posterior.maximise(memory_constants), spread=spread)) for posterior, spread in tries]
    return min(fits, key=lambda pair: pair[0].loss(_state(pair[1])) + _spread_penalty(pair[1].spread))[1]


def _alternate(runs: Sequence[MemoryRun], base: MemoryConstants, has_peaks: bool) -> MemoryConstants:
    """Return constants and standard deviation, fitted in turn a few times."""
    memory_constants = base
    for _ in range(4):
        memory_constants = _Posterior(runs, base, memory_constants.spread).maximise(memory_constants)
        if has_peaks:
            memory_constants = replace(memory_constants, spread=robust_spread(peak_errors(memory_constants, runs)))
    return memory_constants


def _is_without(memory_constants: MemoryConstants, runs: Sequence[MemoryRun]) -> bool:
    """Return whether a stack lacks the constant ``OPTIONAL``; false if the runs have too few peaks to show it."""
    return getattr(memory_constants, OPTIONAL) == 0 and _have_peaks(runs)


def _have_peaks(runs: Sequence[MemoryRun]) -> bool:
    return sum(run.peak_gib is not None for run in runs) >= MIN_PEAKS


def _simplified(runs: Sequence[MemoryRun], base: MemoryConstants, memory_constants: MemoryConstants) -> MemoryConstants:
    """Return the fit without the constant ``OPTIONAL`` if it is hardly less likely; otherwise the given fit."""
    posterior = _Posterior(runs, base, memory_constants.spread)
    lacking = replace(memory_constants, **{OPTIONAL: 0.0})  # type: ignore[arg-type]
    without = _Posterior(runs, base, memory_constants.spread, without_optional=True).maximise(lacking)
    by_chance = 0.5 * np.log(len(runs))
    return (
        without
        if posterior.loss(_state(without)) < posterior.loss(_state(memory_constants)) + by_chance
        else memory_constants
    )


def _spread_penalty(spread: float) -> float:
    """Return the prior penalty of a standard deviation, smallest at 3 %; OOM labels alone hardly determine it."""
    return float(0.5 * (np.log(spread / TYPICAL_SPREAD) / 0.4) ** 2)


def robust_spread(errors: FloatArray) -> float:
    """
    Return the standard deviation of the errors of a fit, from their median size, as for normal errors.

    A fit to few peaks leaves small errors. ``USUAL_SPREAD`` therefore counts as up to ``USUAL_PEAKS`` additional peaks,
    fewer as the number of peaks approaches ``FEW_RUNS``.
    """
    variance = (1.4826 * np.median(np.abs(errors))) ** 2
    prior = USUAL_PEAKS * max(0.0, 1 - len(errors) / FEW_RUNS)
    both = (len(errors) * variance + prior * USUAL_SPREAD**2) / (len(errors) + prior)
    return float(np.clip(np.sqrt(both), SMALLEST_SPREAD, LARGEST_SPREAD))


def _state(memory_constants: MemoryConstants) -> FloatArray:
    """Return the numbers that are fitted: constants of the regressors, then unusable memory (GiB)."""
    return np.append(memory_constants.vector(), memory_constants.unusable_gib)


class _Posterior:
    """Posterior of the fitted numbers, for a given standard deviation of the errors."""

    def __init__(
        self,
        runs: Sequence[MemoryRun],
        base: MemoryConstants,
        spread: float,
        *,
        without_optional: bool = False,
    ) -> None:
        self.spread = spread
        self.fitted = np.array([not (without_optional and name == OPTIONAL) for name in STATE])
        self.centre = _state(base)
        self.root = np.linalg.cholesky(precision_of(base)).T
        least = {name: least for name, least, _, _ in limits_of(MemoryConstants)}
        self.lowest = np.array([least[name] for name in STATE])
        peaks = [run for run in runs if run.peak_gib is not None]
        labels = [run for run in runs if run.ran_out is not None]
        self.peaks = _Stacked([run.regressors[run.measured_rows] for run in peaks], peaks)
        self.labels = _Stacked([run.regressors for run in labels], labels)
        self.measured = np.array([run.peak_gib for run in peaks], dtype=np.float64)
        self.ran_out = np.array([run.ran_out for run in labels], dtype=bool)

    def maximise(self, start: MemoryConstants) -> MemoryConstants:
        """Return the constants that maximise the posterior, by scipy's least squares with limits, from ``start``."""
        from scipy.optimize import least_squares

        state, fitted = np.maximum(_state(start), self.lowest), self.fitted

        def residuals_at(values: FloatArray) -> tuple[FloatArray, FloatArray]:
            state[fitted] = values
            residuals, slopes = self._residuals(state)
            return residuals, slopes[:, fitted]

        found = least_squares(
            lambda values: residuals_at(values)[0],
            np.maximum(state[fitted], self.lowest[fitted] + INSIDE),
            jac=lambda values: residuals_at(values)[1],
            bounds=(self.lowest[fitted], np.inf),
            x_scale=np.array([SPREADS[name] for name in STATE])[fitted],
            max_nfev=MAX_STEPS,
        )
        state[fitted] = found.x
        is_told = np.abs(state - self.centre) > UNTOLD * np.array([SPREADS[name] for name in STATE])
        state = np.where(is_told, state, self.centre)
        return replace(start, **dict(zip(STATE, state.tolist(), strict=True)))

    def information(self, state: FloatArray) -> FloatArray:
        """Return the derivatives by the fitted numbers of all residuals but those of the priors."""
        slopes: FloatArray = self._residuals(state)[1][len(self.root) :]
        return slopes

    def loss(self, state: FloatArray) -> float:
        """Return minus the logarithm of the posterior."""
        return float(0.5 * (self._residuals(state)[0] ** 2).sum())

    def _residuals(self, state: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Return residuals, half the sum of whose squares is the loss, and their derivatives by the fitted numbers."""
        found = [(self.root @ (state - self.centre), self.root)]
        if len(self.measured):
            errors, slopes = self._peak_errors(state)
            sizes = np.abs(errors)
            roots = np.where(sizes < HUBER, sizes, np.sqrt(np.maximum(2 * HUBER * sizes - HUBER**2, 0.0)))
            steepness = np.where(sizes < HUBER, 1.0, HUBER / np.maximum(roots, HUBER))
            found.append((np.sign(errors) * roots, slopes * steepness[:, None]))
            found.append(self._beyond_device(state))
        if len(self.ran_out):
            margins, slopes = self._margins(state)
            likelihood: FloatArray = (1 - MEANINGLESS) * (1 - normal_beyond(margins)) + MEANINGLESS / 2
            roots = np.sqrt(-2 * np.log(likelihood))
            rise = (1 - MEANINGLESS) * np.exp(-0.5 * margins**2) / np.sqrt(2 * np.pi) / likelihood
            found.append((roots, -slopes * (rise / roots)[:, None]))
        return np.concatenate([residuals for residuals, _ in found]), np.concatenate([slopes for _, slopes in found])

    def _peak_errors(self, state: FloatArray) -> tuple[FloatArray, FloatArray]:
        """
        Return the errors of predicted against measured peaks, in standard deviations, and their derivatives by the
        constants.

        ``state`` holds the constants. The error is 0 for a stage that is predicted to need more than the GPU has and
        fills it, since a measured peak shows no more than that.
        """
        fullest = self.peaks.largest(state[:-1] * SHOWN)
        rows = fullest * SHOWN
        taken = rows @ state[:-1]
        usable = self.peaks.capacity - state[-1] - fullest @ (state[:-1] * HIDDEN)
        inside = (taken < usable) | (self.measured < FULL * usable)
        errors = np.where(inside, np.log(np.maximum(taken, 1e-3) / self.measured) / self.spread, 0.0)
        slopes = np.zeros((len(errors), len(state)))
        slopes[inside, :-1] = rows[inside] / taken[inside, None] / self.spread
        return errors, slopes

    def _beyond_device(self, state: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Return the excess of peaks over the GPU's memory in units of ``LIMIT_GIB``, >= 0, and its derivatives."""
        hidden = self.peaks.largest(state[:-1] * SHOWN) * HIDDEN
        beyond = (self.measured + hidden @ state[:-1] + state[-1] - self.peaks.capacity) / LIMIT_GIB
        slopes = np.column_stack([hidden, np.ones(len(hidden))]) / LIMIT_GIB
        return np.maximum(beyond, 0.0), slopes * (beyond > 0)[:, None]

    def _margins(self, state: FloatArray) -> tuple[FloatArray, FloatArray]:
        """
        Return the distance of each run's need from the limit in standard deviations, and its derivatives.

        The distance is positive if the need is on the side that the run's OOM label says.
        """
        rows = self.labels.largest(needed(state[:-1])) * NEEDED
        total = rows @ state[:-1] + state[-1]
        sign = np.where(self.ran_out, 1.0, -1.0)
        margins = sign * np.log(total / self.labels.capacity) / self.spread
        slopes = np.column_stack([rows, np.ones(len(total))]) * (sign / total / self.spread)[:, None]
        return margins, slopes


class _Stacked:
    """Regressors of many runs as one matrix, and the row numbers of each run, padded by a missing row's."""

    def __init__(self, parts: Sequence[FloatArray], runs: Sequence[MemoryRun]) -> None:
        self.rows = np.concatenate(parts) if parts else np.zeros((0, len(REGRESSORS)))
        sizes = np.array([len(part) for part in parts], dtype=np.int64)
        within = np.arange(sizes.max(initial=0))
        starts = np.cumsum(sizes) - sizes
        self.padded = np.where(within < sizes[:, None], starts[:, None] + within, len(self.rows))
        self.capacity = np.array([run.capacity_gib for run in runs])

    def largest(self, constants: FloatArray) -> FloatArray:
        """Return the regressors of each run's row with the most memory; the first of equal rows."""
        totals = np.append(self.rows @ constants, -np.inf)[self.padded]
        rows: FloatArray = self.rows[self.padded[np.arange(len(self.padded)), totals.argmax(axis=1)]]
        return rows

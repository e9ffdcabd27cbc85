"""Robust least squares with priors: Levenberg-Marquardt under a Huber loss."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from pipette_opt.base.types import FloatArray

HUBER = 0.05
"""Residuals (about relative errors) beyond this count linearly."""

NOISE = 0.04
"""Standard deviation of residuals of many runs, that priors are weighed against."""

STEP = 0.02
"""For derivatives."""

TOLERANCE, STALE_TOLERANCE = 2e-4, 3e-3
"""A descent ends when a step with fresh slopes gains less than this share; with old ones they are renewed first."""

MAX_DAMPINGS = 6


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LeastSquares:
    """
    What is made small.

    Parameters
    ----------
    residuals_of
        Of values, shape ``(num_values,)``: residuals, shape ``(num_residuals,)``.
    say
        Weight of each residual.
    centre, spread
        Mean and standard deviation of the prior of each value.
    largest
        Upper limit of each value.
    known_slopes
        Derivatives near the answer, to be used in place of new ones, shape ``(num_residuals, num_values)``.
    noise
        Standard deviation of residuals that priors are weighed against.
    """

    residuals_of: Callable[[FloatArray], FloatArray]
    say: FloatArray
    centre: FloatArray
    spread: FloatArray
    largest: FloatArray
    known_slopes: FloatArray | None = None
    noise: float = NOISE

    def loss(self, residuals: FloatArray, values: FloatArray) -> float:
        """Badness of the residuals, and how far the values are from their priors."""
        prior = 0.5 * ((values - self.centre) / self.spread) ** 2
        return float((self.say * badness(residuals)).sum() / self.noise**2 + prior.sum())

    def slopes(self, residuals: FloatArray, values: FloatArray) -> FloatArray:
        """Derivatives of the residuals, one evaluation for each value unless they are known."""
        if self.known_slopes is not None:
            return self.known_slopes
        slopes = np.empty((len(residuals), len(values)))
        for index in range(len(values)):
            moved = values.copy()
            moved[index] += STEP if moved[index] + STEP < self.largest[index] else -STEP
            slopes[:, index] = (self.residuals_of(moved) - residuals) / (moved[index] - values[index])
        return slopes

    def step(self, residuals: FloatArray, values: FloatArray, slopes: FloatArray, damping: float) -> FloatArray:
        """Values after one damped step."""
        weights, curvature = self._weights(residuals), self._curvature(residuals, slopes)
        downhill = -(slopes.T @ (weights * residuals) + (values - self.centre) / self.spread**2)
        step = np.linalg.solve(curvature + damping * np.diag(np.diag(curvature)), downhill)
        trial: FloatArray = np.minimum(values + np.clip(step, -1.0, 1.0), self.largest)
        return trial

    def uncertainty(self, residuals: FloatArray, slopes: FloatArray) -> FloatArray:
        """Standard deviation of each value, beside what the residuals tell: at most that of its prior."""
        deviation: FloatArray = np.sqrt(np.diag(np.linalg.inv(self._curvature(residuals, slopes))))
        return deviation

    def _curvature(self, residuals: FloatArray, slopes: FloatArray) -> FloatArray:
        weighted = slopes * self._weights(residuals)[:, None]
        curvature: FloatArray = slopes.T @ weighted + np.diag(1.0 / self.spread**2)
        return curvature

    def _weights(self, residuals: FloatArray) -> FloatArray:
        """Slope of the badness over each residual."""
        return self.say * np.minimum(1.0, HUBER / np.maximum(np.abs(residuals), 1e-12)) / self.noise**2


class Descent(NamedTuple):
    """
    Where a descent ended.

    Parameters
    ----------
    values, residuals, loss
        Of the end.
    slopes
        Derivatives there, made there or nearby.
    """

    values: FloatArray
    residuals: FloatArray
    loss: float
    slopes: FloatArray


def descend(
    problem: LeastSquares, values: FloatArray, max_iterations: int, slopes: FloatArray | None = None
) -> Descent:
    """
    Make the loss small, from some values on.

    Slopes take as many evaluations as there are values, so they are made anew only when the old ones, with what the
    steps showed since, lead no further.

    Parameters
    ----------
    slopes
        Derivatives near the first values, to begin with.
    """
    residuals = problem.residuals_of(values)
    loss, damping = problem.loss(residuals, values), 1e-2
    fresh = slopes is None
    slopes = problem.slopes(residuals, values) if slopes is None else slopes
    for _ in range(max_iterations):
        before = loss
        for _ in range(MAX_DAMPINGS):
            trial = problem.step(residuals, values, slopes, damping)
            trial_residuals = problem.residuals_of(trial)
            trial_loss = problem.loss(trial_residuals, trial)
            # Broyden's update: what the step showed of the slopes, also where it did not help.
            moved = trial - values
            if moved.any():
                slopes = slopes + np.outer(trial_residuals - residuals - slopes @ moved, moved) / (moved @ moved)
            if trial_loss < loss:
                values, residuals, loss = trial, trial_residuals, trial_loss
                damping = max(damping / 5.0, 1e-4)
                break
            damping *= 5.0
        if before - loss < (TOLERANCE if fresh else STALE_TOLERANCE) * before:
            if fresh:
                break
            slopes, fresh, damping = problem.slopes(residuals, values), True, 1e-2
        else:
            fresh = False
    return Descent(values, residuals, loss, slopes)


def badness(residuals: FloatArray) -> FloatArray:
    """Huber's: squares that become linear."""
    size = np.abs(residuals)
    bad: FloatArray = np.where(size < HUBER, 0.5 * size**2, HUBER * (size - 0.5 * HUBER))
    return bad

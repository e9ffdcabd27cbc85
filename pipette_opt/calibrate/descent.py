"""Robust least squares with priors: Levenberg-Marquardt under a Huber loss."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from pipette_opt.base.types import FloatArray

HUBER = 0.05
"""Absolute residual (about a relative error) from which on the loss is linear. Chosen."""

NOISE = 0.04
"""Standard deviation of residuals with many runs, against which priors are weighed."""

STEP = 0.02
"""Step of a value for numerical derivatives."""

TOLERANCE, STALE_TOLERANCE = 2e-4, 3e-3
"""Relative gain that ends a descent with fresh derivatives; below the second one old derivatives are renewed."""

MAX_DAMPINGS = 6


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LeastSquares:
    """
    A least-squares problem with priors.

    Parameters
    ----------
    residuals_of
        Residuals, shape ``(num_residuals,)``, as a function of the values, shape ``(num_values,)``.
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
    weights: FloatArray
    centre: FloatArray
    spread: FloatArray
    largest: FloatArray
    known_slopes: FloatArray | None = None
    noise: float = NOISE

    def loss(self, residuals: FloatArray, values: FloatArray) -> float:
        """Return the Huber loss of the residuals plus the penalty of the priors."""
        prior = 0.5 * ((values - self.centre) / self.spread) ** 2
        return float((self.weights * badness(residuals)).sum() / self.noise**2 + prior.sum())

    def slopes(self, residuals: FloatArray, values: FloatArray) -> FloatArray:
        """Derivatives of the residuals, with one evaluation for each value unless they are known."""
        if self.known_slopes is not None:
            return self.known_slopes
        slopes = np.empty((len(residuals), len(values)))
        for index in range(len(values)):
            moved = values.copy()
            moved[index] += STEP if moved[index] + STEP < self.largest[index] else -STEP
            slopes[:, index] = (self.residuals_of(moved) - residuals) / (moved[index] - values[index])
        return slopes

    def step(self, residuals: FloatArray, values: FloatArray, slopes: FloatArray, damping: float) -> FloatArray:
        """Return the values after one damped step."""
        weights, curvature = self._weights(residuals), self._curvature(residuals, slopes)
        downhill = -(slopes.T @ (weights * residuals) + (values - self.centre) / self.spread**2)
        step = np.linalg.solve(curvature + damping * np.diag(np.diag(curvature)), downhill)
        trial: FloatArray = np.minimum(values + np.clip(step, -1.0, 1.0), self.largest)
        return trial

    def uncertainty(self, residuals: FloatArray, slopes: FloatArray) -> FloatArray:
        """Posterior standard deviation of each value, at most that of its prior."""
        deviation: FloatArray = np.sqrt(np.diag(np.linalg.inv(self._curvature(residuals, slopes))))
        return deviation

    def _curvature(self, residuals: FloatArray, slopes: FloatArray) -> FloatArray:
        weighted = slopes * self._weights(residuals)[:, None]
        curvature: FloatArray = slopes.T @ weighted + np.diag(1.0 / self.spread**2)
        return curvature

    def _weights(self, residuals: FloatArray) -> FloatArray:
        """Derivative of the loss by the squared residual, for each residual."""
        return self.weights * np.minimum(1.0, HUBER / np.maximum(np.abs(residuals), 1e-12)) / self.noise**2


class Descent(NamedTuple):
    """
    Result of a descent.

    Parameters
    ----------
    values, residuals, loss
        Final values, their residuals and their loss.
    slopes
        Derivatives at the final values, or near them.
    """

    values: FloatArray
    residuals: FloatArray
    loss: float
    slopes: FloatArray


def descend(
    problem: LeastSquares, values: FloatArray, max_iterations: int, slopes: FloatArray | None = None
) -> Descent:
    """
    Minimise the loss from the given values on.

    New derivatives cost one evaluation for each value. So they are renewed only when the old ones, updated by the steps
    since, bring no further gain.

    Parameters
    ----------
    slopes
        Derivatives near the first values.
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
            # Broyden's update: the step shows the derivatives along it, even if it did not reduce the loss.
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
    """Huber loss of each residual: quadratic, then linear."""
    size = np.abs(residuals)
    bad: FloatArray = np.where(size < HUBER, 0.5 * size**2, HUBER * (size - 0.5 * HUBER))
    return bad

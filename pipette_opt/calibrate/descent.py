"""
Robust least squares with priors: Levenberg-Marquardt under a Huber loss.

An evaluation simulates every run, so derivatives are updated by the steps and seldom computed anew.
``scipy.optimize.least_squares`` in its place (derivatives anew in each step, the same loss) takes 1.3 to 1.8 times the
evaluations. It predicts held-out runs no better: mean errors 8.8 % (8.7 % here) of an H100 sweep, 8.6 % (7.5 %) of
runs on A100, 4.5 % (4.5 %) on T4. With a tighter tolerance its loss is 2 to 3 % lower after 2.4 to 3 times the
evaluations; the errors stay.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from pipette_opt.base.types import FloatArray

HUBER = 0.05
"""Absolute residual (about a relative error) above which the loss is linear. Chosen."""

NOISE = 0.04
"""Standard deviation of residuals with many runs; it sets the weight of residuals against priors. Chosen."""

STEP = 0.02
"""Step of a value (a logarithm) for numerical derivatives. Chosen."""

TOLERANCE, STALE_TOLERANCE = 2e-4, 3e-3
"""Smallest relative gain of an iteration; below, the descent ends if derivatives are new, or renews them. Chosen."""

MAX_DAMPINGS = 6
"""Most tries of a step per iteration, each with more damping. Chosen."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LeastSquares:
    """
    Least-squares problem with a Huber loss and normal priors.

    Parameters
    ----------
    residuals_of
        Function from values, shape ``(num_values,)``, to residuals, shape ``(num_residuals,)``.
    weights
        Weight of each residual, shape ``(num_residuals,)``.
    centre, spread
        Mean and standard deviation of the prior of each value, shape ``(num_values,)``.
    largest
        Upper limit of each value.
    known_slopes
        Derivatives near the solution that replace new ones, shape ``(num_residuals, num_values)``; ``None`` to compute
        them.
    noise
        Standard deviation of residuals, against which priors are weighed.
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
        """
        Return the derivatives of the residuals by the values, shape ``(num_residuals, num_values)``.

        Without ``known_slopes`` this takes one evaluation of the residuals per value.
        """
        if self.known_slopes is not None:
            return self.known_slopes
        slopes = np.empty((len(residuals), len(values)))
        for index in range(len(values)):
            moved = values.copy()
            moved[index] += STEP if moved[index] + STEP < self.largest[index] else -STEP
            slopes[:, index] = (self.residuals_of(moved) - residuals) / (moved[index] - values[index])
        return slopes

    def step(self, residuals: FloatArray, values: FloatArray, slopes: FloatArray, damping: float) -> FloatArray:
        """Return the values after one damped Gauss-Newton step (Levenberg-Marquardt)."""
        weights, curvature = self._weights(residuals), self._curvature(residuals, slopes)
        downhill = -(slopes.T @ (weights * residuals) + (values - self.centre) / self.spread**2)
        step = np.linalg.solve(curvature + damping * np.diag(np.diag(curvature)), downhill)
        trial: FloatArray = np.minimum(values + np.clip(step, -1.0, 1.0), self.largest)
        return trial

    def _curvature(self, residuals: FloatArray, slopes: FloatArray) -> FloatArray:
        weighted = slopes * self._weights(residuals)[:, None]
        curvature: FloatArray = slopes.T @ weighted + np.diag(1.0 / self.spread**2)
        return curvature

    def _weights(self, residuals: FloatArray) -> FloatArray:
        """Return the weight of each squared residual in the Huber loss, shape ``(num_residuals,)``."""
        return self.weights * np.minimum(1.0, HUBER / np.maximum(np.abs(residuals), 1e-12)) / self.noise**2


class Descent(NamedTuple):
    """
    Result of a descent.

    Parameters
    ----------
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
    Minimise the loss, starting from the given values, and return values, residuals, loss and derivatives.

    New derivatives cost one evaluation per value. They are renewed only when the old derivatives, updated by the steps
    since then, bring no further gain.

    Parameters
    ----------
    slopes
        Derivatives near the first values; ``None`` to compute them.
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
    """Return the Huber loss of each residual: quadratic, then linear."""
    size = np.abs(residuals)
    bad: FloatArray = np.where(size < HUBER, 0.5 * size**2, HUBER * (size - 0.5 * HUBER))
    return bad

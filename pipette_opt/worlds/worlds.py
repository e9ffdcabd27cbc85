"""
Draws of the prior, moved by measured runs.

The logarithm of measured over predicted time is a Gaussian process over the terms, so the runs move mean and draws in
closed form, be it one run or fifty. A draw is moved by Matheron's rule (Wilson et al., "Efficiently Sampling Functions
from Gaussian Process Posteriors", ICML 2020): by what the runs say beyond the draw itself. Draws have fixed seeds, so a
world is a function of the terms that stays the same from call to call.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cache

import numpy as np
from scipy.linalg import cho_factor, cho_solve
from scipy.special import ndtri

from pipette_opt.base.types import FloatArray, read_only
from pipette_opt.worlds.prior import Prior, shipped_priors
from pipette_opt.worlds.terms import JOB, LAYOUT, TERMS

NUM_WORLDS = 100
"""Number of draws, half of which mirror the others. Chosen."""

NUM_WAVES = 256
"""Number of cosines that make up a smooth function of a draw. Chosen."""

_LAYOUT = [TERMS.index(name) for name in LAYOUT]
_JOB = [TERMS.index(name) for name in JOB]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Observation:
    """
    Measured run of a configuration.

    Parameters
    ----------
    factors
        Terms of its prediction, a row of :func:`~pipette_opt.worlds.terms.describe`, shape ``(num_terms,)``.
    log_ratio
        Logarithm of measured over predicted time.
    """

    factors: FloatArray
    log_ratio: float

    def __post_init__(self) -> None:
        object.__setattr__(self, "factors", read_only(self.factors, np.float64))


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Worlds:
    """
    Worlds of a prior, after any number of measured runs.

    Parameters
    ----------
    prior
        Prior of the terms' slopes.
    observations
        Measured runs that moved the worlds.
    """

    prior: Prior
    observations: tuple[Observation, ...] = ()
    _known: "_Known | None" = field(default=None, repr=False)

    @classmethod
    def load(cls, leave_out_source: str | None = None) -> "Worlds":
        """
        Return the worlds of the shipped prior.

        Parameters
        ----------
        leave_out_source
            Public source whose runs the prior must not know, see
            :meth:`~pipette_opt.worlds.prior.Priors.leaving_out`.
        """
        return cls(prior=shipped_priors().leaving_out(leave_out_source))

    def given(self, observations: Sequence[Observation]) -> "Worlds":
        """Return the worlds after further measured runs; their order does not matter."""
        every = (*self.observations, *observations)
        return replace(self, observations=every, _known=_known(self.prior, every) if every else None)

    def log_factors(self, terms: FloatArray) -> FloatArray:
        """
        Return the logarithm of the time in each world over the predicted time, shape ``(num_configs, num_worlds)``.

        Parameters
        ----------
        terms
            Terms of the predictions, shape ``(num_configs, num_terms)``.
        """
        drawn = _draws(self.prior, terms)
        if self._known is None:
            return drawn
        moved: FloatArray = drawn + _covariance(self.prior, terms, self._known.terms) @ self._known.pulls
        return moved

    def mean_and_sd(self, terms: FloatArray, *, measured: bool = False) -> tuple[FloatArray, FloatArray]:
        """
        Return the exact mean and standard deviation of the log factors, each of shape ``(num_configs,)``.

        Parameters
        ----------
        measured
            Whether the standard deviation is that of a measured run, with its noise.
        """
        mean, variance = terms @ self.prior.mean, _variance(self.prior, terms)
        if self._known is not None:
            shared = _covariance(self.prior, terms, self._known.terms)
            mean = mean + shared @ self._known.weights
            variance = variance - np.einsum("ij,ji->i", shared, cho_solve(self._known.factor, shared.T))
        noise = self.prior.noise**2 if measured else 0.0
        return mean, np.sqrt(np.maximum(variance, 0.0) + noise)

    def bands(self, terms: FloatArray, share: float = 0.9) -> FloatArray:
        """
        Return lower end, middle and upper end of measured over predicted time, shape ``(num_configs, 3)``.

        Parameters
        ----------
        share
            Share of measured runs that lie between the ends.
        """
        mean, sd = self.mean_and_sd(terms, measured=True)
        reach = float(ndtri((1 + share) / 2))
        return np.exp(np.column_stack([mean - reach * sd, mean, mean + reach * sd]))


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Known:
    """Measured runs as arrays: their terms, the factor of their covariance, and what they add to mean and draws."""

    terms: FloatArray
    factor: tuple[FloatArray, bool]
    weights: FloatArray
    pulls: FloatArray


def _known(prior: Prior, observations: Sequence[Observation]) -> _Known:
    terms = np.array([observation.factors for observation in observations])
    measured = np.array([observation.log_ratio for observation in observations])
    covariance = _covariance(prior, terms, terms) + prior.noise**2 * np.eye(len(terms))
    factor = cho_factor(covariance, lower=True)
    noise = prior.noise * _normal(seed=3, rows=len(terms))
    return _Known(
        terms=terms,
        factor=factor,
        weights=cho_solve(factor, measured - terms @ prior.mean),
        pulls=cho_solve(factor, measured[:, None] - _draws(prior, terms) - noise),
    )


def _covariance(prior: Prior, left: FloatArray, right: FloatArray) -> FloatArray:
    """Return the covariance of the log factors of two sets of terms, shape ``(len(left), len(right))``."""
    of_layout = np.exp(-_squared_distances(left, right, _LAYOUT) / (2 * prior.layout_length**2))
    of_job = np.exp(-_squared_distances(left, right, _JOB) / (2 * prior.job_length**2))
    smooth = prior.job**2 * of_job + prior.layout**2 * of_layout + prior.both**2 * of_job * of_layout
    found: FloatArray = (left * prior.sd**2) @ right.T + smooth
    return found


def _variance(prior: Prior, terms: FloatArray) -> FloatArray:
    smooth = prior.job**2 + prior.layout**2 + prior.both**2
    found: FloatArray = terms**2 @ prior.sd**2 + smooth
    return found


def _squared_distances(left: FloatArray, right: FloatArray, columns: list[int]) -> FloatArray:
    ours, others = left[:, columns], right[:, columns]
    squares = (ours**2).sum(axis=1)[:, None] + (others**2).sum(axis=1) - 2 * ours @ others.T
    found: FloatArray = np.maximum(squares, 0.0)
    return found


def _draws(prior: Prior, terms: FloatArray) -> FloatArray:
    """Return the log factors of the prior's draws, shape ``(num_configs, num_worlds)``."""
    slopes = prior.mean[:, None] + prior.sd[:, None] * _normal(seed=0, rows=len(TERMS))
    layout, job = terms[:, _LAYOUT] / prior.layout_length, terms[:, _JOB] / prior.job_length
    drawn = terms @ slopes
    for seed, (sd, place) in enumerate(
        ((prior.job, job), (prior.layout, layout), (prior.both, np.hstack([job, layout]))), start=10
    ):
        drawn = drawn + sd * _smooth(seed, place)
    found: FloatArray = drawn
    return found


def _smooth(seed: int, place: FloatArray) -> FloatArray:
    """
    Return draws of a smooth function with variance 1 and length 1, shape ``(num_configs, num_worlds)``.

    A sum of cosines with random frequencies (Rahimi and Recht, "Random Features for Large-Scale Kernel Machines", NIPS
    2007).
    """
    random = np.random.default_rng(seed)
    frequencies = random.standard_normal((place.shape[1], NUM_WAVES))
    angles = place @ frequencies
    waves = np.hstack([np.cos(angles), np.sin(angles)]) / np.sqrt(NUM_WAVES)
    found: FloatArray = waves @ _normal(seed=100 + seed, rows=2 * NUM_WAVES)
    return found


@cache
def _normal(*, seed: int, rows: int) -> FloatArray:
    """Return standard normal numbers, shape ``(rows, NUM_WORLDS)``; the second half of the worlds mirrors the first."""
    half = np.random.default_rng(seed).standard_normal((rows, NUM_WORLDS // 2))
    return read_only(np.hstack([half, -half]), np.float64)

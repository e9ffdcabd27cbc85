"""
Draws of the prior, moved by measured runs.

For a stack of a kind, the logarithm of measured over predicted time is a Gaussian process over the terms, about a mean
that all layouts of a job share (``Prior.job_mean``). So the runs move mean and draws in closed form, be it one run or
fifty; and they weigh the kinds. A draw is moved by Matheron's rule
(Wilson et al., "Efficiently Sampling Functions from Gaussian Process Posteriors", ICML 2020): by what the runs say
beyond the draw itself. Draws have fixed seeds, so a world is a function of the terms that stays the same from call to
call.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cache

import numpy as np
from scipy.linalg import cho_factor, cho_solve
from scipy.special import ndtr

from pipette_opt.base.types import FloatArray, read_only
from pipette_opt.worlds.prior import Prior, shipped_priors
from pipette_opt.worlds.terms import JOB, LAYOUT, TERMS

NUM_WORLDS = 100
"""Number of draws, half of which mirror the others. Chosen."""

NUM_WAVES = 256
"""Number of cosines that make up a smooth function of a draw. Chosen."""

NUM_HALVINGS = 40
"""Number of halvings of an interval in which a quantile is sought. Chosen: a billionth of its length is left."""

SHARED, DRIFT = 0.3, 2.0
"""
Share of a slope's variance that all jobs of a stack have in common, and the distance between jobs over which the rest
changes. Chosen among eight pairs, by larger jobs of public sources once their smaller jobs are known: 94 % of them lie
inside their bands, and 84 % with slopes common to all jobs; the errors are alike.
"""

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
    job_mean
        Mean of this logarithm among the layouts of its job, by the prior.
    """

    factors: FloatArray
    log_ratio: float
    job_mean: float = 0.0

    def __post_init__(self) -> None:
        object.__setattr__(self, "factors", read_only(self.factors, np.float64))


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Worlds:
    """
    Worlds of a prior, after any number of measured runs.

    Parameters
    ----------
    observations
        Measured runs that moved the worlds.
    job_mean
        Mean log factor of the job whose configurations are asked about, by the prior (``Prior.job_mean``).
    """

    prior: Prior
    observations: tuple[Observation, ...] = ()
    job_mean: float = 0.0
    _kinds: "tuple[_OfKind, ...]" = field(default=(), init=False, repr=False)

    def __post_init__(self) -> None:
        kinds = tuple(_of_kind(self.prior.of(kind), self.observations) for kind in self.prior.kinds)
        object.__setattr__(self, "_kinds", kinds)

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
        return replace(self, observations=(*self.observations, *observations))

    def shares(self, terms: FloatArray) -> FloatArray:
        """Return the probability that a stack that trains such jobs is of each kind, ``(num_kinds, num_configs)``."""
        return _softmax(self._log_shares(terms))

    def log_factors(self, terms: FloatArray) -> FloatArray:
        """
        Return the logarithm of the time in each world over the predicted time, shape ``(num_configs, num_worlds)``.

        Parameters
        ----------
        terms
            Terms of the predictions, shape ``(num_configs, num_terms)``.
        """
        # A world's kind is where its fixed place falls among the shares; mirrored worlds have the same kind.
        ends = np.cumsum(self.shares(terms), axis=0)[:-1]
        kind_of_world = (_places()[None] >= ends[:, :, None]).sum(axis=0)
        found = np.empty((len(terms), NUM_WORLDS))
        for number, kind in enumerate(self._kinds):
            members = kind_of_world == number
            if members.any():
                found[members] = kind.log_factors(terms)[members]
        return found + self.job_mean

    def mean_and_sd(self, terms: FloatArray, *, measured: bool = False) -> tuple[FloatArray, FloatArray]:
        """
        Return the exact mean and standard deviation of the log factors, each of shape ``(num_configs,)``.

        Parameters
        ----------
        measured
            Whether the standard deviation is that of a measured run, with its noise.
        """
        means, sds = self.moments(terms, measured=measured)
        shares = self.shares(terms)
        mean = (shares * means).sum(axis=0)
        return mean, np.sqrt(np.maximum((shares * (sds**2 + means**2)).sum(axis=0) - mean**2, 0.0))

    def left_out(self) -> tuple[FloatArray, FloatArray]:
        """
        Return mean and standard deviation of each measured run given all others, each of shape ``(num_runs,)``.

        In closed form (Rasmussen and Williams, Gaussian Processes for Machine Learning, 2006, section 5.4.2). Kinds
        have the shares that the other runs give them.
        """
        moments = [kind.left_out() for kind in self._kinds]
        means, variances = (np.array([moment[number] for moment in moments]) for number in range(2))
        job_means = np.array([observation.job_mean for observation in self.observations])
        measured = np.array([observation.log_ratio for observation in self.observations]) - job_means
        own = -0.5 * ((measured - means) ** 2 / variances + np.log(variances))
        known = np.array([observation.factors for observation in self.observations])
        shares = _softmax(self._log_shares(known) - own)
        mean = (shares * means).sum(axis=0)
        return mean + job_means, np.sqrt((shares * (variances + means**2)).sum(axis=0) - mean**2)

    def slopes(self, job: FloatArray) -> FloatArray:
        """
        Return the mean slope of each term for a job, shape ``(num_terms,)``.

        Parameters
        ----------
        job
            Terms of a configuration of the job, shape ``(num_terms,)``; those of ``JOB`` and the kinds' shares count.
        """
        found: FloatArray = np.array([kind.slopes(job) for kind in self._kinds]).T @ self.shares(job[None])[:, 0]
        return found

    def bands(self, terms: FloatArray, share: float = 0.9) -> FloatArray:
        """
        Return lower end, middle and upper end of measured over predicted time, shape ``(num_configs, 3)``.

        Parameters
        ----------
        share
            Share of measured runs that lie between the ends.
        """
        means, sds = self.moments(terms, measured=True)
        shares = self.shares(terms)
        ends = [_quantile(shares, means, sds, level) for level in ((1 - share) / 2, 0.5, (1 + share) / 2)]
        return np.exp(np.column_stack(ends))

    def ratio_bands(self, terms: FloatArray, other: FloatArray, share: float = 0.9) -> FloatArray:
        """
        Return ends and middle of the factor on the predicted ratio of two plans' times, shape ``(num_configs, 3)``.

        The factor is the measured over the predicted ratio of each configuration's time to that of ``other``. Both run
        on one stack, so what they have in common cancels out; the noise of both measured runs stays.

        Parameters
        ----------
        other
            Terms of the other plan, shape ``(num_terms,)``.
        share
            Share of pairs of measured runs that lie between the ends.
        """
        moments = [kind.differences(terms, other) for kind in self._kinds]
        means, sds = (np.array([moment[number] for moment in moments]) for number in range(2))
        shares = self.shares(terms)
        ends = [_quantile(shares, means, sds, level) for level in ((1 - share) / 2, 0.5, (1 + share) / 2)]
        return np.exp(np.column_stack(ends))

    def _log_shares(self, terms: FloatArray) -> FloatArray:
        """Return the logarithms of the shares, up to a constant of each configuration."""
        likelihoods = np.array([kind.log_likelihood for kind in self._kinds])
        found: FloatArray = self.prior.log_shares(terms) + likelihoods[:, None]
        return found

    def moments(self, terms: FloatArray, *, measured: bool) -> tuple[FloatArray, FloatArray]:
        """
        Return means and standard deviations of the log factors by kind, each of shape ``(num_kinds, num_configs)``.

        A log factor is normal for the stacks of a kind, so it is a mixture of these with weights :attr:`shares`.

        Parameters
        ----------
        measured
            Whether the standard deviation is that of a measured run, with its noise.
        """
        moments = [kind.moments(terms, measured=measured) for kind in self._kinds]
        return np.array([mean for mean, _ in moments]) + self.job_mean, np.array([sd for _, sd in moments])


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _OfKind:
    """
    Worlds of the stacks of one kind: a Gaussian process.

    Parameters
    ----------
    known, measured
        Terms of the measured runs, and their log ratios without their jobs' means.
    factor
        Cholesky factor of their covariance; ``None`` without runs.
    weights, pulls
        Change of the mean, and of each draw, for each unit of covariance with a measured run.
    log_likelihood
        Logarithm of the density of the measured runs.
    """

    prior: Prior
    known: FloatArray
    measured: FloatArray
    factor: tuple[FloatArray, bool] | None = None
    weights: FloatArray
    pulls: FloatArray
    log_likelihood: float = 0.0

    def log_factors(self, terms: FloatArray) -> FloatArray:
        """Return the log factors of the draws, shape ``(num_configs, num_worlds)``."""
        return _draws(self.prior, terms) + _covariance(self.prior, terms, self.known) @ self.pulls

    def moments(self, terms: FloatArray, *, measured: bool) -> tuple[FloatArray, FloatArray]:
        """Return mean and standard deviation of the log factors, each of shape ``(num_configs,)``."""
        shared = _covariance(self.prior, terms, self.known)
        mean, variance = shared @ self.weights, _variance(self.prior, terms)
        if self.factor is not None:
            variance = variance - np.einsum("ij,ji->i", shared, cho_solve(self.factor, shared.T))
        noise = self.prior.noise**2 if measured else 0.0
        return mean, np.sqrt(np.maximum(variance, 1e-12) + noise)

    def slopes(self, job: FloatArray) -> FloatArray:
        """Return the mean slope of each term for a job, shape ``(num_terms,)``."""
        pulls = _alike(_squared_distances(job[None], self.known, _JOB))[0] * self.weights
        found: FloatArray = self.prior.sd**2 * (pulls @ self.known)
        return found

    def differences(self, terms: FloatArray, other: FloatArray) -> tuple[FloatArray, FloatArray]:
        """
        Return mean and standard deviation of log factors minus that of ``other``, each of shape ``(num_configs,)``.

        Of measured runs, each with its noise.
        """
        both = np.vstack([terms, other])
        shared, covariance = _covariance(self.prior, both, self.known), _covariance(self.prior, both, both)
        mean = shared @ self.weights
        if self.factor is not None:
            covariance = covariance - shared @ cho_solve(self.factor, shared.T)
        own = np.diag(covariance)
        variance = own[:-1] + own[-1] - 2 * covariance[:-1, -1]
        return mean[:-1] - mean[-1], np.sqrt(np.maximum(variance, 0.0) + 2 * self.prior.noise**2)

    def left_out(self) -> tuple[FloatArray, FloatArray]:
        """Return mean and variance of each measured run given all others, each of shape ``(num_runs,)``."""
        assert self.factor is not None
        variance = 1 / np.diag(cho_solve(self.factor, np.eye(len(self.known))))
        return self.measured - self.weights * variance, variance


def _of_kind(prior: Prior, observations: Sequence[Observation]) -> _OfKind:
    if not observations:
        none = np.zeros((0, len(TERMS)))
        return _OfKind(
            prior=prior, known=none, measured=np.zeros(0), weights=np.zeros(0), pulls=np.zeros((0, NUM_WORLDS))
        )
    terms = np.array([observation.factors for observation in observations])
    measured = np.array([observation.log_ratio - observation.job_mean for observation in observations])
    covariance = _covariance(prior, terms, terms) + prior.noise**2 * np.eye(len(terms))
    factor = cho_factor(covariance, lower=True)
    noise = prior.noise * _normal(seed=3, rows=len(terms))
    weights = cho_solve(factor, measured)
    return _OfKind(
        prior=prior,
        known=terms,
        measured=measured,
        factor=factor,
        weights=weights,
        pulls=cho_solve(factor, measured[:, None] - _draws(prior, terms) - noise),
        log_likelihood=-0.5 * float(measured @ weights) - float(np.log(np.diag(factor[0])).sum()),
    )


def _softmax(logs: FloatArray) -> FloatArray:
    """Return weights with these logarithms, up to a constant, that add up to 1 along the first axis."""
    weights = np.exp(logs - logs.max(axis=0))
    found: FloatArray = weights / weights.sum(axis=0)
    return found


def _quantile(shares: FloatArray, means: FloatArray, sds: FloatArray, level: float) -> FloatArray:
    """Return the quantile of mixtures of normal distributions, by bisection, shape ``(num_configs,)``."""
    low, high = (means - 8 * sds).min(axis=0), (means + 8 * sds).max(axis=0)
    for _ in range(NUM_HALVINGS):
        middle = (low + high) / 2
        below = (shares * ndtr((middle - means) / sds)).sum(axis=0) < level
        low, high = np.where(below, middle, low), np.where(below, high, middle)
    found: FloatArray = (low + high) / 2
    return found


def _covariance(prior: Prior, left: FloatArray, right: FloatArray) -> FloatArray:
    """Return the covariance of the log factors of two sets of terms, shape ``(len(left), len(right))``."""
    jobs = _squared_distances(left, right, _JOB)
    of_layout = np.exp(-_squared_distances(left, right, _LAYOUT) / (2 * prior.layout_length**2))
    of_job = np.exp(-jobs / (2 * prior.job_length**2))
    smooth = prior.job**2 * of_job + prior.layout**2 * of_layout + prior.both**2 * of_job * of_layout
    found: FloatArray = (left * prior.sd**2) @ right.T * _alike(jobs) + smooth
    return found


def _alike(squared_distances: FloatArray) -> FloatArray:
    """Return the correlation of two jobs' slopes, for their squared distance."""
    found: FloatArray = SHARED + (1 - SHARED) * np.exp(-squared_distances / (2 * DRIFT**2))
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
    layout, job = terms[:, _LAYOUT] / prior.layout_length, terms[:, _JOB] / prior.job_length
    drawn = np.empty((len(terms), NUM_WORLDS))
    jobs, job_of = np.unique(terms[:, _JOB], axis=0, return_inverse=True)
    for number, slopes in enumerate(_slopes(jobs)):
        members = job_of.ravel() == number
        drawn[members] = terms[members] @ (prior.sd[:, None] * slopes)
    for seed, (sd, place) in enumerate(
        ((prior.job, job), (prior.layout, layout), (prior.both, np.hstack([job, layout]))), start=10
    ):
        drawn = drawn + sd * (_waves(seed, place) @ _normal(seed=100 + seed, rows=2 * NUM_WAVES))
    found: FloatArray = drawn
    return found


def _slopes(jobs: FloatArray) -> FloatArray:
    """Return standard normal draws of the slopes of each job, shape ``(num_jobs, num_terms, num_worlds)``."""
    waves = _waves(1, jobs / DRIFT)
    weights = _normal(seed=101, rows=2 * NUM_WAVES * len(TERMS)).reshape(2 * NUM_WAVES, -1)
    own = (waves @ weights).reshape(len(jobs), len(TERMS), NUM_WORLDS)
    found: FloatArray = np.sqrt(SHARED) * _normal(seed=0, rows=len(TERMS)) + np.sqrt(1 - SHARED) * own
    return found


def _waves(seed: int, place: FloatArray) -> FloatArray:
    """
    Return cosines and sines whose normal sums are smooth functions, shape ``(num_places, 2 * NUM_WAVES)``.

    With random frequencies (Rahimi and Recht, "Random Features for Large-Scale Kernel Machines", NIPS 2007).
    """
    frequencies = np.random.default_rng(seed).standard_normal((place.shape[1], NUM_WAVES))
    angles = place @ frequencies
    found: FloatArray = np.hstack([np.cos(angles), np.sin(angles)]) / np.sqrt(NUM_WAVES)
    return found


@cache
def _places() -> FloatArray:
    """Return fixed numbers between 0 and 1 that decide the kinds of the worlds, shape ``(NUM_WORLDS,)``."""
    half = NUM_WORLDS // 2
    places = (np.random.default_rng(1).permutation(half) + 0.5) / half
    return read_only(np.concatenate([places, places]), np.float64)


@cache
def _normal(*, seed: int, rows: int) -> FloatArray:
    """Return standard normal numbers, shape ``(rows, NUM_WORLDS)``; the second half of the worlds mirrors the first."""
    half = np.random.default_rng(seed).standard_normal((rows, NUM_WORLDS // 2))
    return read_only(np.hstack([half, -half]), np.float64)

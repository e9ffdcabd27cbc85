"""
Choice of the next trial: expected improvement over the worlds, times the odds that the configuration fits in memory.

A world is a possible truth about everything that the predictions do not know; :mod:`pipette_opt.worlds` draws them and
weighs them by measured runs. Here they say what a trial may bring, and how much slower than the best configuration the
best measured time may be.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.special import ndtr

from pipette_opt.base.types import FloatArray
from pipette_opt.tune.memory_odds import MemoryOdds, Outcome
from pipette_opt.worlds.worlds import Observation, Worlds

SURE = 0.9
"""Share of the worlds in which the stated regret holds. Chosen."""

SEED = 0
"""Seed of the worlds' draws of memory."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Candidates:
    """
    Configurations of a job that may be tried.

    Parameters
    ----------
    predicted_s
        Predicted iteration times, shape ``(num_configs,)``.
    terms
        Description of each configuration for the worlds, shape ``(num_configs, num_terms)``.
    memory
        Belief about memory before the first trial.
    """

    predicted_s: FloatArray
    terms: FloatArray
    memory: MemoryOdds


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """
    Trial that was started, or a run of the user's own.

    Parameters
    ----------
    config
        Index of the configuration among the candidates.
    time_s
        Measured iteration time; ``None`` if the run failed or still runs.
    outcome
        Memory of the run; ``None`` if it failed for another reason or still runs.
    is_running
        Whether the run has not ended, so that it may still be the fastest.
    is_known
        Whether the worlds and the odds of memory start from the run already.
    """

    config: int
    time_s: float | None = None
    outcome: Outcome | None = None
    is_running: bool = False
    is_known: bool = False


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Outlook:
    """
    State of the search after some trials.

    Parameters
    ----------
    scores
        Value of trying each configuration next; minus infinity for those tried, shape ``(num_configs,)``.
    fits
        Probability that each configuration fits in memory.
    worlds
        Worlds after the trials.
    best_s
        Best measured time; infinite before the first success.
    regret
        In ``SURE`` of the worlds the best measured time is at most this share above the best candidate's time;
        infinite before the first success.
    """

    scores: FloatArray
    fits: FloatArray
    candidates: Candidates
    worlds: Worlds
    best_s: float
    regret: float

    def band_s(self, config: int) -> tuple[float, float, float]:
        """Return the 5 %, 50 % and 95 % quantiles of a configuration's time in a run, seconds."""
        low, middle, high = self.worlds.bands(self.candidates.terms[[config]])[0] * self.candidates.predicted_s[config]
        return float(low), float(middle), float(high)

    def ranking(self) -> list[int]:
        """Return the configurations not tried yet, the most valuable first."""
        order = np.argsort(-self.scores, kind="stable")
        return [int(index) for index in order if np.isfinite(self.scores[index])]


def outlook(candidates: Candidates, worlds: Worlds, trials: Sequence[Trial]) -> Outlook:
    """Return what the worlds say after these trials, and the value of each further trial."""
    timed = [trial for trial in trials if trial.time_s is not None]
    measured_s = np.array([trial.time_s for trial in timed], dtype=np.float64)
    is_new = np.array([not trial.is_known for trial in timed], dtype=np.bool_)
    known = _given(worlds, candidates, [trial.config for trial in timed if not trial.is_known], measured_s[is_new])
    times_s = candidates.predicted_s[:, None] * np.exp(known.log_factors(candidates.terms))
    memory = candidates.memory.given({trial.config: trial.outcome for trial in trials if trial.outcome is not None})
    best_s = float(measured_s.min(initial=np.inf))
    fits = memory.fit()
    tried = [trial.config for trial in trials]
    running = [trial.config for trial in trials if trial.is_running]
    scores = fits * (_improvement(known, candidates, best_s, running) if timed or running else _speed(times_s))
    scores[tried] = -np.inf
    ended = [trial.config for trial in trials if not trial.is_running]
    return Outlook(
        scores=scores,
        fits=fits,
        candidates=candidates,
        worlds=known,
        best_s=best_s,
        regret=_regret(times_s, memory, ended, best_s, worlds.prior.noise) if timed else np.inf,
    )


def _given(worlds: Worlds, candidates: Candidates, configs: Sequence[int], times_s: FloatArray) -> Worlds:
    """Return the worlds after configurations took these times."""
    log_ratios = np.log(times_s / candidates.predicted_s[configs]).tolist()
    terms = candidates.terms[configs]
    return worlds.given(
        [
            Observation(factors=own, log_ratio=ratio, job_mean=worlds.job_mean)
            for own, ratio in zip(terms, log_ratios, strict=True)
        ]
    )


def _improvement(known: Worlds, candidates: Candidates, best_s: float, running: Sequence[int]) -> FloatArray:
    """
    Return the expected seconds, over worlds and noise, by which each configuration would improve on the best.

    Times are log-normal for each kind of stack, so the expectation is a mean over kinds of that of a put option (Black
    and Scholes, 1973). It is above zero for every configuration; so where none is likely to improve, the most likely
    to do so is next. Running trials count as if they took their expected times (Ginsbourger et al., "Kriging is
    well-suited to parallelize optimization", 2010), so that trials at once are unlike each other.
    """
    if running:
        believed_s = candidates.predicted_s[running] * np.exp(known.mean_and_sd(candidates.terms[running])[0])
        known, best_s = _given(known, candidates, running, believed_s), min(best_s, float(believed_s.min()))
    means, sds = known.moments(candidates.terms, measured=True)
    gaps = (np.log(best_s / candidates.predicted_s) - means) / sds
    means_s = candidates.predicted_s * np.exp(means + sds**2 / 2)
    of_kinds = best_s * ndtr(gaps) - means_s * ndtr(gaps - sds)
    gains: FloatArray = (known.shares(candidates.terms) * of_kinds).sum(axis=0)
    return gains


def _speed(times_s: FloatArray) -> FloatArray:
    """Return the mean speed of each configuration, over the worlds, as a share of the world's fastest."""
    shares: FloatArray = (times_s.min(axis=0, initial=np.inf) / times_s).mean(axis=1)
    return shares


def _regret(times_s: FloatArray, memory: MemoryOdds, ended: Sequence[int], best_s: float, noise: float) -> float:
    """Return the quantile ``SURE`` over the worlds of the best measured time over the best candidate's, minus one."""
    own = np.random.default_rng(SEED).standard_normal(times_s.shape)
    times_s = times_s * np.exp(noise * own)
    rest = np.where(memory.draw(times_s.shape[1], SEED), times_s, np.inf)
    rest[list(ended)] = np.inf
    least_s = np.minimum(rest.min(axis=0, initial=np.inf), best_s)
    return float(np.quantile(best_s / least_s - 1.0, SURE))

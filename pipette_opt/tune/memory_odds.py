"""
Odds that configurations fit in memory, given which configurations fitted and which ran out of memory.

Errors of predicted memory are mostly common to a stack. So the logarithm of real over predicted need is a factor that
all configurations of a job share, plus an error of each configuration. Trials teach the shared factor: a configuration
that ran out makes all others less likely to fit, those with the highest predicted peak most.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from pipette_opt.base.types import BoolArray, FloatArray
from pipette_opt.memory.filter import FULL
from pipette_opt.memory.odds import normal_beyond
from pipette_opt.memory.twins import TAILS

SHARED_SPREAD = 0.2
"""
Standard deviation of the logarithm of the shared factor on a stack whose memory nobody fitted.

On public tables (WANT, nanotron) the room that separates failed from fitting runs of a job is between -0.3 and 0.4.
"""

OWN_SPREAD = 0.1
"""Least standard deviation of the logarithm of a configuration's own error. Chosen, see ``SHARED_SPREAD``."""

OTHER_CAUSES = 0.03
"""Probability that a run fails whatever its predicted memory: fragmentation, code of the stack. Chosen."""

UNEXPECTED = 0.01
"""Probability that a run fits whatever its predicted memory. Chosen."""

FACTORS = np.linspace(-4.0, 4.0, 81)
"""Values of the shared factor, in standard deviations."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """
    Memory of a finished trial.

    Parameters
    ----------
    ran_out
        Whether the run ran out of memory.
    peak_bytes
        Measured peak; ``None`` without a measurement.
    """

    ran_out: bool
    peak_bytes: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class MemoryOdds:
    """
    Belief about the memory of the configurations of a job; arrays have the shape ``(num_configs,)``.

    Parameters
    ----------
    usable_bytes, needed_bytes
        Memory that a job can use, and predicted need of the fullest GPU; not a number if it cannot be predicted, so
        that only ``OTHER_CAUSES`` count.
    shown_bytes
        Predicted peak that a measurement shows.
    spread
        Standard deviation of the logarithm of each configuration's own error, as predicted.
    weights
        Probability of each value of ``FACTORS``; ``None`` before the first trial.
    """

    usable_bytes: FloatArray
    needed_bytes: FloatArray
    shown_bytes: FloatArray
    spread: FloatArray
    weights: FloatArray | None = None

    def given(self, outcomes: Mapping[int, Outcome]) -> "MemoryOdds":
        """Return the belief after trials: the outcome of each tried configuration, by its index."""
        weights = self._weights()
        fits = self._fits()
        for config, outcome in outcomes.items():
            weights = weights * (1 - fits[config] if outcome.ran_out else fits[config])
            peak_bytes, usable_bytes = outcome.peak_bytes, self.usable_bytes[config]
            if peak_bytes is not None and not outcome.ran_out and peak_bytes < FULL * usable_bytes:
                errors = (np.log(peak_bytes / self.shown_bytes[config]) - SHARED_SPREAD * FACTORS) / self._own()[config]
                weights = weights / (1 + errors**2 / TAILS) ** ((TAILS + 1) / 2)
        return replace(self, weights=weights / weights.sum())

    def fit(self) -> FloatArray:
        """Return the probability that each configuration fits, shape ``(num_configs,)``."""
        odds: FloatArray = self._fits() @ self._weights()
        return odds

    def draw(self, num_worlds: int, seed: int) -> BoolArray:
        """Return whether each configuration fits in each drawn world, shape ``(num_configs, num_worlds)``."""
        random = np.random.default_rng(seed)
        quantiles = random.permutation((np.arange(num_worlds) + 0.5) / num_worlds)
        factors = np.searchsorted(self._weights().cumsum(), quantiles).clip(max=len(FACTORS) - 1)
        drawn: BoolArray = random.random((len(self.spread), num_worlds)) < self._fits()[:, factors]
        return drawn

    def _weights(self) -> FloatArray:
        if self.weights is not None:
            return self.weights
        heights = np.exp(-0.5 * FACTORS**2)
        weights: FloatArray = heights / heights.sum()
        return weights

    def _own(self) -> FloatArray:
        own: FloatArray = np.fmax(self.spread, OWN_SPREAD)
        return own

    def _fits(self) -> FloatArray:
        """Return the probability that each configuration fits for each shared factor, ``(num_configs, factors)``."""
        room = np.log(np.maximum(self.usable_bytes, 1.0) / self.needed_bytes)
        enough = 1 - normal_beyond((room[:, None] - SHARED_SPREAD * FACTORS) / self._own()[:, None])
        fits: FloatArray = UNEXPECTED + (1 - OTHER_CAUSES - UNEXPECTED) * np.nan_to_num(enough, nan=1.0)
        return fits

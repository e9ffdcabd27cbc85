"""Worlds that differ in a single factor, which all configurations of a job share: measured over predicted time."""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np

from pipette_opt.base.types import FloatArray

SHARED = 0.35
"""Standard deviation of the logarithm of the factor of an unknown stack; public stacks are off by 10 to 40 %."""

OWN = 0.05
"""Standard deviation of the logarithm of a configuration's own error. Public runs of one job: 4 to 7 %."""

NUM_WORLDS = 99
"""Number of worlds: equally likely values of the factor. Chosen."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlainScaling:
    """
    Belief about the shared factor, by the logarithm's mean and standard deviation.

    Parameters
    ----------
    noise
        Standard deviation of the logarithm of a configuration's own error.
    """

    mean: float = 0.0
    spread: float = SHARED
    noise: float = OWN

    def given(self, terms: FloatArray, log_ratios: FloatArray) -> "PlainScaling":
        """Return the belief after runs with these logarithms of measured over predicted time."""
        precision = 1 / self.spread**2 + len(terms) / self.noise**2
        mean = (self.mean / self.spread**2 + float(log_ratios.sum()) / self.noise**2) / precision
        return PlainScaling(mean=mean, spread=precision**-0.5, noise=self.noise)

    def log_factors(self, terms: FloatArray) -> FloatArray:
        """Return logarithms of true over predicted time, shape ``(len(terms), NUM_WORLDS)``."""
        normal = NormalDist(self.mean, self.spread)
        worlds = np.array([normal.inv_cdf((index + 0.5) / NUM_WORLDS) for index in range(NUM_WORLDS)])
        return np.tile(worlds, (len(terms), 1))


def no_terms(cases: Sequence[object]) -> FloatArray:
    """Return the description of configurations for these worlds, which need none: shape ``(len(cases), 0)``."""
    return np.zeros((len(cases), 0))

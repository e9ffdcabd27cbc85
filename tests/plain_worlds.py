"""Worlds that differ in a single factor, which all configurations of a job share."""

import numpy as np

from pipette_opt.base.types import FloatArray
from pipette_opt.worlds.prior import Kind, Prior
from pipette_opt.worlds.terms import TERMS
from pipette_opt.worlds.worlds import Worlds


def plain_worlds(shared: float = 0.35, noise: float = 0.05) -> Worlds:
    """Worlds whose factor has this standard deviation of its logarithm, with the noise of a run."""
    sd = np.zeros(len(TERMS))
    sd[TERMS.index("constant")] = shared
    return Worlds(
        prior=Prior(
            kinds=(Kind(1.0), Kind(0.0), Kind(0.0)),
            mean=np.zeros(len(TERMS)),
            sd=sd,
            job=0.0,
            job_length=1.0,
            layout=0.0,
            layout_length=1.0,
            both=0.0,
            noise=noise,
        )
    )


def plain_terms(number: int) -> FloatArray:
    """Terms of configurations that look alike."""
    terms = np.zeros((number, len(TERMS)))
    terms[:, TERMS.index("constant")] = 1.0
    return terms

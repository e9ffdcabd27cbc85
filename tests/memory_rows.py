"""Rows of memory regressors by name."""

import numpy as np

from pipette_opt.memory.framework import REGRESSORS


def row(**weights: float) -> np.ndarray:
    """A row of regressors, GiB; what is not named weighs nothing."""
    return np.array([weights.get(name, 0.0) for name in REGRESSORS])

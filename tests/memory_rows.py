"""Rows of memory columns by name."""

import numpy as np

from pipette_opt.memory.framework import COLUMNS


def row(**weights: float) -> np.ndarray:
    """A row of columns, GiB; what is not named weighs nothing."""
    return np.array([weights.get(name, 0.0) for name in COLUMNS])

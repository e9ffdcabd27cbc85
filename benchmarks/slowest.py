"""Slowest pair of hosts, over which benchmarks count a message or a ring."""

import numpy as np

from pipette_opt.base.types import FloatArray


def slowest_pair(times: FloatArray) -> float:
    """Return the largest entry between two different hosts, with NaN (no link) as infinite; 0 for a single host."""
    between = times[~np.eye(len(times), dtype=np.bool_)]
    return float(np.nan_to_num(between, nan=np.inf).max()) if between.size else 0.0

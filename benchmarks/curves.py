"""
Latency-bandwidth curves: constants of a cluster file, fitted to times measured by message size.

A collective takes ``start + steps * step + hop_bytes / bytes_per_s``, and a message is a collective with one step:
Hockney's model (Parallel Computing 20, 1994), which ``pipette_opt/costs`` computes with. Its three constants are
linear in the times, so least squares of the relative errors finds them, none below zero. Outliers get less weight
(iteratively reweighted, Huber).
"""

from collections.abc import Sequence
from itertools import combinations
from typing import NamedTuple

import numpy as np

from pipette_opt.base.errors import InputError
from pipette_opt.base.types import FloatArray
from pipette_opt.costs.collectives import RingTraffic, stacked

HUBER = 0.1
"""Relative error above which errors count linearly in the fit (Huber's constant). Chosen."""

ROUNDS = 20
"""Number of reweighting rounds of the fit. Chosen."""


class Curve(NamedTuple):
    """
    Constants of one network and software: seconds of a call, seconds of a step, and bytes per second that a
    rank sends.
    """

    start_s: float
    step_s: float
    bytes_per_s: float

    def time_s(self, traffic: Sequence[RingTraffic]) -> FloatArray:
        """Return the predicted times, seconds."""
        hop_bytes, steps, calls = stacked(traffic)
        times: FloatArray = calls * self.start_s + steps * self.step_s + hop_bytes / self.bytes_per_s
        return times


def fit_curve(traffic: Sequence[RingTraffic], measured_s: FloatArray) -> Curve:
    """
    Fit the constants to measured times.

    If all runs have equally many steps, start and steps cannot be distinguished, and the steps get the time. Raises
    ``InputError`` with fewer than two runs, or times that do not grow with the bytes.
    """
    measured_s = np.asarray(measured_s, dtype=np.float64)
    if len(traffic) != len(measured_s) or len(traffic) < 2:
        raise InputError("curve", f"needs a time for each of at least two runs, got {len(measured_s)}.")
    if not (measured_s > 0).all():
        raise InputError("curve", f"must have times > 0, got {measured_s.min()}.")
    hop_bytes, steps, calls = stacked(traffic)
    terms = np.stack([calls, steps, hop_bytes]) / measured_s
    weights = np.ones(len(measured_s))
    values = np.zeros(3)
    for _ in range(ROUNDS):
        values = _not_negative(terms, weights)
        size = np.abs(values @ terms - 1.0)
        weights = HUBER / np.maximum(size, HUBER)
    if values[2] <= 0.0:
        raise InputError("curve", "has times that do not grow with the bytes.")
    return Curve(start_s=float(values[0]), step_s=float(values[1]), bytes_per_s=float(1.0 / values[2]))


def _not_negative(terms: FloatArray, weights: FloatArray) -> FloatArray:
    """Return the non-negative least-squares fit of ``values @ terms`` to 1, over all subsets of terms."""
    best, found = np.inf, np.zeros(len(terms))
    root = np.sqrt(weights)
    for count in range(1, len(terms) + 1):
        for used in combinations(reversed(range(len(terms))), count):
            rows = list(used)
            solved = np.linalg.lstsq((terms[rows] * root).T, root, rcond=None)[0]
            if (solved < 0.0).any() or np.linalg.matrix_rank(terms[rows]) < count:
                continue
            values = np.zeros(len(terms))
            values[rows] = solved
            error = float((weights * (values @ terms - 1.0) ** 2).sum())
            if error < best * (1 - 1e-9):
                best, found = error, values
    return found

"""Order of two predicted times of one job, compared with the measured order."""

from collections.abc import Sequence

import numpy as np

from pipette_opt.base.types import FloatArray
from pipette_opt.calibrate.metrics import places

ORDERED = 0.75
"""Share of pairs in the right order from which the order of two predictions counts as reliable. Chosen."""

WINDOW, APART_STEP, FARTHEST = 0.1, 0.01, 1.0
"""Window over the ratio of two predictions: its width, its step, and the last start; all natural logarithms. Chosen."""

MIN_PAIRS = 50
"""Fewest pairs of runs for a statement about their order. Chosen."""


def pairs_of_jobs(predicted: FloatArray, measured: FloatArray, jobs: Sequence[object]) -> FloatArray:
    """
    Return logarithms of the ratio of times of every two runs of one job: predicted, then measured.

    Shape ``(num_pairs, 2)``. The predicted one is positive; the measured one is negative if the measured order differs.
    """
    logs, found = np.log(np.column_stack([predicted, measured])), [np.zeros((0, 2))]
    for chosen in places(jobs):
        first, second = np.triu_indices(len(chosen), 1)
        gap = logs[chosen][first] - logs[chosen][second]
        found.append(gap * np.sign(gap[:, :1]))
    pairs = np.concatenate(found)
    ordered: FloatArray = pairs[pairs[:, 0] > 0]
    return ordered


def reliable_ratio(pairs: FloatArray) -> float | None:
    """
    Return the ratio of two plans' predicted times beyond which their order is reliable.

    The smallest ratio from which on, in every window of ``WINDOW``, a share ``ORDERED`` of the pairs was measured in
    the predicted order. Errors of two plans of one job are similar, so the ratio is closer to 1 than each error alone
    would suggest. ``None`` with fewer than ``MIN_PAIRS`` pairs.

    Parameters
    ----------
    pairs
        Result of :func:`pairs_of_jobs`.
    """
    if len(pairs) < MIN_PAIRS:
        return None
    apart = 0.0
    for start in np.arange(0.0, FARTHEST, APART_STEP):
        inside = (pairs[:, 0] >= start) & (pairs[:, 0] < start + WINDOW)
        if inside.sum() >= MIN_PAIRS and (pairs[inside, 1] > 0).mean() < ORDERED:
            apart = float(start) + APART_STEP
    return float(np.exp(apart))

"""Ratios of the times of two runs of one job in different layouts: how often their ranges hold, no run known."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from benchmarks.worlds.rows import Row, by_job
from pipette_opt.base.types import FloatArray
from pipette_opt.worlds.bands import SHARE
from pipette_opt.worlds.prior import Prior
from pipette_opt.worlds.worlds import Worlds


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Ranges:
    """
    Ranges of the logarithm of the measured ratio of two times over the predicted ratio.

    Parameters
    ----------
    pairs
        Number of pairs.
    inside
        Share of the pairs whose measured ratio lies in its range.
    width
        Median distance between the ends of a range.
    score
        Mean interval score of the ranges, lower is better: the width, and for a ratio outside 20 times its distance
        from the range (Gneiting and Raftery, "Strictly Proper Scoring Rules, Prediction, and Estimation", JASA 2007).
    shipped, error
        Median absolute errors of the predicted ratio, and of the middle.
    """

    pairs: int
    inside: float
    width: float
    score: float
    shipped: float
    error: float

    @classmethod
    def of(cls, ranges: FloatArray, measured: FloatArray) -> "Ranges":
        """Return what ranges hold; they have lower end, middle and upper end, shape ``(num_pairs, 3)``."""
        low, middle, high = ranges.T
        outside = np.maximum(np.maximum(low - measured, measured - high), 0.0)
        return cls(
            pairs=len(measured),
            inside=float((outside == 0).mean()),
            width=float(np.median(high - low)),
            score=float((high - low + outside * 2 / (1 - SHARE)).mean()),
            shipped=float(np.median(np.abs(measured))),
            error=float(np.median(np.abs(measured - middle))),
        )


class _Pairs(NamedTuple):
    """
    Pairs of an earlier run with all later runs of its job in another layout.

    Terms, and logarithms of measured over predicted ratios of their times.
    """

    first: FloatArray
    others: FloatArray
    measured: FloatArray


def judge_ratios(rows: Sequence[Row], prior: Prior) -> Ranges | None:
    """
    Return how ranges hold the ratios of these rows; ``None`` without a job with runs of different layouts.

    Parameters
    ----------
    prior
        Prior that has not seen the rows.
    """
    pairs = _pairs_of(rows)
    if not pairs:
        return None
    worlds = Worlds(prior=prior)
    ranges = np.concatenate([np.log(worlds.ratio_bands(own.others, own.first, SHARE)) for own in pairs])
    return Ranges.of(ranges, np.concatenate([own.measured for own in pairs]))


def _pairs_of(rows: Sequence[Row]) -> list[_Pairs]:
    found = []
    for job in by_job(rows):
        terms = np.array([row.terms for row in job])
        measured = np.array([row.log_ratio for row in job])
        for number in range(len(job) - 1):
            later = np.arange(len(job)) > number
            chosen = later & (np.abs(terms - terms[number]) > 1e-9).any(axis=1)
            if chosen.any():
                found.append(
                    _Pairs(
                        first=terms[number],
                        others=terms[chosen],
                        measured=measured[chosen] - measured[number],
                    )
                )
    return found

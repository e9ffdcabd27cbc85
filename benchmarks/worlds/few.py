"""Errors of the other runs of a job once a few of its runs are known: as shown, and by the worlds."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from benchmarks.worlds.rows import Row, by_job
from pipette_opt.base.types import FloatArray
from pipette_opt.calibrate.known_runs import KnownRuns
from pipette_opt.read.stack import read_stack
from pipette_opt.worlds.prior import Prior

NUMBERS = (1, 3, 6)
"""Numbers of known runs."""

DRAWS = 3
"""Random choices of the known runs of each job. Chosen."""

MIN_OTHERS = 3
"""Fewest other runs of a job that counts. Chosen."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Few:
    """
    Errors of the other runs of a table's jobs, absolute; medians over the runs of a draw, means over the draws.

    Parameters
    ----------
    draws
        Number of draws of all jobs together.
    shown
        Errors of expected times: constants at their posterior mean, and one factor of the job.
    factor
        Errors with one factor alone.
    worlds
        Errors of the middle of the worlds, which weighs layouts, too.
    """

    draws: int
    shown: float
    factor: float
    worlds: float


def few_runs(rows: Sequence[Row], prior: Prior) -> dict[int, Few]:
    """Return the errors by number of known runs, for numbers with a job that has enough runs."""
    found: dict[int, list[tuple[float, ...]]] = {number: [] for number in NUMBERS}
    for job in by_job(rows):
        if len(job) < NUMBERS[0] + MIN_OTHERS:
            continue
        known = KnownRuns.of([row.case for row in job], read_stack(), None, prior)
        for number in [number for number in NUMBERS if len(job) >= number + MIN_OTHERS]:
            for seed in range(DRAWS):
                order = np.random.default_rng(seed).permutation(len(job)).tolist()
                found[number].append(_errors(known, order[:number], order[number:]))
    return {
        number: Few(draws=len(errors), **dict(zip(("shown", "factor", "worlds"), np.mean(errors, axis=0), strict=True)))
        for number, errors in found.items()
        if errors
    }


def _errors(known: KnownRuns, seen: Sequence[int], others: Sequence[int]) -> tuple[float, ...]:
    """Return the median errors of the other runs: as shown, by one factor, and by the worlds."""
    factor = float(np.exp(known.log_ratio[list(seen)].mean()))
    usual = np.exp(known.job_means()[list(others)])
    middle = known.worlds(seen).bands(known.terms[list(others)])[:, 1] * usual
    predicted_s, measured_s = known.predicted_s[list(others)], known.measured_s[list(others)]
    shown_s = known.expected_s(known.calibrated("", seen), others)

    def error(times_s: FloatArray) -> float:
        return float(np.median(np.abs(times_s / measured_s - 1)))

    return error(shown_s), error(factor * predicted_s), error(middle * predicted_s)

"""
Time factors of software versions among measured runs, relative to the last row's version.

No configuration shows the changes between versions. The factor of a version is the median residual of its runs over
that of the last row's version, whose constants are fitted. The factor is shrunk towards 1; versions with few runs keep
1.
"""

from collections.abc import Sequence

import numpy as np

from pipette_opt.base.types import FloatArray
from pipette_opt.calibrate.memory import VERSION_COLUMN
from pipette_opt.read.runs import MeasuredRun

MIN_RUNS = 5
"""Fewest runs of a version, and of the last row's version, for a factor. Chosen."""

SPREAD, NOISE = 0.05, 0.1
"""Prior standard deviation of the logarithm of a factor, and standard deviation of one run's residual. Chosen."""


def run_version(run: MeasuredRun) -> str:
    """Return the software version of a run; empty if none is recorded."""
    return run.cells.get(VERSION_COLUMN, "")


def version_factors(runs: Sequence[MeasuredRun], residuals: FloatArray, last: str) -> dict[str, float]:
    """
    Return a time factor for each version but the last; empty with a single version, or with few runs of the last.

    Parameters
    ----------
    residuals
        Logarithms of measured over predicted times, shape ``(num_runs,)``.
    last
        Version whose constants are fitted.
    """
    versions = np.array([run_version(run) for run in runs])
    if (versions == last).sum() < MIN_RUNS:
        return {}
    here, found = np.median(residuals[versions == last]), {}
    for version in sorted(set(versions.tolist()) - {last}):
        count = int((versions == version).sum())
        if count >= MIN_RUNS:
            trust = 1.0 / (1.0 + (NOISE / SPREAD) ** 2 / count)
            found[version] = float(np.exp(trust * (np.median(residuals[versions == version]) - here)))
    return found

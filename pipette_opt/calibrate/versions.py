"""
Versions of a stack's software among measured runs: how long each takes over the last one, as one factor.

What changed between versions no configuration tells. The factor of a version is the median of what its runs leave,
beside that of the last row's version, whose constants are fitted; it is drawn towards 1, and versions with few runs
stay there.
"""

from collections.abc import Mapping, Sequence

import numpy as np

from pipette_opt.base.types import FloatArray
from pipette_opt.calibrate.memory import VERSION_COLUMN
from pipette_opt.read.runs import MeasuredRun

MIN_RUNS = 5
"""Of a version, and of the last one."""

SPREAD, NOISE = 0.05, 0.1
"""Standard deviations of the logarithm: of factors before anything is measured, and of what one run tells."""


def run_version(run: MeasuredRun) -> str:
    """What the row says, empty if nothing."""
    return run.extra.get(VERSION_COLUMN, "")


def version_factors(
    runs: Sequence[MeasuredRun], residuals: FloatArray, last: str, known: Mapping[str, float] | None
) -> dict[str, float]:
    """
    Factors of all versions but the last; empty with a single version, or with few runs of the last.

    Parameters
    ----------
    residuals
        Logarithms of measured over predicted times.
    last
        The version whose constants are fitted.
    known
        Factors that the predictions have.
    """
    versions = np.array([run_version(run) for run in runs])
    if (versions == last).sum() < MIN_RUNS:
        return {}
    here, found = np.median(residuals[versions == last]), {}
    for version in sorted(set(versions.tolist()) - {last}):
        count = int((versions == version).sum())
        if count >= MIN_RUNS:
            trust = 1.0 / (1.0 + (NOISE / SPREAD) ** 2 / count)
            before = np.log((known or {}).get(version, 1.0))
            found[version] = float(np.exp(trust * (before + np.median(residuals[versions == version]) - here)))
    return found

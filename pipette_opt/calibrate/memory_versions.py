"""
Memory factors of software versions within a sweep, relative to the last version.

Kernels, buffers and the order of allocations change between versions in ways that no configuration shows. A few runs
determine one factor per version. The factor is shrunk towards 1; versions with few peaks keep 1.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from pipette_opt.calibrate.memory_calibration import fit_constants
from pipette_opt.calibrate.memory_runs import MemoryRun, peak_errors
from pipette_opt.specs.memory_constants import LARGEST_OFFSET, MemoryConstants

MIN_OF_VERSION = 5
"""Fewest measured peaks of a version for a factor. Chosen."""

ROUNDS = 3
"""Rounds of fitting version factors and constants in turn. Chosen."""

LIKELY_OFFSET = 0.05
"""Prior standard deviation of the logarithm of a factor. Chosen."""


def version_offsets(runs: Sequence[MemoryRun], base: MemoryConstants) -> dict[str, float]:
    """Return the logarithm of each version's memory factor; versions with few peaks, and the last run's, have none."""
    last = runs[-1].version
    peaks = [run for run in runs if run.peak_gib is not None]
    counts = {version: sum(run.version == version for run in peaks) for version in sorted({r.version for r in runs})}
    offsets = {version: 0.0 for version, count in counts.items() if version != last and count >= MIN_OF_VERSION}
    for _ in range(ROUNDS if offsets and counts[last] >= MIN_OF_VERSION else 0):
        scaled = as_last_version(runs, offsets)
        fitted = fit_constants(scaled, base)
        errors = peak_errors(fitted, [run for run in scaled if run.peak_gib is not None])
        versions = np.array([run.version for run in peaks])
        here = float(np.median(errors[versions == last]))
        for version in offsets:
            off = offsets[version] + float(np.median(errors[versions == version])) - here
            trust = 1 / (1 + (fitted.spread / LIKELY_OFFSET) ** 2 / counts[version])
            offsets[version] = float(np.clip(trust * off, -LARGEST_OFFSET, LARGEST_OFFSET))
    return offsets


def as_last_version(runs: Sequence[MemoryRun], offsets: Mapping[str, float]) -> list[MemoryRun]:
    """Return the runs with regressors scaled to the last version, and without a version."""
    factors = {version: np.exp(offset) for version, offset in offsets.items()}
    return [replace(run, regressors=run.regressors * factors.get(run.version, 1.0), version="") for run in runs]

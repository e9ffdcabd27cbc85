"""
Versions of one stack in a sweep: memory of each over the last one, as a factor.

Kernels, buffers and the order of allocations change between versions in ways that no configuration shows. Few runs
determine one factor for each version. It is drawn towards 1, and versions with few peaks keep 1.
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from pipette_opt.calibrate.memory_calibration import fit_constants
from pipette_opt.calibrate.memory_runs import MemoryRun, peak_errors
from pipette_opt.memory.framework import LARGEST_OFFSET, Framework

MIN_OF_VERSION = 5
"""Fewest peaks of a version for a factor. Chosen."""

ROUNDS = 3

LIKELY_OFFSET = 0.05
"""Prior standard deviation of the logarithm of a factor."""


def version_offsets(runs: Sequence[MemoryRun], base: Framework) -> tuple[tuple[str, float], ...]:
    """Fit the logarithms of the factors of all versions except the last run's, whose constants are fitted."""
    last = runs[-1].version
    peaks = [run for run in runs if run.peak_gib is not None]
    counts = {version: sum(run.version == version for run in peaks) for version in sorted({r.version for r in runs})}
    offsets = {version: 0.0 for version, count in counts.items() if version != last and count >= MIN_OF_VERSION}
    for _ in range(ROUNDS if offsets and counts[last] >= MIN_OF_VERSION else 0):
        scaled = as_last_version(runs, tuple(offsets.items()))
        fitted = fit_constants(scaled, base)
        errors = peak_errors(fitted, [run for run in scaled if run.peak_gib is not None])
        versions = np.array([run.version for run in peaks])
        here = float(np.median(errors[versions == last]))
        for version in offsets:
            off = offsets[version] + float(np.median(errors[versions == version])) - here
            trust = 1 / (1 + (fitted.spread / LIKELY_OFFSET) ** 2 / counts[version])
            offsets[version] = float(np.clip(trust * off, -LARGEST_OFFSET, LARGEST_OFFSET))
    return tuple(offsets.items())


def as_last_version(runs: Sequence[MemoryRun], offsets: tuple[tuple[str, float], ...]) -> list[MemoryRun]:
    """Return the runs with regressors in units of the last version, and without a version."""
    factors = {version: np.exp(offset) for version, offset in offsets}
    return [replace(run, regressors=run.regressors * factors.get(run.version, 1.0), version="") for run in runs]

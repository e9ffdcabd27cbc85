"""
Versions of one stack in a sweep: what each takes over what the last one takes, as one factor.

Between versions kernels, buffers and orders of allocation change in ways that no configuration tells. A factor for each
is what a few runs can show; it is drawn towards 1, and versions with few peaks stay there.
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from pipette_opt.calibrate.memory_calibration import fit_constants
from pipette_opt.calibrate.memory_runs import MemoryRun, peak_errors
from pipette_opt.memory.framework import LARGEST_OFFSET, Framework

MIN_OF_VERSION = 5
"""Peaks."""

ROUNDS = 3

LIKELY_OFFSET = 0.05
"""Standard deviation of the logarithm of a factor, before anything is measured."""


def version_offsets(runs: Sequence[MemoryRun], base: Framework) -> tuple[tuple[str, float], ...]:
    """Logarithms of the factors of all versions except that of the last run, whose constants are fitted."""
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
    """The runs with what they weigh in the units of the last version, and no version of their own."""
    factors = {version: np.exp(offset) for version, offset in offsets}
    return [replace(run, columns=run.columns * factors.get(run.version, 1.0), version="") for run in runs]

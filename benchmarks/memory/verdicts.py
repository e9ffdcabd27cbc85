"""Verdicts of memory predictions on runs that fitted or ran out of memory, and reliability of their probabilities."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from pipette_opt.base.types import BoolArray, FloatArray, IntArray
from pipette_opt.calibrate.memory_runs import MemoryRun, predict_memory
from pipette_opt.calibrate.memory_spread import oom_probability
from pipette_opt.specs.memory_constants import MemoryConstants

EDGES = (0.0, 0.01, 0.1, 0.5, 0.9, 0.99, 1.0)
"""Edges of the bins of predicted probabilities. Chosen."""


def wilson(hits: int, total: int) -> tuple[float, float]:
    """Return the 95 % interval of a fraction (Wilson)."""
    if total == 0:
        return 0.0, 1.0
    z, share = 1.96, hits / total
    centre = (share + z**2 / (2 * total)) / (1 + z**2 / total)
    half = z * np.sqrt(share * (1 - share) / total + z**2 / (4 * total**2)) / (1 + z**2 / total)
    return max(float(centre - half), 0.0), min(float(centre + half), 1.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdicts:
    """
    Errors of a rule about running out of memory.

    Parameters
    ----------
    missed, ran_out
        Runs that ran out and were called safe, and all runs that ran out.
    false, fitted
        Runs that fitted and were refused, and all runs that fitted.
    """

    missed: int
    ran_out: int
    false: int
    fitted: int

    @property
    def accuracy(self) -> float:
        """Fraction of runs with a right verdict."""
        return 1 - (self.missed + self.false) / max(self.ran_out + self.fitted, 1)


def verdicts(refused: BoolArray, ran_out: BoolArray) -> Verdicts:
    """Count the verdicts; both masks have shape ``(num_runs,)``."""
    return Verdicts(
        missed=int((ran_out & ~refused).sum()),
        ran_out=int(ran_out.sum()),
        false=int((refused & ~ran_out).sum()),
        fitted=int((~ran_out).sum()),
    )


def best_kept(times_s: FloatArray, refused: BoolArray, groups: Sequence[str]) -> tuple[int, int]:
    """
    Return the number of groups whose fastest feasible run is not refused, and of all groups.

    ``times_s`` is NaN for runs without a time.
    """
    kept, seen = 0, 0
    names = np.array(groups)
    for group in sorted(set(groups)):
        members: IntArray = np.flatnonzero((names == group) & np.isfinite(times_s))
        if len(members):
            seen += 1
            kept += not refused[members[times_s[members].argmin()]]
    return kept, seen


@dataclass(frozen=True, slots=True, kw_only=True)
class Reliability:
    """Number of runs with a predicted probability in a bin, and of those that ran out of memory."""

    split: str
    lowest: float
    highest: float
    predicted: float
    ran_out: int
    num_runs: int

    @property
    def interval(self) -> tuple[float, float]:
        """95 % interval of the fraction that ran out of memory."""
        return wilson(self.ran_out, self.num_runs)


def reliability(split: str, memory_constants: MemoryConstants, tested: Sequence[MemoryRun]) -> list[Reliability]:
    """Return predicted probabilities against outcomes for each bin; empty bins are left out."""
    probability, ran_out = _labelled(memory_constants, tested)
    bins = []
    for low, high in pairwise(EDGES):
        inside = (probability >= low) & ((probability < high) | (high == EDGES[-1]))
        if inside.any():
            bins.append(
                Reliability(
                    split=split,
                    lowest=low,
                    highest=high,
                    predicted=float(probability[inside].mean()),
                    ran_out=int(ran_out[inside].sum()),
                    num_runs=int(inside.sum()),
                )
            )
    return bins


def _labelled(memory_constants: MemoryConstants, tested: Sequence[MemoryRun]) -> tuple[FloatArray, FloatArray]:
    """Return the probability of every labelled run, and 1 for runs that ran out of memory, otherwise 0."""
    runs = [run for run in tested if run.ran_out is not None]
    probability = np.array([oom_probability(predict_memory(memory_constants, run)) for run in runs])
    return probability, np.array([float(bool(run.ran_out)) for run in runs])


def reliability_rows(bins: Sequence[Reliability]) -> list[dict[str, str]]:
    """Return the table of probabilities as rows of text."""
    rows = []
    for interval in bins:
        low, high = interval.interval
        rows.append(
            {
                "runs": interval.split,
                "said": f"{interval.lowest:.0%} - {interval.highest:.0%}",
                "in the mean": f"{interval.predicted:.1%}",
                "ran out": f"{interval.ran_out} of {interval.num_runs}: {interval.ran_out / interval.num_runs:.1%}",
                "95 % interval": f"{low:.1%} - {high:.1%}",
            }
        )
    return rows

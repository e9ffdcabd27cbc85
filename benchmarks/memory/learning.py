"""Accuracy of the memory prediction by number of calibration runs, and reliability of its probabilities."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from benchmarks.memory.rivals import Verdicts, verdicts, wilson
from pipette_opt.base.types import FloatArray
from pipette_opt.calibrate.memory_runs import MemoryRun, peak_errors, predict_memory
from pipette_opt.calibrate.memory_spread import fit_with_errors, oom_probability
from pipette_opt.specs.memory_constants import MemoryConstants

SIZES = (0, 5, 10, 20, 50, 100, 200)
"""Numbers of runs that a stack is calibrated on. Chosen."""

DRAWS = 4

EDGES = (0.0, 0.01, 0.1, 0.5, 0.9, 0.99, 1.0)
"""Edges of the bins of predicted probabilities. Chosen."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LearningPoint:
    """
    Accuracy on the test runs after calibration with this number of runs, averaged over random draws.

    Parameters
    ----------
    mean_error, worst_error
        Absolute relative errors of peaks: mean, and worst of the draws; NaN without peaks.
    accuracy
        Fraction of the labels on the right side at even odds.
    """

    split: str
    num_runs: int
    mean_error: float
    worst_error: float
    accuracy: float


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


def learning_curve(
    split: str,
    known: Sequence[MemoryRun],
    tested: Sequence[MemoryRun],
    base: MemoryConstants,
    *,
    sizes: Sequence[int] = SIZES,
    draws: int = DRAWS,
    seed: int = 0,
) -> list[LearningPoint]:
    """Calibrate on random runs of each number, and on all; return the accuracies on equal test runs."""
    rng = np.random.default_rng(seed)
    points = []
    for size in (*(size for size in sizes if size < len(known)), len(known)):
        tries = draws if 0 < size < len(known) else 1
        chosen = [[known[index] for index in rng.permutation(len(known))[:size]] for _ in range(tries)]
        found = [_score(fit_with_errors(runs, base), tested) for runs in chosen]
        errors, accuracies = np.array(found).T
        points.append(
            LearningPoint(
                split=split,
                num_runs=size,
                mean_error=float(errors.mean()),
                worst_error=float(errors.max()),
                accuracy=float(accuracies.mean()),
            )
        )
    return points


def _score(memory_constants: MemoryConstants, tested: Sequence[MemoryRun]) -> tuple[float, float]:
    errors = np.abs(np.exp(-peak_errors(memory_constants, tested)) - 1)
    verdict = label_verdicts(memory_constants, tested, 0.5)
    return float(errors.mean()) if len(errors) else float("nan"), verdict.accuracy


def label_verdicts(memory_constants: MemoryConstants, tested: Sequence[MemoryRun], risk: float) -> Verdicts:
    """Return how often labelled runs would be refused at a risk, rightly or wrongly."""
    probability, ran_out = _labelled(memory_constants, tested)
    return verdicts(probability > risk, ran_out.astype(bool))


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


def learning_rows(points: Sequence[LearningPoint]) -> list[dict[str, str]]:
    """Return the learning curve as rows of text."""
    return [
        {
            "runs": point.split,
            "calibrated on": str(point.num_runs),
            "mean error": _percent(point.mean_error),
            "worst draw": _percent(point.worst_error),
            "right at even odds": _percent(point.accuracy),
        }
        for point in points
    ]


def reliability_rows(bins: Sequence[Reliability]) -> list[dict[str, str]]:
    """Return the table of probabilities as rows of text."""
    rows = []
    for interval in bins:
        low, high = interval.interval
        rows.append(
            {
                "runs": interval.split,
                "said": f"{interval.lowest:.0%} - {interval.highest:.0%}",
                "in the mean": _percent(interval.predicted),
                "ran out": f"{interval.ran_out} of {interval.num_runs}: {interval.ran_out / interval.num_runs:.1%}",
                "95 % interval": f"{low:.1%} - {high:.1%}",
            }
        )
    return rows


def _percent(value: float) -> str:
    return "" if not np.isfinite(value) else f"{value:.1%}"

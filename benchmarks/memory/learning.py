"""How the prediction of memory gets better with the runs it is calibrated on, and whether its probabilities hold."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from benchmarks.memory.rivals import Verdicts, verdicts, wilson
from pipette_opt.base.types import FloatArray
from pipette_opt.calibrate.memory_runs import MemoryRun, peak_errors, predict_memory
from pipette_opt.calibrate.memory_spread import fit_framework, oom_probability
from pipette_opt.memory.framework import Framework

SIZES = (0, 5, 10, 20, 50, 100, 200)
"""Runs that a stack is calibrated on."""

DRAWS = 4

EDGES = (0.0, 0.01, 0.1, 0.5, 0.9, 0.99, 1.0)
"""Of the bins of predicted probabilities."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LearningPoint:
    """
    What calibrating on so many runs attains on the judged ones, in the mean of some draws.

    Parameters
    ----------
    mean_error, worst_error
        Of peaks, absolute and relative; the worst of the draws; NaN without peaks.
    accuracy
        Share of the labels on the right side at even odds.
    """

    split: str
    num_runs: int
    mean_error: float
    worst_error: float
    accuracy: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Reliability:
    """Of the runs with a predicted probability in a bin, how many ran out of memory; with a 95 % interval."""

    split: str
    lowest: float
    highest: float
    predicted: float
    ran_out: int
    num_runs: int

    @property
    def interval(self) -> tuple[float, float]:
        """Of the share that ran out."""
        return wilson(self.ran_out, self.num_runs)


def learning_curve(
    split: str,
    known: Sequence[MemoryRun],
    judged: Sequence[MemoryRun],
    base: Framework,
    *,
    sizes: Sequence[int] = SIZES,
    draws: int = DRAWS,
    seed: int = 0,
) -> list[LearningPoint]:
    """Calibrate on random runs of each size, and on all; judge always the same."""
    rng = np.random.default_rng(seed)
    points = []
    for size in (*(size for size in sizes if size < len(known)), len(known)):
        tries = draws if 0 < size < len(known) else 1
        chosen = [[known[index] for index in rng.permutation(len(known))[:size]] for _ in range(tries)]
        found = [_score(fit_framework(runs, base), judged) for runs in chosen]
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


def _score(framework: Framework, judged: Sequence[MemoryRun]) -> tuple[float, float]:
    errors = np.abs(np.exp(-peak_errors(framework, judged)) - 1)
    verdict = label_verdicts(framework, judged, 0.5)
    return float(errors.mean()) if len(errors) else float("nan"), verdict.accuracy


def label_verdicts(framework: Framework, judged: Sequence[MemoryRun], risk: float) -> Verdicts:
    """How often runs with a label would be refused at a risk, rightly or wrongly."""
    probability, ran_out = _labelled(framework, judged)
    return verdicts(probability > risk, ran_out.astype(bool))


def reliability(split: str, framework: Framework, judged: Sequence[MemoryRun]) -> list[Reliability]:
    """Predicted probabilities against what happened, bin by bin; empty bins are left out."""
    probability, ran_out = _labelled(framework, judged)
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


def _labelled(framework: Framework, judged: Sequence[MemoryRun]) -> tuple[FloatArray, FloatArray]:
    """Probability of every run with a label, and 1 where it ran out."""
    runs = [run for run in judged if run.ran_out is not None]
    probability = np.array([oom_probability(predict_memory(framework, run)) for run in runs])
    return probability, np.array([float(bool(run.ran_out)) for run in runs])


def learning_rows(points: Sequence[LearningPoint]) -> list[dict[str, str]]:
    """The learning curve, as text."""
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
    """The table of probabilities, as text."""
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

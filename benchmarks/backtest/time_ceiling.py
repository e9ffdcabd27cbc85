"""
How good anyone could be on judged times: what like runs differ by, and what that leaves to the best prediction.

*Twins*: the same job measured twice. *Crossings*: the same degrees with different kernels; what a prediction misses in
all of them belongs to the degrees, the rest to the single run (or to what kernels do in some configurations only, so
this bounds the scatter of runs from above). *Redrawn*: measured times scattered once more, as another day would have
measured them; even who predicts the expected time of every run is then judged by times that are off.
"""

from collections import defaultdict
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from itertools import combinations, pairwise

import numpy as np

from pipette_opt.base.types import FloatArray
from pipette_opt.calibrate.metrics import job_of, spearman
from pipette_opt.read.runs import MeasuredRun

CHOSEN = ("source", "mbs", "tp", "pp", "dp", "cp", "vpp", "zero_stage", "recompute", "layers_per_stage")
"""What is chosen of a run; sequence parallelism counts with several tensor ranks only."""

GOOD_REGRET = 0.02


@dataclass(frozen=True, slots=True, kw_only=True)
class Redrawn:
    """
    What a prediction would show on other days.

    Parameters
    ----------
    spearman, spearman_p10
        Rank correlation, in the mean and on one day in ten at most.
    regret
        Mean of the fastest predicted over the fastest measured, minus one.
    good
        Share of days with a regret of at most 2 %.
    """

    spearman: float
    spearman_p10: float
    regret: float
    good: float


def choice_of(run: MeasuredRun) -> tuple[Hashable, ...]:
    """What was chosen, as far as it matters."""
    return (*(getattr(run, name) for name in CHOSEN), bool(run.seq_parallel) and (run.tp or 1) > 1)


def twins(runs: Sequence[MeasuredRun]) -> list[tuple[MeasuredRun, MeasuredRun]]:
    """Pairs of runs with a time that did the same work; of more than two each with the one before."""
    found: dict[Hashable, list[MeasuredRun]] = defaultdict(list)
    for run in runs:
        if run.iter_time_s is not None and not run.oom:
            found[job_of(run), choice_of(run), tuple(sorted(run.extra.items()))].append(run)
    return [pair for same in found.values() for pair in pairwise(same)]


def twin_spread(times_s: FloatArray) -> float:
    """
    Standard deviation of the logarithm of one run's time.

    Parameters
    ----------
    times_s
        Of both runs of each pair, shape ``(num_pairs, 2)``, at least one pair.
    """
    return float(np.sqrt((np.diff(np.log(times_s), axis=1) ** 2).mean() / 2.0))


def crossed_spread(rows: Sequence[Hashable], columns: Sequence[Hashable], values: FloatArray) -> float:
    """
    Standard deviation of what one run has for itself in a table of rows and columns that is partly filled.

    Of each pair of columns the differences over the rows that have both, less their mean; NaN if no pair of columns has
    two such rows. Pairs of columns share runs, which counts runs that were tried in many columns more.

    Parameters
    ----------
    rows, columns
        Place of each run, length ``num_runs``; of several with one place the last counts.
    values
        Logarithms of times, or what a prediction leaves of them, shape ``(num_runs,)``.
    """
    cells = dict(zip(zip(rows, columns, strict=True), values.tolist(), strict=True))
    squares, degrees = 0.0, 0
    for left, right in combinations(dict.fromkeys(columns), 2):
        both = [
            cells[row, left] - cells[row, right]
            for row in dict.fromkeys(rows)
            if {(row, left), (row, right)} <= cells.keys()
        ]
        if len(both) > 1:
            squares += float(np.var(both)) * len(both)
            degrees += len(both) - 1
    return float(np.sqrt(squares / degrees / 2.0)) if degrees else float("nan")


def redrawn(predicted: FloatArray, measured: FloatArray, spread: float, *, days: int = 1000, seed: int = 0) -> Redrawn:
    """
    Measured times scattered once more and simulated again.

    Parameters
    ----------
    predicted, measured
        Seconds, shape ``(num_runs,)``, at least three; ``predicted`` is ``measured`` for whoever knows all.
    spread
        Standard deviation of the logarithm.
    """
    rng = np.random.default_rng(seed)
    drawn = measured * np.exp(spread * rng.standard_normal((days, len(measured))))
    ranks = np.array([spearman(predicted, times) for times in drawn])
    regrets = drawn[:, predicted.argmin()] / drawn.min(axis=1) - 1.0
    return Redrawn(
        spearman=float(ranks.mean()),
        spearman_p10=float(np.quantile(ranks, 0.1)),
        regret=float(regrets.mean()),
        good=float((regrets <= GOOD_REGRET).mean()),
    )


def explained(residuals: FloatArray, labels: Sequence[Hashable]) -> float:
    """
    Share of the variance of residuals that the mean of the others with the same label explains.

    Each run is predicted without itself, so that many labels explain nothing by their number; negative if that is worse
    than the mean of all others. A label that one run has alone says nothing of it.

    Parameters
    ----------
    residuals
        Logarithms of measured over predicted, shape ``(num_runs,)``, not all the same.
    """
    num = len(residuals)
    everyone = (residuals.sum() - residuals) / (num - 1)
    which = {label: index for index, label in enumerate(dict.fromkeys(labels))}
    place = np.array([which[label] for label in labels])
    counts, sums = np.bincount(place)[place], np.bincount(place, residuals)[place]
    alike = np.where(counts > 1, (sums - residuals) / np.maximum(counts - 1, 1), everyone)
    return float(1.0 - ((residuals - alike) ** 2).sum() / ((residuals - everyone) ** 2).sum())

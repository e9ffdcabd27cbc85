"""
Limit of the accuracy on measured times: scatter of comparable runs, and its effect on the best possible prediction.

*Repeats*: the same job measured twice. *Crossings*: equal degrees with different kernels. An error that all of them
share belongs to the degrees; the rest belongs to the single run, or to kernels in some configurations only. So
crossings bound the scatter of runs from above. *Redrawn*: measured times scattered once more, as measured on another
day. Even a prediction of every run's expected time is then scored against times with scatter.
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
"""Columns of a run that its owner chooses; sequence parallelism only counts with several tensor ranks."""

GOOD_REGRET = 0.02


@dataclass(frozen=True, slots=True, kw_only=True)
class Redrawn:
    """
    Scores of a prediction against redrawn measurements.

    Parameters
    ----------
    spearman, spearman_p10
        Rank correlation: mean, and 10th percentile over days.
    regret
        Mean of the fastest predicted over the fastest measured, minus 1.
    good
        Fraction of days with a regret of at most 2 %.
    """

    spearman: float
    spearman_p10: float
    regret: float
    good: float


def choice_of(run: MeasuredRun) -> tuple[Hashable, ...]:
    """Return the chosen configuration of a run as a key."""
    return (*(getattr(run, name) for name in CHOSEN), bool(run.seq_parallel) and (run.tp or 1) > 1)


def twins(runs: Sequence[MeasuredRun]) -> list[tuple[MeasuredRun, MeasuredRun]]:
    """Return pairs of timed runs of the same job and configuration; of several runs, each with the one before."""
    found: dict[Hashable, list[MeasuredRun]] = defaultdict(list)
    for run in runs:
        if run.iter_time_s is not None and not run.oom:
            found[job_of(run), choice_of(run), tuple(sorted(run.extra.items()))].append(run)
    return [pair for same in found.values() for pair in pairwise(same)]


def twin_spread(times_s: FloatArray) -> float:
    """
    Return the standard deviation of the log of one run's time.

    Parameters
    ----------
    times_s
        Seconds of both runs of each pair, shape ``(num_pairs, 2)``, at least one pair.
    """
    return float(np.sqrt((np.diff(np.log(times_s), axis=1) ** 2).mean() / 2.0))


def crossed_spread(rows: Sequence[Hashable], columns: Sequence[Hashable], values: FloatArray) -> float:
    """
    Return the standard deviation of a single run's own part in a partly filled table of rows and columns.

    For each pair of columns, the differences over rows that have both are taken, less their mean. The result is NaN if
    no pair of columns has two such rows. Pairs of columns share runs, so runs with many columns count more.

    Parameters
    ----------
    rows, columns
        Place of each run, length ``num_runs``; of several runs with one place the last counts.
    values
        Logs of times, or residuals of a prediction, shape ``(num_runs,)``.
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
    Return the scores of a prediction against measured times with additional scatter.

    Parameters
    ----------
    predicted, measured
        Seconds, shape ``(num_runs,)``, at least three; a perfect prediction has ``predicted`` equal to ``measured``.
    spread
        Standard deviation of the log of a time.
    days, seed
        Number of random redraws, and their seed.
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
    Return the fraction of the residuals' variance that the mean of other runs with an equal label explains.

    Each run is predicted without itself, so many labels explain nothing by their number. The result is negative if this
    is worse than the mean of all others. A run with a unique label is predicted by the mean of all others.

    Parameters
    ----------
    residuals
        Logs of measured over predicted time, shape ``(num_runs,)``, not all equal.
    labels
        Value of the feature for each run.
    """
    num = len(residuals)
    everyone = (residuals.sum() - residuals) / (num - 1)
    which = {label: index for index, label in enumerate(dict.fromkeys(labels))}
    place = np.array([which[label] for label in labels])
    counts, sums = np.bincount(place)[place], np.bincount(place, residuals)[place]
    alike = np.where(counts > 1, (sums - residuals) / np.maximum(counts - 1, 1), everyone)
    return float(1.0 - ((residuals - alike) ** 2).sum() / ((residuals - everyone) ** 2).sum())

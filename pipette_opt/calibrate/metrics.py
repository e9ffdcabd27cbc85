"""
How wrong predictions are, by group.

One chooses among configurations of one job. A group (model, sequence length, GPUs, kernel) may hold several: another
batch, another vocabulary under the same name. Regret and pick are of each job, and the worst counts.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from pipette_opt.base.types import FloatArray
from pipette_opt.calibrate.predict import Prediction
from pipette_opt.read.runs import MeasuredRun

K = TypeVar("K")
T = TypeVar("T")

OURS = "ours"

UNBELIEVABLE = 200.0
"""Measured over predicted time: rather milliseconds than seconds."""


ORDERED = 0.75
"""Share of the pairs whose order must be right for two predictions to be told apart; chosen."""

WINDOW, APART_STEP, FARTHEST = 0.1, 0.01, 1.0
"""Width of what is looked at together, its steps, and where they end; logarithms of the ratio of two predictions."""

MIN_PAIRS = 50
"""Pairs of runs that say anything about order; chosen."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Errors:
    """
    Errors over some runs.

    Parameters
    ----------
    mean, p90
        Of ``|predicted / measured - 1|``.
    rms
        Root of the mean square of ``log(measured / predicted)``.
    bias
        Median of ``predicted / measured``.
    spearman
        Rank correlation; NaN with fewer than three runs.
    regret
        Measured time of the run predicted fastest, over the fastest measured of the same job, minus one: the worst job.
    regret_of_all
        The same as if all runs were configurations of one job.
    apart
        See :func:`told_apart`; ``None`` where nobody asked, or there are too few pairs.
    """

    num_runs: int
    mean: float
    p90: float
    rms: float
    bias: float
    spearman: float
    regret: float
    regret_of_all: float
    apart: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Pick:
    """
    The configuration that a user would have been told to run.

    Parameters
    ----------
    ran
        Whether it did; ``None`` if nobody knows.
    regret
        Its time over the best measured, minus one; NaN if it did not run.
    """

    prediction: Prediction
    ran: bool | None
    regret: float


JOB = (
    *("gpu_name", "num_gpus", "model", "num_layers", "hidden", "ffn_hidden", "heads", "kv_heads", "vocab", "seq_len"),
    *("gbs", "precision", "attention_kernel"),
)
"""What is given of a run, not chosen."""


def job_of(run: MeasuredRun) -> tuple[object, ...]:
    """What the run trains, and on what: equal for runs that are configurations of one job."""
    return tuple(getattr(run, name) for name in JOB)


def measure(predicted: FloatArray, measured: FloatArray, jobs: Sequence[object] | None = None) -> Errors:
    """
    Errors of predictions.

    Parameters
    ----------
    predicted, measured
        Seconds, shape ``(num_runs,)``, at least one.
    jobs
        The job of each; all the same without.
    """
    ratio = predicted / measured
    error = np.abs(ratio - 1.0)
    return Errors(
        num_runs=len(ratio),
        mean=float(error.mean()),
        p90=float(np.quantile(error, 0.9)),
        rms=float(np.sqrt((np.log(ratio) ** 2).mean())),
        bias=float(np.median(ratio)),
        spearman=spearman(predicted, measured),
        regret=max(_regret(predicted[chosen], measured[chosen]) for chosen in _places(jobs or [0] * len(ratio))),
        regret_of_all=_regret(predicted, measured),
    )


def pairs_of_jobs(predicted: FloatArray, measured: FloatArray, jobs: Sequence[object]) -> FloatArray:
    """
    Every pair of runs of one job: the slower one over the other by the prediction, and as measured; logarithms.

    Returns
    -------
    FloatArray
        Shape ``(num_pairs, 2)``; the first is positive, the second negative where the order was the other one.
    """
    logs, found = np.log(np.column_stack([predicted, measured])), [np.zeros((0, 2))]
    for chosen in _places(jobs):
        one, other = np.triu_indices(len(chosen), 1)
        gap = logs[chosen][one] - logs[chosen][other]
        found.append(gap * np.sign(gap[:, :1]))
    pairs = np.concatenate(found)
    told: FloatArray = pairs[pairs[:, 0] > 0]
    return told


def told_apart(pairs: FloatArray) -> float | None:
    """
    Predicted time of a plan over another's from which on predictions have their order right.

    The smallest such that of the pairs predicted ``WINDOW`` further apart, there and everywhere beyond, a share of
    ``ORDERED`` was measured in that order. Errors of two plans of one job are alike, so this is less than the error of
    either.

    Parameters
    ----------
    pairs
        See :func:`pairs_of_jobs`. ``None`` with fewer than ``MIN_PAIRS``.
    """
    if len(pairs) < MIN_PAIRS:
        return None
    apart = 0.0
    for start in np.arange(0.0, FARTHEST, APART_STEP):
        inside = (pairs[:, 0] >= start) & (pairs[:, 0] < start + WINDOW)
        if inside.sum() >= MIN_PAIRS and (pairs[inside, 1] > 0).mean() < ORDERED:
            apart = float(start) + APART_STEP
    return float(np.exp(apart))


def _regret(predicted: FloatArray, measured: FloatArray) -> float:
    return float(measured[predicted.argmin()] / measured.min() - 1.0)


def _places(keys: Sequence[object]) -> list[list[int]]:
    """Where each key is."""
    return [[index for index, _ in found] for found in _grouped(list(enumerate(keys)), lambda one: one[1]).values()]


def _grouped(items: Sequence[T], key: Callable[[T], K]) -> dict[K, list[T]]:
    groups: dict[K, list[T]] = {}
    for one in items:
        groups.setdefault(key(one), []).append(one)
    return groups


def measure_predictions(predictions: Iterable[Prediction], column: str = OURS) -> Errors | None:
    """Errors of one column (ours, or a rival's name) over the runs with a measured time; ``None`` without any."""
    found = [
        (value, one.measured_s, job_of(one.run))
        for one in predictions
        if one.measured_s is not None and (value := predicted_of(one, column)) is not None
    ]
    if not found:
        return None
    predicted, measured, jobs = zip(*found, strict=True)
    return measure(np.array(predicted, dtype=np.float64), np.array(measured, dtype=np.float64), jobs)


def predicted_of(prediction: Prediction, column: str) -> float | None:
    """Ours, or a rival's."""
    return prediction.iter_time_s if column == OURS else prediction.rivals_s.get(column)


def by_group(predictions: Sequence[Prediction]) -> dict[tuple[str, int | None, int, str], list[Prediction]]:
    """Predictions by model, sequence length, number of GPUs and attention kernel, in order of appearance."""
    return _grouped(predictions, lambda one: one.run.group)


def pick(predictions: Sequence[Prediction], max_oom_risk: float) -> Pick | None:
    """
    Of each job, the fastest predicted run among those predicted to fit; the worst of the jobs.

    ``None`` without memory predictions, without a run that is predicted to fit, or if nothing was measured.
    """
    jobs = _grouped(predictions, lambda one: job_of(one.run)).values()
    picks = [found for members in jobs if (found := _pick_of_job(members, max_oom_risk)) is not None]
    return max(picks, key=_badness_of, default=None)


def slow_note(pairs: Iterable[tuple[float | None, float | None]]) -> str:
    """
    What to tell people of runs that took unbelievably long; empty without any.

    Parameters
    ----------
    pairs
        Predicted and measured seconds.
    """
    known = [(predicted, measured) for predicted, measured in pairs if predicted is not None and measured is not None]
    slow = sum(measured > UNBELIEVABLE * predicted for predicted, measured in known)
    if not slow:
        return ""
    times = f"over {UNBELIEVABLE:.0f} times what is predicted"
    return f"{slow} of {len(known)} runs took {times}: iter_time_s must be in seconds"


def _badness_of(found: Pick) -> tuple[bool, float]:
    """One that died is worse than any that ran."""
    return found.ran is False, 0.0 if math.isnan(found.regret) else found.regret


def _pick_of_job(predictions: Sequence[Prediction], max_oom_risk: float) -> Pick | None:
    fitting = [
        one
        for one in predictions
        if one.iter_time_s is not None and one.memory.get("oom_probability", np.inf) <= max_oom_risk
    ]
    measured = [one.measured_s for one in predictions if one.measured_s is not None]
    known = [one for one in fitting if one.run.oom is not None or one.measured_s is not None]
    if not known or not measured:
        return None
    best = min(known, key=lambda one: one.iter_time_s or np.inf)
    ran = best.measured_s is not None
    return Pick(
        prediction=best,
        ran=ran if best.run.oom or ran else None,
        regret=best.measured_s / min(measured) - 1.0 if best.measured_s is not None else np.nan,
    )


def spearman(left: FloatArray, right: FloatArray) -> float:
    """Rank correlation, ties sharing their mean rank; NaN with fewer than three pairs or without any spread."""
    if len(left) < 3:
        return float("nan")
    ranks = np.array([_ranks(left), _ranks(right)])
    ranks -= ranks.mean(axis=1, keepdims=True)
    spread = np.sqrt((ranks**2).sum(axis=1))
    return float((ranks[0] @ ranks[1]) / spread.prod()) if spread.all() else float("nan")


def _ranks(values: FloatArray) -> FloatArray:
    _, which, counts = np.unique(values, return_inverse=True, return_counts=True)
    last = np.cumsum(counts)
    means: FloatArray = (last - (counts - 1) / 2.0)[which]
    return means

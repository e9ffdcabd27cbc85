"""
Errors of predicted times, over all runs and by group.

A user chooses among configurations of one job. A group (model, sequence length, GPUs, kernel) may hold several jobs,
such as another batch size, or another vocabulary under one model name. Regret and pick are computed for each job; the
worst job counts.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from pipette_opt.base.types import FloatArray
from pipette_opt.calibrate.predict import Prediction
from pipette_opt.read.run_models import SHAPE
from pipette_opt.read.runs import MeasuredRun

K = TypeVar("K")
T = TypeVar("T")

UNBELIEVABLE = 200.0
"""Measured over predicted time above which a run's time must be in milliseconds instead of seconds. Chosen."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Errors:
    """
    Errors of predicted times over a set of runs.

    Parameters
    ----------
    mean, p90
        Mean and 90 % quantile of ``|predicted / measured - 1|``.
    median
        Median of ``|predicted / measured - 1|``.
    bias
        Median of ``predicted / measured``.
    spearman
        Rank correlation; NaN with fewer than three runs.
    regret
        Measured time of the run predicted fastest over the fastest measured time of its job, minus one; of the worst
        job.
    """

    num_runs: int
    mean: float
    p90: float
    median: float
    bias: float
    spearman: float
    regret: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Pick:
    """
    Configuration that a user would have chosen by the predictions.

    Parameters
    ----------
    ran
        Whether the configuration ran; ``None`` if unknown.
    regret
        Measured time of the configuration over the best measured time, minus one; NaN if it did not run.
    """

    ran: bool | None
    regret: float


def job_of(run: MeasuredRun) -> tuple[object, ...]:
    """Return the key of a run's job; configurations of one job have equal keys."""
    launch, model = run.launch, run.launch.model
    shape = () if model is None else (*(getattr(model, name) for name in SHAPE.values()), model.vocab_size)
    training = launch.seq_length, launch.global_batch_size, run.precision, run.attention_kernel
    return run.gpu_name, run.num_gpus, run.model, shape, *training


def measure(predicted: FloatArray, measured: FloatArray, jobs: Sequence[object] | None = None) -> Errors:
    """
    Return the errors of predicted times.

    Parameters
    ----------
    predicted, measured
        Seconds, shape ``(num_runs,)``, at least one run.
    jobs
        Job key of each run; ``None`` if all runs belong to one job.
    """
    ratio = predicted / measured
    error = np.abs(ratio - 1.0)
    return Errors(
        num_runs=len(ratio),
        mean=float(error.mean()),
        p90=float(np.quantile(error, 0.9)),
        median=float(np.median(error)),
        bias=float(np.median(ratio)),
        spearman=spearman(predicted, measured),
        regret=max(_regret(predicted[chosen], measured[chosen]) for chosen in places(jobs or [0] * len(ratio))),
    )


def _regret(predicted: FloatArray, measured: FloatArray) -> float:
    return float(measured[predicted.argmin()] / measured.min() - 1.0)


def places(keys: Sequence[object]) -> list[list[int]]:
    """Return the indices of each distinct key, in order of first appearance."""
    return [[index for index, _ in found] for found in _grouped(list(enumerate(keys)), lambda pair: pair[1]).values()]


def _grouped(items: Sequence[T], key: Callable[[T], K]) -> dict[K, list[T]]:
    groups: dict[K, list[T]] = {}
    for item in items:
        groups.setdefault(key(item), []).append(item)
    return groups


def measure_predictions(predictions: Iterable[Prediction]) -> Errors | None:
    """Return the errors of predictions over runs with a measured time; ``None`` without such runs."""
    found = [
        (prediction.iter_time_s, prediction.measured_s, job_of(prediction.run))
        for prediction in predictions
        if prediction.measured_s is not None and prediction.iter_time_s is not None
    ]
    if not found:
        return None
    predicted, measured, jobs = zip(*found, strict=True)
    return measure(np.array(predicted, dtype=np.float64), np.array(measured, dtype=np.float64), jobs)


def by_group(predictions: Sequence[Prediction]) -> dict[tuple[str, int | None, int, str], list[Prediction]]:
    """Return predictions by model, sequence length, number of GPUs and attention kernel, in order of appearance."""
    return _grouped(predictions, lambda prediction: prediction.run.group)


def pick(predictions: Sequence[Prediction], max_oom_risk: float) -> Pick | None:
    """
    Return the worst pick among jobs; the pick of a job is its fastest predicted run among those predicted to fit.

    ``None`` without memory predictions, without a run that is predicted to fit, or without measured times.
    """
    jobs = _grouped(predictions, lambda prediction: job_of(prediction.run)).values()
    picks = [found for members in jobs if (found := _pick_of_job(members, max_oom_risk)) is not None]
    return max(picks, key=_badness_of, default=None)


def _badness_of(found: Pick) -> tuple[bool, float]:
    """Return a sort key by which a pick that ran out of memory is worse than any pick that ran."""
    return found.ran is False, 0.0 if math.isnan(found.regret) else found.regret


def _pick_of_job(predictions: Sequence[Prediction], max_oom_risk: float) -> Pick | None:
    fitting = [
        prediction
        for prediction in predictions
        if prediction.iter_time_s is not None and prediction.memory.get("oom_probability", np.inf) <= max_oom_risk
    ]
    measured = [prediction.measured_s for prediction in predictions if prediction.measured_s is not None]
    known = [
        prediction for prediction in fitting if prediction.run.oom is not None or prediction.measured_s is not None
    ]
    if not known or not measured:
        return None
    best = min(known, key=lambda prediction: prediction.iter_time_s or np.inf)
    ran = best.measured_s is not None
    return Pick(
        ran=ran if best.run.oom or ran else None,
        regret=best.measured_s / min(measured) - 1.0 if best.measured_s is not None else np.nan,
    )


def spearman(left: FloatArray, right: FloatArray) -> float:
    """Return the rank correlation, with equal values at their mean rank; NaN for less than three or constant values."""
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

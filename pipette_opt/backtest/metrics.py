"""How wrong predictions are, by group."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from pipette_opt.backtest.predict import Prediction
from pipette_opt.types import FloatArray

OURS = "ours"


@dataclass(frozen=True, slots=True, kw_only=True)
class Errors:
    """
    Errors over some runs.

    Parameters
    ----------
    mean, p90
        Of ``|predicted / measured - 1|``.
    bias
        Median of ``predicted / measured``.
    spearman
        Rank correlation; NaN with fewer than three runs.
    regret
        Measured time of the run predicted fastest, over the fastest measured, minus one.
    """

    num_runs: int
    mean: float
    p90: float
    bias: float
    spearman: float
    regret: float


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


def measure(predicted: FloatArray, measured: FloatArray) -> Errors:
    """Errors of predictions, both in seconds, shape ``(num_runs,)``, at least one."""
    ratio = predicted / measured
    error = np.abs(ratio - 1.0)
    return Errors(
        num_runs=len(ratio),
        mean=float(error.mean()),
        p90=float(np.quantile(error, 0.9)),
        bias=float(np.median(ratio)),
        spearman=spearman(predicted, measured),
        regret=float(measured[predicted.argmin()] / measured.min() - 1.0),
    )


def measure_predictions(predictions: Iterable[Prediction], column: str = OURS) -> Errors | None:
    """Errors of one column (ours, or a rival's name) over the runs with a measured time; ``None`` without any."""
    pairs = [
        (value, one.measured_s)
        for one in predictions
        if one.measured_s is not None and (value := predicted_of(one, column)) is not None
    ]
    if not pairs:
        return None
    predicted, measured = np.array(pairs, dtype=np.float64).T
    return measure(predicted, measured)


def predicted_of(prediction: Prediction, column: str) -> float | None:
    """Ours, or a rival's."""
    return prediction.iter_time_s if column == OURS else prediction.rivals_s.get(column)


def by_group(predictions: Sequence[Prediction]) -> dict[tuple[object, ...], list[Prediction]]:
    """Predictions by model, sequence length, number of GPUs and attention kernel, in order of appearance."""
    groups: dict[tuple[object, ...], list[Prediction]] = {}
    for one in predictions:
        groups.setdefault(one.run.group, []).append(one)
    return groups


def pick(predictions: Sequence[Prediction], max_oom_risk: float) -> Pick | None:
    """
    Of a group, the fastest predicted run among those predicted to fit.

    ``None`` without memory predictions, without a run that is predicted to fit, or if nothing was measured.
    """
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

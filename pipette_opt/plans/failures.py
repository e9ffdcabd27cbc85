"""
Expected progress of a job whose hosts fail: best checkpoint interval, and the share of time that is progress.

The time until a host fails is exponential; the first of ``n`` hosts fails after ``mean / n`` on average. A job saves a
checkpoint every ``interval`` seconds, and repeats the unsaved work after a failure. A checkpoint takes ``save``
seconds, and ``recovery`` seconds pass from a failure until training continues. Then ``interval`` seconds of work take
``M exp(recovery / M) (exp((interval + save) / M) - 1)`` seconds on average, where ``M`` is the mean time between
failures (J. T. Daly, "A higher order estimate of the optimum checkpoint interval for restart dumps", FGCS 22 (2006)).
Young's interval ``sqrt(2 save M)`` (CACM 17, 1974) is the best for small ``save``.
"""

import math
from dataclasses import dataclass

DAY_S = 86_400.0


@dataclass(frozen=True, slots=True, kw_only=True)
class FailureRate:
    """
    Failures of hosts, and the cost of a failure and a checkpoint.

    Parameters
    ----------
    host_mean_days
        Mean days between two failures of the same host, > 0.
    save_s
        Seconds in which a checkpoint stops the job, > 0.
    recovery_s
        Seconds from a failure until training continues, >= 0.
    """

    host_mean_days: float
    save_s: float
    recovery_s: float

    def __post_init__(self) -> None:
        for name, least in (("host_mean_days", 0.0), ("save_s", 0.0)):
            if not least < getattr(self, name) < float("inf"):
                raise ValueError(f"{name} must be > 0, got {getattr(self, name)}.")
        if not 0 <= self.recovery_s < float("inf"):
            raise ValueError(f"recovery_s must be >= 0, got {self.recovery_s}.")


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """
    Expected progress of a job at its best checkpoint interval.

    Parameters
    ----------
    interval_s
        Best interval of work between two checkpoints, seconds.
    share
        Share of the time that is progress, in (0, 1).
    """

    interval_s: float
    share: float


def share_of_progress(rate: FailureRate, num_hosts: int, interval_s: float) -> float:
    """Return the share of the time that is progress: ``interval_s`` over mean seconds of this work, in [0, 1]."""
    mean_s = rate.host_mean_days * DAY_S / num_hosts
    exponent = (interval_s + rate.save_s) / mean_s
    if exponent + rate.recovery_s / mean_s > 700.0:
        return 0.0
    return interval_s / (mean_s * math.exp(rate.recovery_s / mean_s) * math.expm1(exponent))


def best_progress(rate: FailureRate, num_hosts: int) -> Progress:
    """
    Return the checkpoint interval with most progress on ``num_hosts`` hosts.

    Progress rises up to the best interval and falls beyond, so a ternary search finds the best.
    """
    mean_s = rate.host_mean_days * DAY_S / num_hosts
    low, high = 0.0, 2.0 * (mean_s + math.sqrt(2 * rate.save_s * mean_s))
    for _ in range(200):
        shorter, longer = low + (high - low) / 3, high - (high - low) / 3
        if share_of_progress(rate, num_hosts, shorter) < share_of_progress(rate, num_hosts, longer):
            low = shorter
        else:
            high = longer
    interval_s = (low + high) / 2
    return Progress(interval_s=interval_s, share=share_of_progress(rate, num_hosts, interval_s))

"""
Expected progress of a job whose hosts fail: best checkpoint interval, and remaining share of its speed.
A host fails after an exponential time; the first of ``n`` hosts after ``mean / n``. Between two failures, a job saves
every ``interval`` seconds, and after a failure repeats the unsaved work. With ``save`` seconds for a checkpoint and
``recovery`` seconds from a loss until training goes on (noticing it, a plan, loading), ``interval`` seconds of work
take ``M exp(recovery / M) (exp((interval + save) / M) - 1)`` seconds on average, ``M`` being the mean time between
losses (J. T. Daly, "A higher order estimate of the optimum checkpoint interval for restart dumps", FGCS 22 (2006)).
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
        Mean days between failures of a host, > 0.
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
    Remaining share of a job's speed.

    Parameters
    ----------
    interval_s
        Best interval of work between two checkpoints, seconds.
    share
        Share of the time that is progress, in (0, 1).
    losses_per_day
        Failures per day of any of its hosts.
    """

    interval_s: float
    share: float
    losses_per_day: float


def share_of_progress(rate: FailureRate, num_hosts: int, interval_s: float) -> float:
    """Seconds of work over the mean seconds that they take."""
    mean_s = rate.host_mean_days * DAY_S / num_hosts
    exponent = (interval_s + rate.save_s) / mean_s
    if exponent + rate.recovery_s / mean_s > 700.0:
        return 0.0
    return interval_s / (mean_s * math.exp(rate.recovery_s / mean_s) * math.expm1(exponent))


def best_progress(rate: FailureRate, num_hosts: int) -> Progress:
    """
    Return the checkpoint interval with most progress on ``num_hosts`` hosts.

    The share rises up to it and falls beyond, so a ternary search finds it.
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
    return Progress(
        interval_s=interval_s, share=share_of_progress(rate, num_hosts, interval_s), losses_per_day=DAY_S / mean_s
    )

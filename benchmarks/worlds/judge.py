"""Judgement of priors: errors of the other runs of a job once one of its runs is known."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from benchmarks.worlds.rows import Row, by_job
from pipette_opt.base.types import FloatArray
from pipette_opt.worlds.prior import Prior
from pipette_opt.worlds.worlds import Observation, Worlds


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Judged:
    """
    Errors of the runs of a table, each pair of anchor and other run of a job counted once.

    Parameters
    ----------
    shipped, prior
        Predicted over measured time minus 1 without any run known, absolute: by the shipped stack, and with the job's
        factor by the prior.
    scaled, anchored
        Errors with one run known, absolute: with the factor of that run, which is shown, and by the worlds.
    inside
        Whether the other run lies in the band that is shown.
    width
        Upper minus lower end of that band, over the time shown.
    """

    runs: int
    jobs: int
    shipped: FloatArray
    prior: FloatArray
    scaled: FloatArray
    anchored: FloatArray
    inside: FloatArray
    width: FloatArray


def judge(rows: Sequence[Row], prior: Prior) -> Judged:
    """Return the errors of these rows by a prior that has not seen them."""
    worlds = Worlds(prior=prior)
    jobs = by_job(rows)
    ratios = np.array([row.log_ratio for row in rows])
    mean = prior.job_mean(np.array([row.reference for row in rows]))
    parts: list[FloatArray] = [np.zeros((4, 0))]
    for job in jobs:
        terms, own = np.array([row.terms for row in job]), np.array([row.log_ratio for row in job])
        for anchor in range(len(job)):
            others = np.arange(len(job)) != anchor
            if not others.any():
                continue
            job_mean = float(prior.job_mean(job[anchor].reference))
            run = Observation(factors=terms[anchor], log_ratio=float(own[anchor]), job_mean=job_mean)
            low, middle, high = np.log(replace(worlds, job_mean=job_mean).given([run]).bands(terms[others])).T
            low, high = np.minimum(low, own[anchor]), np.maximum(high, own[anchor])
            left = own[others]
            parts.append(
                np.array(
                    [
                        np.abs(np.exp(own[anchor] - left) - 1),
                        np.abs(np.exp(middle - left) - 1),
                        (low <= left) & (left <= high),
                        np.exp(high - own[anchor]) - np.exp(low - own[anchor]),
                    ]
                )
            )
    scaled, anchored, inside, width = np.concatenate(parts, axis=1)
    return Judged(
        runs=len(rows),
        jobs=sum(len(job) > 1 for job in jobs),
        shipped=np.abs(np.exp(-ratios) - 1),
        prior=np.abs(np.exp(mean - ratios) - 1),
        scaled=scaled,
        anchored=anchored,
        inside=inside,
        width=width,
    )

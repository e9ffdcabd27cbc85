"""
The experiment that lowers the regret most: a run of one configuration, or a micro-benchmark of minutes.

Each of a few worlds is taken for the truth in turn. An experiment then measures what that world says, the other worlds
agree with it, and the configuration with the least regret is chosen again. The mean of its regret over these truths is
what the experiment would bring.
"""

from collections.abc import Iterator, Sequence

import numpy as np

from pipette_opt.base.types import FloatArray
from pipette_opt.plans.certificate import WORTH_MEASURING, Experiment
from pipette_opt.verify.regret import Groups, words_of
from pipette_opt.worlds.terms import SENSITIVITIES
from pipette_opt.worlds.worlds import NUM_WORLDS, Worlds

NUM_TRUTHS = 16
"""Number of worlds that are taken for the truth in turn. Chosen."""

MAX_RUNS = 12
"""Number of configurations whose run is considered, those with the least regret. Chosen."""

RUN_STEPS = 20
"""Iterations of a run that measures a time, with those that warm up. Chosen."""

RUN_NOISE = 0.02
"""Standard deviation of the logarithm of a measured time between repetitions. Chosen."""

START_S = 180.0
"""Seconds from the start of a run to its first iteration. Chosen."""

MICRO_BENCHMARKS = (
    ("profile compute", ("matrix products", "attention", "element-wise kernels", "launches by the host"), False, 5.0),
    ("profile links", ("links between hosts",), True, 3.0),
)
"""
Commands that measure constants: name, sensitivities that they settle, whether all GPUs are busy (else one), and
minutes. Minutes are chosen.
"""


def experiments(groups: Groups, worlds: Worlds, num_gpus: int) -> list[Experiment]:
    """Return the experiments considered, the one with the least expected regret first."""
    log_factors = groups.log_factors(worlds)
    truths = np.linspace(0, NUM_WORLDS, NUM_TRUTHS, endpoint=False).astype(np.int64).tolist()
    found = [*_runs(groups, log_factors, truths, num_gpus)]
    found += _micro_benchmarks(groups, worlds, log_factors, truths, num_gpus)
    return sorted(found, key=lambda experiment: (experiment.regret, experiment.gpu_minutes))


def deciding_experiment(groups: Groups, worlds: Worlds, num_gpus: int) -> Experiment | None:
    """Return the experiment with the least expected regret; ``None`` if it lowers the regret by less than a tenth."""
    first = experiments(groups, worlds, num_gpus)[0]
    now = least_regret(groups, groups.log_factors(worlds))
    return first if first.regret <= (1 - WORTH_MEASURING) * now else None


def least_regret(groups: Groups, log_factors: FloatArray) -> float:
    """Return the least mean regret of a group, if a plan with its bound as time exists."""
    return float(_regrets(groups, log_factors).min())


def _regrets(groups: Groups, log_factors: FloatArray) -> FloatArray:
    """Return the mean regret of each group with its bound as predicted time, shape ``(num_groups,)``."""
    times_s = groups.bounds_s[:, None] * np.exp(log_factors)
    return np.asarray((times_s / times_s.min(axis=0)).mean(axis=1) - 1)


def _runs(groups: Groups, log_factors: FloatArray, truths: Sequence[int], num_gpus: int) -> Iterator[Experiment]:
    """
    Yield runs of the groups with the least regret.

    A run moves the worlds by their own covariance with it, as in an ensemble Kalman filter (Evensen, "The Ensemble
    Kalman Filter", Ocean Dynamics 2003).
    """
    names, apart = list(groups.numbers), log_factors - log_factors.mean(axis=1, keepdims=True)
    for number in np.argsort(_regrets(groups, log_factors), kind="stable")[:MAX_RUNS].tolist():
        covariance = apart @ apart[number] / log_factors.shape[1]
        gains = covariance / (covariance[number] + RUN_NOISE**2)
        after = [
            least_regret(groups, log_factors + np.outer(gains, log_factors[number, truth] - log_factors[number]))
            for truth in truths
        ]
        seconds = START_S + RUN_STEPS * groups.bounds_s[number]
        yield Experiment(
            run=words_of(names[number]), gpu_minutes=num_gpus * float(seconds) / 60, regret=float(np.mean(after))
        )


def _micro_benchmarks(
    groups: Groups, worlds: Worlds, log_factors: FloatArray, truths: Sequence[int], num_gpus: int
) -> Iterator[Experiment]:
    """Yield commands that give the constants of some sensitivities the values of the truth in all worlds."""
    for command, settled, takes_all, minutes in MICRO_BENCHMARKS:
        columns = [SENSITIVITIES.index(name) for name in settled]
        slopes = np.array([_slope(groups, worlds, log_factors, column) for column in columns])
        after = []
        for truth in truths:
            moved = groups.terms[:, columns] @ (slopes[:, truth, None] - slopes)
            after.append(least_regret(groups, log_factors + moved))
        gpus = num_gpus if takes_all else 1
        yield Experiment(command=command, gpu_minutes=gpus * minutes, regret=float(np.mean(after)))


def _slope(groups: Groups, worlds: Worlds, log_factors: FloatArray, column: int) -> FloatArray:
    """Return the slope of a sensitivity in each world, shape ``(num_worlds,)``."""
    raised = groups.terms[:1].copy()
    raised[:, column] += 1
    return np.asarray(worlds.log_factors(raised)[0] - log_factors[0])

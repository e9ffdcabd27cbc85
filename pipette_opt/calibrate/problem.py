"""Fit of a stack as a least-squares problem: measured runs, starting stack, and free constants."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from pipette_opt.base.types import FloatArray
from pipette_opt.base.units import ceil_div
from pipette_opt.calibrate.cases import Case
from pipette_opt.calibrate.descent import NOISE, Descent, LeastSquares, descend
from pipette_opt.calibrate.free import FreeConstant
from pipette_opt.calibrate.run_times import RunTimes
from pipette_opt.read.runs import MeasuredRun
from pipette_opt.specs import StackSpec

MAX_RARE = 16.0
"""Limit on the weight of runs with a rare number of GPUs: ratio of mean to own number of runs. Chosen."""

FIRST_ITERATIONS, MAX_ITERATIONS = 3, 60
"""Iterations from each start before the best start is chosen, and from the chosen start. Chosen."""

FIRST_RUNS = 100
"""Most runs of the first fit, whose result starts the fit to all runs. Chosen."""


FEW, OF_A_JOB = 10.0, 0.1
"""
Number of runs at which half of ``OF_A_JOB`` counts, and the standard deviation between jobs of one stack that its
constants do not explain. Chosen.
"""


def noise_of(num_runs: int) -> float:
    """Return the standard deviation of residuals, against which priors are weighed; larger with few runs."""
    return float(np.sqrt(NOISE**2 + (OF_A_JOB * FEW / (FEW + num_runs)) ** 2))


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Problem:
    """Measured runs, the starting stack, and the constants to fit."""

    times: RunTimes
    base: StackSpec
    free: tuple[FreeConstant, ...]

    @property
    def cases(self) -> Sequence[Case]:
        """Measured runs with their instances, configurations and placements."""
        return self.times.cases

    @property
    def runs(self) -> list[MeasuredRun]:
        """Measured runs."""
        return [case.run for case in self.cases]

    @property
    def measured_s(self) -> FloatArray:
        """Measured iteration time of each run, seconds."""
        return np.array([run.iter_time_s for run in self.runs], dtype=np.float64)

    @property
    def weights(self) -> FloatArray:
        """
        Weight of each run: the square root of how rare its number of GPUs is, with mean 1.

        A hundred runs on one host must not outweigh ten runs that alone show the network; nor must ten runs decide
        everything. With ten runs on many hosts among ninety on one host, held-out runs are 8.3 % off (8.8 % with equal
        weights, 8.6 % with equal weight for every number of GPUs).
        """
        gpus = np.array([run.num_gpus for run in self.runs])
        _, which, counts = np.unique(gpus, return_inverse=True, return_counts=True)
        weights: FloatArray = np.sqrt(np.minimum(counts.mean() / counts[which], MAX_RARE))
        weights /= weights.mean()
        return weights

    @property
    def centre(self) -> FloatArray:
        """Logarithm of the prior centre of each constant."""
        return np.log([getattr(self.base, constant.name) or constant.start for constant in self.free])

    @property
    def largest(self) -> FloatArray:
        """Logarithm of the upper limit of each constant."""
        return np.log([constant.largest for constant in self.free])

    def stack_of(self, values: FloatArray) -> StackSpec:
        """Return the stack whose constants have these logarithms."""
        constants = np.exp(np.minimum(values, self.largest)).tolist()
        return self.base.with_constants(
            {constant.name: value for constant, value in zip(self.free, constants, strict=True)}
        )

    def fit(self, start: Descent | None = None, known_slopes: FloatArray | None = None) -> tuple[Descent, StackSpec]:
        """
        Fit the constants; return the descent over their logarithms, and the fitted stack.

        Parameters
        ----------
        start
            Start of the descent, with its derivatives; ``None`` for the best of several starts.
        known_slopes
            Derivatives near the solution that replace new ones; ``None`` to compute them.
        """
        squares = replace(self.squares(), known_slopes=known_slopes)
        start = start or self._best_start()
        found = descend(squares, start.values, MAX_ITERATIONS, start.slopes)
        return found, self.stack_of(found.values)

    def with_stack_s(self, stack: StackSpec) -> FloatArray:
        """Return the predicted iteration time of each run with this stack, seconds."""
        return self.times.predicted_s(stack)

    def subset(self, indices: Sequence[int]) -> "Problem":
        """Return the problem for the runs at these indices."""
        rows = list(indices)
        return replace(self, times=self.times.subset(rows))

    def squares(self) -> LeastSquares:
        """Return the least-squares problem over the logarithms of the constants."""
        target = np.log(self.measured_s)
        return LeastSquares(
            residuals_of=lambda values: np.log(self.with_stack_s(self.stack_of(values))) - target,
            weights=self.weights,
            centre=self.centre,
            spread=np.array([constant.spread for constant in self.free]),
            largest=self.largest,
            noise=noise_of(len(self.cases)),
        )

    def _best_start(self) -> Descent:
        """Return the best of several starts; with many runs, each start is first fitted to a part of them."""
        part = self.subset(range(0, len(self.cases), ceil_div(len(self.cases), FIRST_RUNS)))
        squares, starts = part.squares(), [self._start(slow_host) for slow_host in (False, True)]
        best = min((descend(squares, start, FIRST_ITERATIONS) for start in starts), key=lambda start: start.loss)
        if part.times is self.times:
            return best
        best = descend(squares, best.values, MAX_ITERATIONS, best.slopes)
        return descend(self.squares(), best.values, 0)

    def _start(self, slow_host: bool) -> FloatArray:
        """Return starting logarithms, also with a slow host: constants of a fast one have no derivative."""
        values = self.centre.copy()
        for index, constant in enumerate(self.free):
            if slow_host and constant.slow is not None:
                values[index] = np.log(constant.slow)
        return values

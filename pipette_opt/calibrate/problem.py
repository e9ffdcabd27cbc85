"""The fit as a least-squares problem: runs, starting stack, and free constants."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from pipette_opt.base.types import FloatArray
from pipette_opt.base.units import ceil_div
from pipette_opt.calibrate.cases import Case
from pipette_opt.calibrate.descent import NOISE, Descent, LeastSquares, badness, descend
from pipette_opt.calibrate.free import Free
from pipette_opt.calibrate.layers import learn_layers
from pipette_opt.calibrate.losing import group_chances
from pipette_opt.calibrate.run_times import RunTimes
from pipette_opt.read.runs import MeasuredRun
from pipette_opt.specs import StackSpec

MAX_RARE = 16.0
"""Largest factor between a usual and a rare number of GPUs in the weights of runs. Chosen."""

FIRST_ITERATIONS, MAX_ITERATIONS = 3, 60
"""Iterations from each start, to choose one of them, and from the chosen one. Chosen."""

FIRST_RUNS = 100
"""Most runs of the first fit, whose constants start the fit to all runs. Chosen."""


FEW, OF_A_JOB = 10.0, 0.1
"""
Number of runs at which a quarter of the variance between jobs of one stack, beyond its constants, is counted; and the
square root of that variance. Chosen.
"""


def noise_of(num_runs: int) -> float:
    """Standard deviation of residuals, against which priors are weighed; larger for few runs with their own errors."""
    return float(np.sqrt(NOISE**2 + (OF_A_JOB * FEW / (FEW + num_runs)) ** 2))


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Problem:
    """
    Runs, the starting stack, and the constants that are free.

    Parameters
    ----------
    edge_risk
        Probabilities of :func:`~pipette_opt.calibrate.edge.edge_risks`.
    loses
        Probability that each run's group has near-OOM slowdown; stacks of a problem have it in every group.
    half_gpus
        Number of GPUs at which half of the jobs have it, see ``StackSpec.refill_half_gpus``.
    """

    times: RunTimes
    edge_risk: FloatArray
    loses: FloatArray
    base: StackSpec
    free: tuple[Free, ...]
    half_gpus: float = 0.0

    @property
    def cases(self) -> Sequence[Case]:
        """Return the runs as instances and configurations."""
        return self.times.cases

    @property
    def runs(self) -> list[MeasuredRun]:
        """Return the measured runs."""
        return [case.run for case in self.cases]

    @property
    def measured_s(self) -> FloatArray:
        """Measured seconds of each run."""
        return np.array([run.iter_time_s for run in self.runs], dtype=np.float64)

    @property
    def weights(self) -> FloatArray:
        """
        Weight of each run: the root of how rare its number of GPUs is.

        A hundred runs on one host must not outweigh ten that alone show the network; nor must ten decide everything.
        (With ten runs on many hosts among ninety on one host, held-out runs are 8.3 % off; 8.8 % with equal weights,
        and 8.6 % with equal weight for every number of GPUs.)
        """
        gpus = np.array([run.num_gpus for run in self.runs])
        _, which, counts = np.unique(gpus, return_inverse=True, return_counts=True)
        weights: FloatArray = np.sqrt(np.minimum(counts.mean() / counts[which], MAX_RARE))
        weights /= weights.mean()
        return weights

    @property
    def centre(self) -> FloatArray:
        """Logarithms of the prior centres of the constants."""
        return np.log([getattr(self.base, constant.name) or constant.start for constant in self.free])

    @property
    def largest(self) -> FloatArray:
        """Logarithms of the upper limits of the constants."""
        return np.log([constant.largest for constant in self.free])

    def stack_of(self, values: FloatArray) -> StackSpec:
        """Return the stack with the constants that have these logarithms."""
        constants = np.exp(np.minimum(values, self.largest)).tolist()
        return self.base.with_constants(
            {constant.name: value for constant, value in zip(self.free, constants, strict=True)}
        )

    def fit(self, start: Descent | None = None, known_slopes: FloatArray | None = None) -> tuple[Descent, StackSpec]:
        """
        Fit the constants; return the descent over their logarithms, and the stack with them and learned layers.

        Parameters
        ----------
        start
            Start of the descent, with its derivatives; without it the best of several starts.
        known_slopes
            Derivatives near the solution, in place of new ones.
        """
        squares = replace(self.squares(), known_slopes=known_slopes)
        start = start or self._begin()
        found = descend(squares, start.values, MAX_ITERATIONS, start.slopes)
        return found, self.taught(self.stack_of(found.values))

    def taught(self, stack: StackSpec) -> StackSpec:
        """Return the stack with factors of layers learned from these runs."""
        plain = replace(stack, layers=None)
        layers = learn_layers(self.cases, self.with_stack_s, self.measured_s, plain)
        return replace(stack, layers=layers)

    def residuals(self, stack: StackSpec) -> FloatArray:
        """Logarithms of measured over predicted times."""
        left: FloatArray = np.log(self.measured_s / self.with_stack_s(stack))
        return left

    def with_stack_s(self, stack: StackSpec) -> FloatArray:
        """Predict the seconds of each run."""
        return self.times.predicted_s(stack, self.risk)

    @property
    def risk(self) -> FloatArray:
        """Probabilities of near-OOM slowdown, those once in an iteration times that of the run's group."""
        ones = np.ones(len(self.loses))
        found: FloatArray = self.edge_risk * np.column_stack([ones, ones, self.loses])
        return found

    @property
    def may_lose(self) -> bool:
        """Return whether runs near full memory inform the slowdown of groups."""
        return any(constant.name == "refill_s_per_billion" for constant in self.free)

    def with_chance(self, stack: StackSpec) -> StackSpec:
        """Return the stack with the learned probability of slowdown for new jobs."""
        return replace(stack, refill_half_gpus=self.half_gpus) if self.may_lose else stack

    def with_groups(self, stack: StackSpec) -> "Problem":
        """Return the problem with the probabilities of groups that the runs give under this stack."""
        bad = [badness(replace(self, loses=np.full(len(self.cases), loss)).residuals(stack)) for loss in (0.0, 1.0)]
        evidence = self.weights * (bad[0] - bad[1]) / NOISE**2
        loses, half = group_chances([run.group for run in self.runs], [run.num_gpus for run in self.runs], evidence)
        return replace(self, loses=loses, half_gpus=half)

    def relative_uncertainty(self, found: Descent) -> FloatArray:
        """Posterior over prior standard deviation of each constant: 1 if the runs do not inform it."""
        squares = self.squares()
        ratio: FloatArray = squares.uncertainty(found.residuals, found.slopes) / squares.spread
        return ratio

    def subset(self, indices: Sequence[int]) -> "Problem":
        """Return the problem of a part of the runs, in order."""
        rows = list(indices)
        return replace(self, times=self.times.subset(rows), edge_risk=self.edge_risk[rows], loses=self.loses[rows])

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

    def _begin(self) -> Descent:
        """Return the best of several starts; with many runs, by a fit to a part of them."""
        part = self.subset(range(0, len(self.cases), ceil_div(len(self.cases), FIRST_RUNS)))
        squares, starts = part.squares(), [self._start(slow_host) for slow_host in (False, True)]
        best = min((descend(squares, start, FIRST_ITERATIONS) for start in starts), key=lambda start: start.loss)
        if part.times is self.times:
            return best
        best = descend(squares, best.values, MAX_ITERATIONS, best.slopes)
        return descend(self.squares(), best.values, 0)

    def _start(self, slow_host: bool) -> FloatArray:
        """Return a start; on a fast host its constants have no derivative, so a slow host is tried, too."""
        values = self.centre.copy()
        for index, constant in enumerate(self.free):
            if slow_host and constant.slow is not None:
                values[index] = np.log(constant.slow)
        return values

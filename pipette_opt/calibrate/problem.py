"""What a fit makes small: runs, the starting stack, and the constants that are free."""

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
"""Fewer runs of a number of GPUs than this share of the usual have no more say."""

FIRST_ITERATIONS, MAX_ITERATIONS = 3, 60
"""From each start, to choose one; and from that."""

FIRST_RUNS = 100
"""Runs of the first fit, whose constants are a start for that to all; chosen."""


FEW, OF_A_JOB = 10.0, 0.1
"""
Number of runs at which a quarter of the variance is counted that jobs of one stack have beside its constants, and its
root; chosen.
"""


def noise_of(num_runs: int) -> float:
    """Standard deviation of residuals that priors are weighed against: few runs also say what is theirs alone."""
    return float(np.sqrt(NOISE**2 + (OF_A_JOB * FEW / (FEW + num_runs)) ** 2))


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Problem:
    """
    Runs, the starting stack, and the constants that are free.

    Parameters
    ----------
    edge_risk
        See :func:`~pipette_opt.calibrate.edge.edge_risks`.
    loses
        How likely each run is of a group that loses time near full memory; stacks in here lose it in every group.
    half_gpus
        What these chances say of jobs that nobody ran, see ``StackSpec.refill_half_gpus``.
    """

    times: RunTimes
    edge_risk: FloatArray
    loses: FloatArray
    base: StackSpec
    free: tuple[Free, ...]
    half_gpus: float = 0.0

    @property
    def cases(self) -> Sequence[Case]:
        """The runs as instances and configurations."""
        return self.times.cases

    @property
    def runs(self) -> list[MeasuredRun]:
        """As they were measured."""
        return [case.run for case in self.cases]

    @property
    def measured_s(self) -> FloatArray:
        """Seconds of each run."""
        return np.array([run.iter_time_s for run in self.runs], dtype=np.float64)

    @property
    def say(self) -> FloatArray:
        """
        Weight of each run: a number of GPUs with few runs has more say in each, by the root of how few they are.

        A hundred runs on one host must not drown ten that alone tell of the network; nor must ten decide everything.
        (With ten runs on many hosts among ninety on one, those left out are 8.3 % off, 8.8 % with equal weights and
        8.6 % with the same say for every number of GPUs.)
        """
        gpus = np.array([run.num_gpus for run in self.runs])
        _, which, counts = np.unique(gpus, return_inverse=True, return_counts=True)
        say: FloatArray = np.sqrt(np.minimum(counts.mean() / counts[which], MAX_RARE))
        say /= say.mean()
        return say

    @property
    def centre(self) -> FloatArray:
        """Logarithms of the constants that are most likely before anything is measured."""
        return np.log([getattr(self.base, one.name) or one.start for one in self.free])

    @property
    def largest(self) -> FloatArray:
        """Logarithms of the largest constants."""
        return np.log([one.largest for one in self.free])

    def stack_of(self, values: FloatArray) -> StackSpec:
        """The stack with the constants whose logarithms these are."""
        constants = np.exp(np.minimum(values, self.largest)).tolist()
        return self.base.with_constants({one.name: value for one, value in zip(self.free, constants, strict=True)})

    def fit(self, start: Descent | None = None, known_slopes: FloatArray | None = None) -> tuple[Descent, StackSpec]:
        """
        Constants (their logarithms), and the stack that has them and what the runs teach of layers.

        Parameters
        ----------
        start
            Where to begin, and slopes there; without it the best of several starts.
        known_slopes
            Derivatives near the answer, if none are to be made anew.
        """
        squares = replace(self.squares(), known_slopes=known_slopes)
        start = start or self._begin()
        found = descend(squares, start.values, MAX_ITERATIONS, start.slopes)
        return found, self.taught(self.stack_of(found.values))

    def taught(self, stack: StackSpec) -> StackSpec:
        """The stack with what these runs teach of layers in place of what it has."""
        plain = replace(stack, layers=None)
        layers = learn_layers(self.cases, self.with_stack_s, self.measured_s, plain)
        return replace(stack, layers=layers)

    def residuals(self, stack: StackSpec) -> FloatArray:
        """Logarithms of measured over predicted times."""
        left: FloatArray = np.log(self.measured_s / self.with_stack_s(stack))
        return left

    def with_stack_s(self, stack: StackSpec) -> FloatArray:
        """Predicted seconds."""
        return self.times.predicted_s(stack, self.risk)

    @property
    def risk(self) -> FloatArray:
        """At the edge of memory, and near it in a group that loses there."""
        ones = np.ones(len(self.loses))
        found: FloatArray = self.edge_risk * np.column_stack([ones, ones, self.loses])
        return found

    @property
    def may_lose(self) -> bool:
        """Whether there are runs near full memory that tell what groups lose."""
        return any(one.name == "refill_s_per_billion" for one in self.free)

    def with_chance(self, stack: StackSpec) -> StackSpec:
        """The stack for jobs of which nobody knows whether they lose."""
        return replace(stack, refill_half_gpus=self.half_gpus) if self.may_lose else stack

    def with_groups(self, stack: StackSpec) -> "Problem":
        """The same with what the runs say of their groups, if the constants of the stack hold."""
        bad = [badness(replace(self, loses=np.full(len(self.cases), one)).residuals(stack)) for one in (0.0, 1.0)]
        evidence = self.say * (bad[0] - bad[1]) / NOISE**2
        loses, half = group_chances([run.group for run in self.runs], [run.num_gpus for run in self.runs], evidence)
        return replace(self, loses=loses, half_gpus=half)

    def told(self, found: Descent) -> FloatArray:
        """How uncertain each constant is after a fit, over what it was before: 1 where the runs tell nothing."""
        squares = self.squares()
        told: FloatArray = squares.uncertainty(found.residuals, found.slopes) / squares.spread
        return told

    def some(self, indices: Sequence[int]) -> "Problem":
        """The same with some of the runs, in order."""
        rows = list(indices)
        return replace(self, times=self.times.some(rows), edge_risk=self.edge_risk[rows], loses=self.loses[rows])

    def squares(self) -> LeastSquares:
        """The least squares."""
        target = np.log(self.measured_s)
        return LeastSquares(
            residuals_of=lambda values: np.log(self.with_stack_s(self.stack_of(values))) - target,
            say=self.say,
            centre=self.centre,
            spread=np.array([one.spread for one in self.free]),
            largest=self.largest,
            noise=noise_of(len(self.cases)),
        )

    def _begin(self) -> Descent:
        """The best of several starts, by the fit to a part of the runs where there are many."""
        part = self.some(range(0, len(self.cases), ceil_div(len(self.cases), FIRST_RUNS)))
        squares, starts = part.squares(), [self._start(slow_host) for slow_host in (False, True)]
        best = min((descend(squares, one, FIRST_ITERATIONS) for one in starts), key=lambda one: one.loss)
        if part.times is self.times:
            return best
        best = descend(squares, best.values, MAX_ITERATIONS, best.slopes)
        return descend(self.squares(), best.values, 0)

    def _start(self, slow_host: bool) -> FloatArray:
        """A fast host never shows, so that its constants have no slope: start from a slow one, too."""
        values = self.centre.copy()
        for index, one in enumerate(self.free):
            if slow_host and one.slow is not None:
                values[index] = np.log(one.slow)
        return values

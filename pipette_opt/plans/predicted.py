"""Predicted time and memory of a placed configuration."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from statistics import NormalDist

FEW_RUNS = 20
"""Number of measured runs of a kind of job below which output warns that few runs were measured. Chosen."""

AS_GOOD = 1e-6
"""Relative difference below which two iteration times count as equal; solver ticks are hardly finer."""

OWN_RUNS = "that the stack was calibrated with"
MEASURED_RUNS = "that you measured"
"""Words in the source of a band that mark its runs as the user's own, of a calibration or of ``--measured``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Band:
    """
    Range of the iteration time, from measured over predicted times of runs like this job.

    Parameters
    ----------
    low_s, high_s
        Ends of the range, seconds.
    middle_s
        Expected time inside the range, seconds.
    share
        Share of the measured runs whose time lies inside the range, in [0, 1].
    source
        Description of the measured runs, for people.
    runs
        Number of the measured runs that are of the same kind of job.
    unmeasured
        GPUs of the job whose generation no public run used, in words; empty with runs of the user.
    """

    low_s: float
    middle_s: float
    high_s: float
    share: float
    source: str
    runs: int
    unmeasured: str = ""

    @property
    def is_own(self) -> bool:
        """Return whether the band comes from runs of the user."""
        return OWN_RUNS in self.source or MEASURED_RUNS in self.source


@dataclass(frozen=True, slots=True, kw_only=True)
class IterationTime:
    """
    Iteration time of a placed configuration, with rates and causes.

    ``iteration_time_s`` is the simulated time, which solver and proof use. ``expected_s`` is shown to people: the
    simulated time times one factor of the job (:mod:`pipette_opt.worlds.factor`).

    Parameters
    ----------
    iteration_time_s
        Simulated time of one iteration, seconds; the rates and utilisations below refer to this time.
    mfu
        Model FLOPs utilisation: FLOPs of the model, forward and backward, over the peak of the GPUs used, in [0, 1].
        Attention is causal (half of the scores), and recomputation does not count.
    hfu
        Hardware FLOPs utilisation: ``mfu`` with recomputation, and attention as its kernels compute it: all scores
        without a fused kernel, and those of an indexer.
    breakdown
        Seconds by cause, mean of all ranks, adding up to ``iteration_time_s``: ``compute``, ``waiting_for_launches``
        (the GPU waits for the host to launch kernels), ``tensor_parallel``, ``expert_parallel`` (models with experts),
        ``pipeline_parallel``, ``data_parallel``, ``bubble`` (idle: warm-up, flush, waiting for slower stages and
        replicas), ``optimizer``.
    critical_path
        Seconds by cause along the longest chain of computations and messages, adding up to ``iteration_time_s``,
        without ``bubble``.
    band
        Range of the time; ``None`` before the range is computed.
    """

    iteration_time_s: float
    tokens_per_s: float
    tokens_per_s_per_gpu: float
    mfu: float
    hfu: float | None = None
    breakdown: Mapping[str, float]
    critical_path: Mapping[str, float] = field(default_factory=dict)
    band: Band | None = None

    @property
    def expected_s(self) -> float:
        """Expected seconds of an iteration: the middle of the band; without a band the simulated time."""
        return self.iteration_time_s if self.band is None else self.band.middle_s

    @property
    def factor(self) -> float:
        """Expected over simulated time: the job's one factor, the same for all of its plans."""
        return self.expected_s / self.iteration_time_s

    def expected_of(self, simulated_s: float) -> float:
        """Return expected seconds of simulated ones, of this plan or of another plan of its job."""
        return self.factor * simulated_s

    @property
    def expected_tokens_per_s(self) -> float:
        """Tokens per second at the expected time."""
        return self.tokens_per_s / self.factor

    @property
    def expected_tokens_per_s_per_gpu(self) -> float:
        """Tokens per second and GPU at the expected time."""
        return self.tokens_per_s_per_gpu / self.factor

    @property
    def expected_mfu(self) -> float:
        """Model FLOPs utilisation at the expected time."""
        return self.mfu / self.factor


@dataclass(frozen=True, slots=True, kw_only=True)
class StageMemory:
    """
    Peak memory of one GPU of a stage.

    Parameters
    ----------
    upper_bytes
        Peak that is exceeded with at most the accepted risk.
    oom_probability
        Probability of running out of memory, with all that is unknown about the stack. The accepted risk bounds it.
    extrapolates
        Whether the stage lies outside the predictor's training data.
    counted_bytes
        Bytes of weights, gradients, optimizer state and buffers of a certain size: no stack needs less.
    spread
        Standard deviation of ``log(real / predicted)``, with all that is unknown about the stack.
    components
        Bytes of the predicted peak by part (:data:`~pipette_opt.memory.components.COMPONENTS`), adding up to it.
    """

    stage: int
    predicted_bytes: int
    upper_bytes: int
    capacity_bytes: int
    oom_probability: float
    counted_bytes: int = 0
    spread: float = 0.0
    extrapolates: bool = False
    components: Mapping[str, int] = field(default_factory=dict)

    @property
    def range_bytes(self) -> tuple[float, float]:
        """Peaks between which nine in ten stacks are expected, bytes."""
        factor = math.exp(NINE_IN_TEN * self.spread)
        return max(self.predicted_bytes / factor, self.counted_bytes), self.predicted_bytes * factor


NINE_IN_TEN = NormalDist().inv_cdf(0.95)
"""Standard deviations around the mean that hold nine in ten values of a normal variable."""


def fullness(stage: StageMemory) -> tuple[float, float]:
    """Return a sort key for how full the memory of a stage is: out-of-memory risk, then upper peak over capacity."""
    return stage.oom_probability, stage.upper_bytes / stage.capacity_bytes

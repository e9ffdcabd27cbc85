"""Finished plan: configuration, placement, iteration time, memory, and proof."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from pipette_opt.base.typed import Count, Positive, Share, Size
from pipette_opt.base.types import Launcher, P2PMode
from pipette_opt.base.units import percent
from pipette_opt.parallel import ParallelConfig, Placement, RankGrid
from pipette_opt.plans.certificate import Certificate as Certificate
from pipette_opt.plans.certificate import JointModel as JointModel
from pipette_opt.plans.certificate import Proof as Proof
from pipette_opt.plans.certificate import RuledOut as RuledOut
from pipette_opt.specs import NotModelled
from pipette_opt.specs.objective import Objective

if TYPE_CHECKING:
    from pandas import DataFrame

SCHEMA_VERSION = 1

FEW_RUNS = 20
"""Number of measured runs of a kind of job below which output warns that few runs were measured. Chosen."""

PROVEN_WITHIN = 2e-6
"""Relative tolerance of a proven optimum, for rounding to solver ticks (integer time units) and of doubles. Chosen."""


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
    apart
        Smallest ratio of the predicted times of two plans at which three in four pairs of measured runs keep their
        predicted order; closer plans cannot be told apart. ``None`` if unknown.
    """

    low_s: float
    middle_s: float
    high_s: float
    share: float
    source: str
    runs: int
    apart: float | None = None

    @property
    def is_own(self) -> bool:
        """Return whether the band comes from runs of the user."""
        return OWN_RUNS in self.source or MEASURED_RUNS in self.source


@dataclass(frozen=True, slots=True, kw_only=True)
class IterationTime:
    """
    Iteration time of a placed configuration, with rates and causes.

    ``iteration_time_s`` is the simulated time, which solver and proof use. ``expected_s`` is shown to people: the
    simulated time times the usual ratio of measured to simulated time.

    Parameters
    ----------
    iteration_time_s
        Simulated time of one iteration, seconds; the rates and utilisations below refer to this time.
    mfu
        Model FLOPs utilisation: FLOPs of the model, forward and backward, over the peak of the GPUs used, in [0, 1].
        Attention is causal (half of the scores), and recomputation does not count.
    hfu
        Hardware FLOPs utilisation: ``mfu`` with recomputation and all attention scores, as computed by a kernel that
        does not skip the masked ones; ``None`` in plans of older versions. May exceed 1 if the kernel does skip them.
    breakdown
        Seconds by cause, mean of all ranks, adding up to ``iteration_time_s``: ``compute``, ``tensor_parallel``,
        ``expert_parallel`` (models with experts), ``pipeline_parallel``, ``data_parallel``, ``bubble`` (idle:
        warm-up, flush, waiting for slower stages and replicas), ``optimizer``, ``full_memory`` (near-OOM slowdown;
        in plans of older versions only).
    critical_path
        Seconds by cause along the longest chain of computations and messages, adding up to ``iteration_time_s``,
        without ``bubble``. Empty in plans of older versions.
    band
        Range of the time; ``None`` before the range is computed, and in plans of older versions.
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
    def expected_tokens_per_s(self) -> float:
        """Tokens per second at the expected time."""
        return self.tokens_per_s * self.iteration_time_s / self.expected_s

    @property
    def expected_tokens_per_s_per_gpu(self) -> float:
        """Tokens per second and GPU at the expected time."""
        return self.tokens_per_s_per_gpu * self.iteration_time_s / self.expected_s

    @property
    def expected_mfu(self) -> float:
        """Model FLOPs utilisation at the expected time."""
        return self.mfu * self.iteration_time_s / self.expected_s


@dataclass(frozen=True, slots=True, kw_only=True)
class StageMemory:
    """
    Peak memory of one GPU of a stage.

    Parameters
    ----------
    upper_bytes
        Peak that is exceeded with at most the accepted risk.
    oom_probability
        Probability of running out of memory.
    oom_probability_at_most
        Whether the probability is only an upper bound: the predictor's data support no smaller value.
    extrapolates
        Whether the stage lies outside the predictor's training data.
    components
        Bytes of the predicted peak by part (:data:`~pipette_opt.memory.components.COMPONENTS`), adding up to it. Empty
        in plans of older versions.
    """

    stage: int
    predicted_bytes: int
    upper_bytes: int
    capacity_bytes: int
    oom_probability: float
    oom_probability_at_most: bool = False
    extrapolates: bool = False
    components: Mapping[str, int] = field(default_factory=dict)


def fullness(stage: StageMemory) -> tuple[float, float]:
    """Return a sort key for how full the memory of a stage is: out-of-memory risk, then upper peak over capacity."""
    return stage.oom_probability, stage.upper_bytes / stage.capacity_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Alternative:
    """
    Plan that was not chosen: its configuration, hosts in rank order, time, memory risk, and the reason.

    Parameters
    ----------
    lower_bound_s
        Lower bound on the time of searched plans with the same degrees, micro-batch and kind of recomputation, seconds;
        ``None`` if unknown.
    oom_probability_at_most
        Whether ``oom_probability`` is only an upper bound.
    slots
        GPU numbers of each host in rank order; ``None`` for 0, 1, ...
    breakdown
        Seconds by cause, as in :class:`IterationTime`. Empty in plans of older versions.
    """

    config: ParallelConfig
    hosts: tuple[str, ...]
    iteration_time_s: float | None
    oom_probability: float | None
    oom_probability_at_most: bool = False
    reason: str
    slots: tuple[tuple[int, ...], ...] | None = None
    breakdown: Mapping[str, float] = field(default_factory=dict)
    lower_bound_s: float | None = None

    @property
    def is_proven(self) -> bool:
        """Return whether no plan with the same degrees, micro-batch and recomputation is faster, up to rounding."""
        known = self.lower_bound_s is not None and self.iteration_time_s is not None
        return known and self.lower_bound_s >= (1 - PROVEN_WITHIN) * self.iteration_time_s  # type: ignore[operator]


@dataclass(frozen=True, slots=True, kw_only=True)
class RiskChoice:
    """
    Fastest plan found with at most a given risk of running out of memory.

    Parameters
    ----------
    max_oom_risk
        Limit on the risk that the fullest stage runs out of memory.
    upper_bytes, capacity_bytes
        Memory peak of the fullest stage that is exceeded with at most the accepted risk; capacity of a GPU.
    """

    max_oom_risk: float
    plan: Alternative
    upper_bytes: int
    capacity_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Imbalance:
    """
    Time and memory risk of the plan if experts are unevenly loaded.

    Parameters
    ----------
    expert_imbalance
        Tokens of the busiest rank of experts over the mean of all ranks.
    iteration_time_s
        Simulated time of an iteration, seconds.
    oom_probability
        Risk that the fullest stage runs out of memory.
    """

    expert_imbalance: Positive
    iteration_time_s: Positive
    oom_probability: Share


@dataclass(frozen=True, slots=True, kw_only=True)
class Baseline:
    """Configuration that another method chooses on the same instance, with its time from our simulator."""

    name: str
    config: ParallelConfig
    iteration_time_s: float
    objective_s: float
    wall_time_s: float


SizeStatus = Literal["searched", "infeasible", "slower", "not searched"]
"""Results for a number of GPUs; see :class:`SizeProof`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SizeProof:
    """
    Proof about one number of GPUs, for an objective other than the time.

    Parameters
    ----------
    num_gpus
        Number of GPUs, on whole hosts.
    dearest
        Largest allowed price of a GPU-hour of a host; ``None`` if prices do not count.
    status
        ``searched``: a plan was found. ``infeasible``: no plan fits. ``slower``: a plan with another number of GPUs is
        better than every plan with this number. ``not searched``: the time limit was reached.
    iteration_time_s
        Simulated time of the fastest plan found, seconds; ``None`` without a plan.
    lower_bound_s
        Lower bound on the time of plans with this many GPUs, seconds; ``None`` if no plan fits.
    value, bound
        Objective at ``iteration_time_s``, and at ``lower_bound_s``; ``None`` if that time is ``None``.
    """

    num_gpus: Size
    dearest: Positive | None
    status: SizeStatus
    iteration_time_s: Positive | None
    lower_bound_s: Positive | None
    value: Positive | None
    bound: Positive | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """
    Objective of a plan, if it is not the time alone, and the proof about this objective.

    Parameters
    ----------
    objective
        Objective by which the plan was chosen.
    unit
        Unit of ``value`` and ``bound``, for people.
    value
        Value of the objective at the plan.
    bound
        Bound on the objective of every plan with a searched number of GPUs.
    gap
        Largest possible improvement of the best plan found, as share of its value, in [0, 1].
    sizes
        Proof for each number of GPUs.
    best_value
        Objective of the best plan found, if a plainer plan was preferred; ``None``: the plan is the best.
    """

    objective: Objective
    unit: str
    value: Positive
    bound: Positive
    gap: float
    sizes: tuple[SizeProof, ...]
    best_value: Positive | None = None

    @property
    def gap_of_bound(self) -> float:
        """Gap between the best value and the bound, as a share in [0, 1]."""
        best = self.value if self.best_value is None else self.best_value
        return 1 - (best / self.bound if self.objective.is_rate else self.bound / best)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Plan:
    """
    Finished plan: everything that a launch or a report needs.

    Parameters
    ----------
    hosts
        Host names of the cluster; ``placement.node`` holds indices into them.
    unused_hosts
        Hosts without a rank, each with the reason if known.
    inputs
        Inputs of the search by name: ``{"path": ..., "sha256": ...}`` for files, plain values for options.
    notes
        Sentences for the reader: assumptions, extrapolation, missing links.
    not_modelled
        Options of the job's Megatron arguments that times and sizes leave out.
    target
        Objective by which the plan was chosen; ``None``: its time.
    fastest
        Fastest plan found, if a plainer plan was preferred.
    risks
        Fastest plans found at the accepted risk of running out of memory, and at smaller risks.
    imbalance
        Time and memory risk with uneven experts; ``None`` without experts, or if the plan already counts them as
        uneven.
    """

    config: ParallelConfig
    placement: Placement
    hosts: tuple[str, ...]
    gpus_per_node: int
    global_batch_size: int
    launcher: Launcher
    p2p: P2PMode
    certificate: Certificate
    estimate: IterationTime
    memory: tuple[StageMemory, ...]
    unused_hosts: Mapping[str, str] = field(default_factory=dict)
    alternatives: tuple[Alternative, ...] = ()
    baselines: tuple[Baseline, ...] = ()
    inputs: Mapping[str, Any] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    not_modelled: tuple[NotModelled, ...] = ()
    target: Target | None = None
    fastest: Alternative | None = None
    risks: tuple[RiskChoice, ...] = ()
    imbalance: Imbalance | None = None
    nccl_algorithm: str = "ring"
    seed: int = 0
    created: str = ""
    versions: Mapping[str, str] = field(default_factory=dict)

    @property
    def verdict(self) -> str:
        """Sentence that says whether the plan fits, how far it is from the best, and how uncertain its time is."""
        from pipette_opt.plans.verdict import plan_verdict

        return plan_verdict(self)

    def stage_table(self) -> "DataFrame":
        """Return a table of layers and memory of each stage; see :func:`~pipette_opt.plans.frames.stage_frame`."""
        from pipette_opt.plans.frames import stage_frame

        return stage_frame(self)

    def time_table(self) -> "DataFrame":
        """Return a table of seconds by cause; see :func:`~pipette_opt.plans.frames.time_frame`."""
        from pipette_opt.plans.frames import time_frame

        return time_frame(self)

    def alternative_table(self) -> "DataFrame":
        """Return a table of the plan and its alternatives; see :func:`~pipette_opt.plans.frames.alternative_frame`."""
        from pipette_opt.plans.frames import alternative_frame

        return alternative_frame(self)

    def rank_table(self) -> "DataFrame":
        """
        Return a table of host, GPU and coordinates of each rank; see
        :func:`~pipette_opt.plans.frames.rank_frame`.
        """
        from pipette_opt.plans.frames import rank_frame

        return rank_frame(self)

    def proof_table(self) -> "DataFrame":
        """
        Return a table of configurations ruled out, by rule, bound or engine; see
        :func:`~pipette_opt.plans.frames.proof_frame`.
        """
        from pipette_opt.plans.frames import proof_frame

        return proof_frame(self)

    def __repr__(self) -> str:
        from pipette_opt.plans.summary import plan_summary

        return plan_summary(self)

    def _repr_html_(self) -> str:
        from pipette_opt.plans.frames import html_of

        return html_of(self, self.verdict)


AS_GOOD = 1e-6
"""
Relative difference below which two iteration times count as equal; solver ticks (integer time units) are hardly
finer.
"""


def why_slower(best: IterationTime, other: IterationTime) -> str:
    """
    Return a text that says why a plan was not chosen: how much slower it is, and the cause of time that grew
    most.
    """
    slower = other.iteration_time_s / best.iteration_time_s - 1
    if slower < -AS_GOOD:
        return f"{-slower:.1%} faster, less plain"
    if slower < 1e-9:
        return "equally fast; the simpler configuration is preferred"
    causes = {name: seconds - best.breakdown.get(name, 0.0) for name, seconds in other.breakdown.items()}
    worst = max(causes, key=lambda name: causes[name])
    return f"{slower:.1%} slower, most of it {worst.replace('_', ' ')} (+{causes[worst]:.3g} s)"


def why_unused(partner: str, seconds: float, iteration_time_s: float) -> str:
    """
    Return a text that says why a host is not used.

    Parameters
    ----------
    partner
        Used host that the unused host could replace.
    seconds
        Iteration time of the plan after the replacement.
    iteration_time_s
        Iteration time of the plan.
    """
    loss_s = seconds - iteration_time_s
    if loss_s <= AS_GOOD * iteration_time_s:
        return f"not needed; as good as {partner}"
    return f"in place of {partner} it would cost {loss_s:.3g} s ({percent(loss_s / iteration_time_s)}) per iteration"


class RankRow(msgspec.Struct, frozen=True, kw_only=True):
    """Host and GPU of a rank, and its coordinates in the parallel groups."""

    rank: Count
    host: str
    local_rank: Count
    tp: Count
    cp: Count
    ep: Count
    dp: Count
    pp: Count


def rank_rows(plan: Plan) -> list[RankRow]:
    """
    Return a row for each rank, in rank order.

    In both rank orders of Megatron-Core, expert ranks count tensor parallelism first, then expert parallelism. So the
    ranks of one expert are neighbours, and so are the ranks that together hold all experts of a layer.
    """
    config = plan.config
    expert_size, num_groups = config.expert_tensor_size, config.expert_model_parallel_size
    coordinates = RankGrid.of(config, plan.placement.order).coordinates()
    places = zip(plan.placement.node, plan.placement.local_rank, coordinates, strict=True)
    return [
        RankRow(
            rank=rank,
            host=plan.hosts[node],
            local_rank=int(local_rank),
            tp=int(tp),
            cp=int(cp),
            ep=rank // expert_size % num_groups,
            dp=int(dp),
            pp=int(pp),
        )
        for rank, (node, local_rank, (pp, dp, cp, tp)) in enumerate(places)
    ]

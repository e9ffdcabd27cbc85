"""Finished plan: what runs where, its time, its memory, and its proof."""

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
"""Number of measured runs of a kind of job below which people are told that they are few. Chosen."""

PROVEN_WITHIN = 2e-6
"""Relative tolerance of a proven optimum, for rounding to ticks and doubles."""


OWN_RUNS = "that the stack was calibrated with"
"""Words in a band's source which say that its runs are the user's own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Band:
    """
    Range of the iteration time: share of measured runs like this that took such a time over their prediction.

    Parameters
    ----------
    low_s, high_s
        Ends of the band.
    middle_s
        Expected time, inside the band.
    share
        Share of those runs whose time lies inside.
    source
        Description of the runs, for people.
    runs
        Number of them that are of this kind of job.
    apart
        Ratio of predicted times of two plans of a job from which on three in four such pairs of runs took their times
        in that order; closer plans cannot be told apart. ``None`` where unknown.
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
        """Return whether the runs are those that the user calibrated with."""
        return OWN_RUNS in self.source


@dataclass(frozen=True, slots=True, kw_only=True)
class IterationTime:
    """
    The simulator's answer for one placed configuration.

    It has two times. ``iteration_time_s`` is the simulator's, which solver and proof use; ``expected_s`` is shown to
    people: the middle of measured runs like this.

    Parameters
    ----------
    iteration_time_s
        One training iteration, as simulated; the rates and utilisations below are of this time.
    mfu
        Model FLOPs utilisation: FLOPs of the model, forward and backward, over the peak of the GPUs used, in [0, 1].
        Attention is causal (half of the scores), and recomputation does not count.
    hfu
        Hardware FLOPs utilisation: ``mfu`` with recomputation and all attention scores, as computed by a kernel that
        does not skip the masked ones; ``None`` in plans of older versions. May exceed 1 where kernels skip them.
    breakdown
        Seconds by cause, adding up to ``iteration_time_s``, the mean of all ranks: ``compute``, ``tensor_parallel``,
        ``expert_parallel`` (of models with experts), ``pipeline_parallel``, ``data_parallel``, ``bubble`` (idle:
        warm-up, flush, waiting for slower stages and replicas), ``optimizer``, ``full_memory`` (of stacks whose runs
        lost time there).
    critical_path
        Seconds by cause of the longest chain of work and messages, adding up to ``iteration_time_s``; it never idles.
        Empty in plans of older versions.
    band
        Range of the time; ``None`` until it is computed, and in plans of older versions.
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
        """Expected seconds of an iteration: the middle of the band; the simulated time without one."""
        return self.iteration_time_s if self.band is None else self.band.middle_s

    @property
    def expected_tokens_per_s(self) -> float:
        """Tokens per second at the expected time."""
        return self.tokens_per_s * self.iteration_time_s / self.expected_s

    @property
    def expected_tokens_per_s_per_gpu(self) -> float:
        """Tokens per second of each GPU at the expected time."""
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
        Bound on the peak, exceeded with at most the accepted risk.
    oom_probability
        Probability of running out of memory.
    oom_probability_at_most
        Whether that is the smallest probability that the predictor's data support: the true one may be far less.
    extrapolates
        Whether the prediction lies outside of the predictor's training data.
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
    """Sort key of how full the memory of a stage is: its out-of-memory risk, then the share of its capacity."""
    return stage.oom_probability, stage.upper_bytes / stage.capacity_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Alternative:
    """
    A plan that lost: its configuration, its hosts in rank order, its times, its memory risk and why it lost.

    Parameters
    ----------
    lower_bound_s
        Lower bound on searched plans with the same degrees, micro-batch and kind of recomputation, seconds; ``None`` if
        unknown.
    oom_probability_at_most
        Flag as in :class:`StageMemory`.
    slots
        GPUs of each host in rank order; ``None`` for 0, 1, ...
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
        """Return whether no plan with its degrees, micro-batch and recomputation is faster, up to rounding."""
        known = self.lower_bound_s is not None and self.iteration_time_s is not None
        return known and self.lower_bound_s >= (1 - PROVEN_WITHIN) * self.iteration_time_s  # type: ignore[operator]


@dataclass(frozen=True, slots=True, kw_only=True)
class RiskChoice:
    """
    Fastest plan found with at most a given risk of running out of memory.

    Parameters
    ----------
    max_oom_risk
        Largest risk of the fullest stage.
    upper_bytes, capacity_bytes
        Bound on the memory of the fullest stage, exceeded with at most the accepted risk; its capacity.
    """

    max_oom_risk: float
    plan: Alternative
    upper_bytes: int
    capacity_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Imbalance:
    """
    Figures of the plan where the busiest rank of experts has more tokens than the mean.

    Parameters
    ----------
    expert_imbalance
        Tokens of the busiest rank over the mean.
    oom_probability
        Risk of the fullest stage.
    """

    expert_imbalance: Positive
    iteration_time_s: Positive
    oom_probability: Share


@dataclass(frozen=True, slots=True, kw_only=True)
class Baseline:
    """Choice of another method on the same instance, simulated by the same estimator."""

    name: str
    config: ParallelConfig
    iteration_time_s: float
    objective_s: float
    wall_time_s: float


SizeStatus = Literal["searched", "infeasible", "slower", "not searched"]
"""Statuses of a number of GPUs, see :class:`SizeProof`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SizeProof:
    """
    Proof about one number of GPUs, where the objective is not the time alone.

    Parameters
    ----------
    num_gpus
        Number of GPUs, on whole hosts.
    dearest
        Price cap: largest price of a GPU-hour among the hosts; ``None`` where prices do not count.
    status
        ``searched``: a plan was found. ``infeasible``: nothing fits. ``slower``: no plan is as good as one of another
        number. ``not searched``: time was over.
    iteration_time_s
        Time of the fastest plan found; ``None`` without one.
    lower_bound_s
        Lower bound on plans with this many GPUs, seconds; ``None`` where nothing fits.
    value, bound
        Objective values of these two; ``None`` where they are.
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
    Objective of the plan, where it is not the time alone, and the proof about it.

    Parameters
    ----------
    objective
        :class:`~pipette_opt.specs.objective.Objective`, by its word.
    unit
        Unit of value and bound.
    value
        Objective of the plan.
    bound
        Bound on the objective of plans with the searched numbers of GPUs.
    gap
        Largest possible improvement of the best plan found, as share of its value, in [0, 1].
    sizes
        Proof for each number of GPUs.
    best_value
        Objective of the best plan found, where a plainer one is the plan; ``None``: the plan is the best.
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
        """Gap that value and bound give."""
        best = self.value if self.best_value is None else self.best_value
        return 1 - (best / self.bound if self.objective.is_rate else self.bound / best)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Plan:
    """
    All data for a launch and for readers.

    Parameters
    ----------
    hosts
        Host names of the cluster; ``placement.node`` indexes them.
    unused_hosts
        Hosts without a rank, each with the reason where one is known.
    inputs
        Inputs of the search by name: ``{"path": ..., "sha256": ...}`` for files, plain values for options.
    notes
        Sentences for the reader: assumptions, extrapolation, missing links.
    not_modelled
        Options of the job's own arguments that its times and sizes leave out.
    target
        Objective of the plan; ``None``: its time.
    fastest
        The fastest plan found, where a plainer one is this plan.
    risks
        The fastest plans found at the accepted risk of running out of memory and at smaller ones.
    imbalance
        Figures with uneven experts; ``None`` without experts, or if they are already counted as uneven.
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
        """One sentence: does it fit, how far is it from the best, how uncertain is its time."""
        from pipette_opt.plans.verdict import plan_verdict

        return plan_verdict(self)

    def stage_table(self) -> "DataFrame":
        """Return layers and memory of each stage, see :func:`~pipette_opt.plans.frames.stage_frame`."""
        from pipette_opt.plans.frames import stage_frame

        return stage_frame(self)

    def time_table(self) -> "DataFrame":
        """Return seconds by cause, see :func:`~pipette_opt.plans.frames.time_frame`."""
        from pipette_opt.plans.frames import time_frame

        return time_frame(self)

    def alternative_table(self) -> "DataFrame":
        """Return the plan and the next best, see :func:`~pipette_opt.plans.frames.alternative_frame`."""
        from pipette_opt.plans.frames import alternative_frame

        return alternative_frame(self)

    def rank_table(self) -> "DataFrame":
        """Return host, GPU and coordinates of each rank, see :func:`~pipette_opt.plans.frames.rank_frame`."""
        from pipette_opt.plans.frames import rank_frame

        return rank_frame(self)

    def proof_table(self) -> "DataFrame":
        """
        Return the number of configurations ruled out by each name, see
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
"""Relative difference below which times are equal, as ticks are not much finer."""


def why_slower(best: IterationTime, other: IterationTime) -> str:
    """Explain why a plan lost to the shown plan: by how much, and the cause that grew most."""
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
    Explain why a host is left out.

    Parameters
    ----------
    partner
        Used host whose place it could take.
    seconds
        Iteration time of the plan with that swap.
    """
    loss_s = seconds - iteration_time_s
    if loss_s <= AS_GOOD * iteration_time_s:
        return f"not needed; as good as {partner}"
    return f"in place of {partner} it would cost {loss_s:.3g} s ({percent(loss_s / iteration_time_s)}) per iteration"


class RankRow(msgspec.Struct, frozen=True, kw_only=True):
    """One rank: where it runs, and its coordinates in the parallel groups."""

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
    Return the rank map, in rank order.
    The ranks of one expert are neighbours, and so are those of the experts that hold a layer's together: in both
    orders, megatron-core's expert ranks begin with tensor, then expert parallelism.
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

"""A finished plan: what to run where, how long it takes, whether it fits, and what is proven."""

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
"""Measured runs of a kind of job below which people are told that they are few; chosen."""

PROVEN_WITHIN = 2e-6
"""Relative; what rounding to ticks and doubles may cost a bound that is otherwise the optimum."""


OWN_RUNS = "that the stack was calibrated with"
"""Words by which the source of a band says that its runs are the user's own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Band:
    """
    How long the iteration may take: what a share of measured runs like this took, had each been predicted so.

    Parameters
    ----------
    low_s, high_s
        Ends of the band.
    middle_s
        The expected time, inside.
    share
        Share of those runs whose time lies inside.
    source
        Which runs, for people.
    runs
        How many of them are of this kind of job.
    apart
        Predicted time of a plan over that of another of the same job from which on three in four such pairs of runs
        took their times in that order; nearer plans cannot be told apart. ``None`` where nobody knows.
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
        """Whether the runs are those that the user calibrated with."""
        return OWN_RUNS in self.source


@dataclass(frozen=True, slots=True, kw_only=True)
class IterationTime:
    """
    The simulator's answer for one placed configuration.

    There are two clocks. ``iteration_time_s`` is the simulator's, on which solver and proof work; ``expected_s`` is
    what people are shown: the middle of what runs like this took.

    Parameters
    ----------
    iteration_time_s
        One training iteration, as simulated; the rates and utilisations beside it are of this time.
    mfu
        Model FLOPs utilisation: FLOPs of the model, forward and backward, over the peak of the GPUs used, in [0, 1].
        Attention is causal (half of the scores), and recomputation does not count.
    hfu
        The same with recomputation, and with all attention scores, as a kernel that does not skip the masked ones
        computes; ``None`` in plans of older versions. Where kernels do skip them it may exceed 1.
    breakdown
        Seconds by cause, adding up to ``iteration_time_s``, the mean of all ranks: ``compute``, ``tensor_parallel``,
        ``expert_parallel`` (of models with experts), ``pipeline_parallel``, ``data_parallel``, ``bubble`` (idle:
        warm-up, flush, waiting for slower stages and replicas), ``optimizer``, ``full_memory`` (of stacks whose runs
        lost time there).
    critical_path
        Seconds by cause of the longest chain of work and messages, adding up to ``iteration_time_s``; it never idles.
        Empty in plans of older versions.
    band
        ``None`` before anyone asked, and in plans of older versions.
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
        Exceeded with at most the accepted risk.
    oom_probability
        Of running out of memory.
    oom_probability_at_most
        Whether that is the smallest probability that the predictor's data can vouch for: the true one may be far less.
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
    """How full the memory of a stage is: its risk of running out, then the share of its capacity."""
    return stage.oom_probability, stage.upper_bytes / stage.capacity_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Alternative:
    """
    A plan that lost: its configuration, its hosts in rank order, its times, its memory risk and why it lost.

    Parameters
    ----------
    lower_bound_s
        No searched plan with the same degrees, micro-batch and kind of recomputation is faster; ``None`` where nobody
        says.
    oom_probability_at_most
        As in :class:`StageMemory`.
    slots
        Of each host its GPUs in rank order; ``None`` for 0, 1, ...
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
        """Whether nothing of its degrees, micro-batch and recomputation is faster, up to rounding."""
        known = self.lower_bound_s is not None and self.iteration_time_s is not None
        return known and self.lower_bound_s >= (1 - PROVEN_WITHIN) * self.iteration_time_s  # type: ignore[operator]


@dataclass(frozen=True, slots=True, kw_only=True)
class RiskChoice:
    """
    The fastest plan found whose risk of running out of memory is at most this.

    Parameters
    ----------
    max_oom_risk
        Risk of the fullest stage, at most.
    upper_bytes, capacity_bytes
        Memory of the fullest stage: exceeded with at most the accepted risk; what there is.
    """

    max_oom_risk: float
    plan: Alternative
    upper_bytes: int
    capacity_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Imbalance:
    """
    The plan where the busiest rank of experts has more tokens than the mean.

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
    """What another method would have chosen on the same instance, simulated by the same estimator."""

    name: str
    config: ParallelConfig
    iteration_time_s: float
    objective_s: float
    wall_time_s: float


SizeStatus = Literal["searched", "infeasible", "slower", "not searched"]
"""What can be said of a number of GPUs, see :class:`SizeProof`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SizeProof:
    """
    What is proven of one number of GPUs, where the objective is not the time alone.

    Parameters
    ----------
    num_gpus
        How many, on whole hosts.
    dearest
        Largest price of a GPU-hour among the hosts; ``None`` where prices do not count.
    status
        ``searched``: a plan was found. ``infeasible``: nothing fits. ``slower``: no plan is as good as one of another
        number. ``not searched``: time was over.
    iteration_time_s
        Of the fastest plan found; ``None`` without one.
    lower_bound_s
        No plan of so many GPUs is faster; ``None`` where nothing fits.
    value, bound
        What that gives by the objective; ``None`` as these.
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
    What the plan is best at, where that is not the time alone, and what is proven of it.

    Parameters
    ----------
    objective
        :class:`~pipette_opt.specs.objective.Objective`, by its word.
    unit
        Of value and bound.
    value
        Of the plan.
    bound
        No plan of the searched numbers of GPUs is better.
    gap
        How much better the best plan found could be at most, as share of its value, in [0, 1].
    sizes
        Number by number.
    best_value
        Of the best plan found, where a plainer one is the plan; ``None``: the plan is the best.
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
    Everything a launch needs and a reader wants to know.

    Parameters
    ----------
    hosts
        Host names of the cluster; ``placement.node`` indexes them.
    unused_hosts
        Hosts without a rank, each with the reason where one is known.
    inputs
        What was solved, by name: ``{"path": ..., "sha256": ...}`` for files, plain values for options.
    notes
        What the reader should know: assumptions, extrapolation, missing links.
    not_modelled
        Options of the job's own arguments that its times and sizes leave out.
    target
        What it is best at; ``None``: at its time.
    fastest
        The fastest plan found, where a plainer one is this plan.
    risks
        The fastest plans found at the accepted risk of running out of memory and at smaller ones.
    imbalance
        What uneven experts would make of the plan; ``None`` where it has none, or they are counted as uneven already.
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
        """One sentence: does it fit, how far from the best is it, how far off may its time be."""
        from pipette_opt.plans.verdict import plan_verdict

        return plan_verdict(self)

    def stage_table(self) -> "DataFrame":
        """Layers and memory of each stage, see :func:`~pipette_opt.plans.frames.stage_frame`."""
        from pipette_opt.plans.frames import stage_frame

        return stage_frame(self)

    def time_table(self) -> "DataFrame":
        """Seconds by cause, see :func:`~pipette_opt.plans.frames.time_frame`."""
        from pipette_opt.plans.frames import time_frame

        return time_frame(self)

    def alternative_table(self) -> "DataFrame":
        """The plan and the next best, see :func:`~pipette_opt.plans.frames.alternative_frame`."""
        from pipette_opt.plans.frames import alternative_frame

        return alternative_frame(self)

    def rank_table(self) -> "DataFrame":
        """Host, GPU and coordinates of each rank, see :func:`~pipette_opt.plans.frames.rank_frame`."""
        from pipette_opt.plans.frames import rank_frame

        return rank_frame(self)

    def proof_table(self) -> "DataFrame":
        """Who ruled out how many configurations, see :func:`~pipette_opt.plans.frames.proof_frame`."""
        from pipette_opt.plans.frames import proof_frame

        return proof_frame(self)

    def __repr__(self) -> str:
        from pipette_opt.plans.summary import plan_summary

        return plan_summary(self)

    def _repr_html_(self) -> str:
        from pipette_opt.plans.frames import html_of

        return html_of(self, self.verdict)


AS_GOOD = 1e-6
"""Relative; times as close as this are equal, as ticks are not much finer."""


def why_slower(best: IterationTime, other: IterationTime) -> str:
    """Why a plan lost to the plan that is shown: by how much, and the cause that grew most."""
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
    Why a host is left out.

    Parameters
    ----------
    partner
        The used host whose place it could take.
    seconds
        Iteration time of the plan with that exchange.
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
    The rank map, in rank order.

    The ranks of one expert are neighbours, and so are those of the experts that hold a layer's together: in both
    orders megatron-core's expert ranks begin with tensor, then expert parallelism.
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

"""Finished plan: configuration, placement, iteration time, memory, and proof."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from html import escape
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from pipette_opt.base.typed import Count, Positive, Share, Size
from pipette_opt.base.types import Launcher, P2PMode
from pipette_opt.base.units import SAME, above_best, at_most_percent, counted, percent, three_digits, words
from pipette_opt.parallel import ParallelConfig, Placement, RankGrid
from pipette_opt.plans.certificate import Certificate as Certificate
from pipette_opt.plans.certificate import JointModel as JointModel
from pipette_opt.plans.certificate import Proof as Proof
from pipette_opt.plans.certificate import RuledOut as RuledOut
from pipette_opt.plans.predicted import AS_GOOD as AS_GOOD
from pipette_opt.plans.predicted import FEW_RUNS as FEW_RUNS
from pipette_opt.plans.predicted import MEASURED_RUNS as MEASURED_RUNS
from pipette_opt.plans.predicted import OWN_RUNS as OWN_RUNS
from pipette_opt.plans.predicted import Band as Band
from pipette_opt.plans.predicted import IterationTime as IterationTime
from pipette_opt.plans.predicted import StageMemory as StageMemory
from pipette_opt.plans.predicted import fullness as fullness
from pipette_opt.plans.summary import launch_lines, lines_at_most
from pipette_opt.plans.verdict import links_measured, verdict
from pipette_opt.specs import NotModelled
from pipette_opt.specs.host_names import compress_hosts
from pipette_opt.specs.objective import Objective

if TYPE_CHECKING:
    from pandas import DataFrame

SCHEMA_VERSION = 2

PROVEN_WITHIN = 2e-6
"""Relative tolerance of a proven optimum, for rounding to solver ticks (integer time units) and of doubles. Chosen."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Alternative:
    """
    Plan that was not chosen: its configuration, hosts in rank order, time, memory risk, and the reason.

    Parameters
    ----------
    lower_bound_s
        Lower bound on the time of searched plans with the same degrees, micro-batch and kind of recomputation, seconds;
        ``None`` if unknown.
    slots
        GPU numbers of each host in rank order; ``None`` for 0, 1, ...
    breakdown
        Seconds by cause, as in :class:`IterationTime`.
    """

    config: ParallelConfig
    hosts: tuple[str, ...]
    iteration_time_s: float | None
    oom_probability: float | None
    reason: str
    slots: tuple[tuple[int, ...], ...] | None = None
    breakdown: Mapping[str, float] = field(default_factory=dict)
    lower_bound_s: float | None = None

    @property
    def is_proven(self) -> bool:
        """Return whether no plan with the same degrees, micro-batch and recomputation is faster, up to rounding."""
        known = self.lower_bound_s is not None and self.iteration_time_s is not None
        return known and self.lower_bound_s >= (1 - PROVEN_WITHIN) * self.iteration_time_s  # type: ignore[operator]


Role = Literal["next best", "fastest", "listed", "overlapped", "usual", "less risk"]
"""Role of another plan that is recorded; each stands for a field of :class:`Plan`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RiskChoice:
    """
    Fastest plan found with at most a given risk of running out of memory.

    Parameters
    ----------
    max_oom_risk
        Limit on the risk that the fullest stage runs out of memory.
    """

    max_oom_risk: float
    plan: Alternative


@dataclass(frozen=True, slots=True, kw_only=True)
class Usual:
    """
    Data parallelism alone on all GPUs, as most run it: tensor, pipeline and context size 1.

    Parameters
    ----------
    plan
        Fastest such plan, with optimizer states (ZeRO 1) or everything (ZeRO 3) sharded; ``None`` if none can run.
    problem
        Reason why none can run; else empty.
    """

    plan: Alternative | None
    problem: str = ""


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

    def expected_of(self, value: float, estimate: IterationTime) -> float:
        """Return a value of the objective at the expected time; ``value`` is at the simulated time."""
        return value / estimate.factor if Objective(self.objective).is_rate else estimate.expected_of(value)

    @property
    def distance(self) -> str:
        """Distance from the best of the searched space, in words: below it for rates, else above it."""
        if Objective(self.objective).is_rate and SAME <= self.gap < 1:
            return f"at most {at_most_percent(self.gap)} below the best of the searched space"
        return above_best(self.gap)


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
    listed
        The configuration with its hosts as listed, if the plan has them in another order.
    overlapped
        The plan with overlap of gradient reduction with compute, if it has none and may have it.
    usual
        Data parallelism alone; ``None`` if the plan itself is that.
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
    inputs: Mapping[str, Any] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    not_modelled: tuple[NotModelled, ...] = ()
    target: Target | None = None
    fastest: Alternative | None = None
    listed: Alternative | None = None
    overlapped: Alternative | None = None
    usual: Usual | None = None
    risks: tuple[RiskChoice, ...] = ()
    imbalance: Imbalance | None = None
    nccl_algorithm: str = "ring"
    seed: int = 0
    created: str = ""
    versions: Mapping[str, str] = field(default_factory=dict)

    @property
    def verdict(self) -> str:
        """Verdict in one sentence: whether the plan fits, how far it is from the best, and its time."""
        accepted = self.inputs.get("max_oom_risk")
        risk = accepted if isinstance(accepted, int | float) and not isinstance(accepted, bool) else None
        return verdict(
            self.memory,
            self.estimate,
            max_oom_risk=risk,
            certificate=self.certificate,
            links_measured=links_measured(self.inputs, len(self.hosts)),
            not_modelled=self.not_modelled,
        )

    def others(self) -> list[tuple[Role, Alternative]]:
        """Return all other plans that are recorded, each with its role, in the order of ``plan.json``."""
        usual = None if self.usual is None else self.usual.plan
        single: tuple[tuple[Role, Alternative | None], ...] = (
            ("fastest", self.fastest),
            ("listed", self.listed),
            ("overlapped", self.overlapped),
            ("usual", usual),
        )
        found: list[tuple[Role, Alternative]] = [("next best", other) for other in self.alternatives]
        found += [(role, other) for role, other in single if other is not None]
        return found + [("less risk", choice.plan) for choice in self.risks]

    def stage_table(self) -> "DataFrame":
        """
        Return a table with a row for each pipeline stage, by stage number.

        Columns: ``layers``; peak memory of one GPU in GiB: ``predicted_gib``, ``at_most_gib`` and ``capacity_gib``;
        ``oom_probability``, in [0, 1]; ``extrapolates``; GiB of each memory component such as ``weights_gib``, where
        the plan has components.
        """
        from pipette_opt.plans.tables import components, stages

        stage_memory = stages(self.memory, self.config.layers_per_stage).as_frame().set_index("stage")
        return stage_memory.join(components(self.memory).as_frame().set_index("stage"))

    def time_table(self) -> "DataFrame":
        """
        Return a table with a row for each cause of time, by the name of the cause.

        Columns, in simulated seconds: ``this plan`` (mean of all ranks), ``critical path``, and each alternative by the
        label of its configuration. Each column adds up to ``iteration_time_s`` of that plan.
        """
        from pipette_opt.plans.tables import times

        return times(self.estimate, self.alternatives).as_frame().set_index("cause").fillna(0.0)

    def alternative_table(self) -> "DataFrame":
        """
        Return a table with the plan, its alternatives, and data parallelism alone, by the label of the configuration.

        Columns: ``iteration_time_s``, simulated; ``share``, the time over the plan's time; ``oom_probability`` of the
        fullest stage; ``lower_bound_s`` on plans like it; ``hosts``, their number; ``reason`` why it lost. NaN where
        nothing was simulated.
        """
        from pipette_opt.plans.tables import alternatives

        frame = alternatives(self).as_frame().set_index("configuration")
        frame.insert(1, "share", frame["iteration_time_s"] / self.estimate.iteration_time_s)
        return frame

    def rank_table(self) -> "DataFrame":
        """
        Return a table with a row for each rank, by rank number.

        Columns: ``host``, ``local_rank`` (number of the GPU on the host), and the coordinates of the rank in the groups
        ``tp``, ``cp``, ``ep``, ``dp`` and ``pp``.
        """
        from pandas import DataFrame

        return DataFrame(msgspec.to_builtins(rank_rows(self))).set_index("rank")

    def proof_table(self) -> "DataFrame":
        """
        Return a table with a row for each rule, bound or engine that ruled out configurations.

        Columns: ``by``, the step of the search; ``name`` of the rule, bound or engine; ``configurations``, their
        number; ``bound_s``, lower bound on the time of all plans that the step ruled out, or NaN; ``example``, a
        configuration that was ruled out.
        """
        from pipette_opt.plans.tables import ruled_out

        return ruled_out(self.certificate, self.estimate).as_frame()

    def __repr__(self) -> str:
        proof = self.certificate
        distance = above_best(proof.gap) if self.target is None else self.target.distance
        lines = launch_lines(self.estimate, self.memory, [self.hosts[node] for node in self.placement.nodes_used])
        lines.insert(2, f"proof: {distance} ({proof.status})")
        if self.unused_hosts:
            lines.append(f"unused: {compress_hosts(tuple(self.unused_hosts))}")
        if self.alternatives:
            lines.append(f"next best: {', '.join(other.config.label() for other in self.alternatives[:2])}")
        return lines_at_most(f"Plan {self.config.label()} on {counted(self.config.world_size, 'GPU')}", lines)

    def _repr_html_(self) -> str:
        """Return the plan as HTML for a notebook: verdict, configuration, time, and memory of each stage."""
        used, estimate, proof = len(self.placement.nodes_used), self.estimate, self.certificate
        columns = ["layers", "predicted_gib", "at_most_gib", "capacity_gib", "oom_probability"]
        stages = self.stage_table().reindex(columns=columns)
        rate = three_digits(estimate.expected_tokens_per_s)
        facts = f"{rate} tokens/s, MFU {percent(estimate.expected_mfu)}, {above_best(proof.gap)} ({proof.status})"
        where = f"{counted(used, 'host')}, {counted(self.config.world_size, 'GPU')}"
        return (
            f"<p><strong>{escape(self.verdict)}</strong></p>"
            f"<p><code>{escape(self.config.label())}</code> on {where}</p><p>{escape(facts)}</p>"
            f"{stages.to_html(float_format='{:.4g}'.format, border=0, max_rows=16)}"
        )


def why_slower(best: IterationTime, other: IterationTime) -> str:
    """Return why a plan was not chosen: how much slower it is, and the cause that grew most, as shares of ``best``."""
    slower = other.iteration_time_s / best.iteration_time_s - 1
    if slower < -AS_GOOD:
        return f"{percent(-slower)} faster, less plain"
    if slower < 1e-9:
        return "equally fast; the simpler configuration is preferred"
    causes = {name: seconds - best.breakdown.get(name, 0.0) for name, seconds in other.breakdown.items()}
    worst = max(causes, key=lambda name: causes[name])
    share = percent(causes[worst] / best.iteration_time_s, "+")
    return f"{percent(slower)} slower, most of it {words(worst)} ({share})"


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
    return f"in place of {partner} an iteration would take {percent(loss_s / iteration_time_s)} more"


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

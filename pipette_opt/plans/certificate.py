"""Certificate of a plan: what is proven, and which step ruled out which configurations."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from pipette_opt.base.typed import Count, NotNegative, Positive, Share, Size
from pipette_opt.plans.chosen import Choice

Status = Literal["OPTIMAL", "FEASIBLE"]
"""Status of a certificate: proven, or with a gap."""

JointStatus = Literal["INFEASIBLE", "FEASIBLE"]
"""Result of the joint model: no other split of the layers can be as fast as the plan, or one might."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RuledOut:
    """
    Configurations ruled out by the same rule, bound or engine.

    Parameters
    ----------
    name
        Name of a legality rule, of a bound, or of the solver's engine that last raised the bound.
    configurations
        Number of configurations.
    example
        Label of such a configuration, or a legality rule's message about it.
    """

    name: str
    configurations: Size
    example: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Proof:
    """
    One step of the search that rules out configurations.

    Parameters
    ----------
    by
        Name of the step.
    configurations
        Number of configurations that it rules out.
    bound_s
        Lower bound on their plans, seconds; ``None`` where none of their plans can run, or others are equal with less
        recomputation.
    named
        Configurations by the name of the rule, bound or engine, most frequent first; empty in plans of older versions.
    """

    by: str
    configurations: Count
    bound_s: NotNegative | None
    named: tuple[RuledOut, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class JointModel:
    """
    CP-SAT model that chose degrees, layers of each stage and GPU kinds together, in parts of families.

    Parameters
    ----------
    families
        Configurations with tilings that it chose among, each with every layer partition.
    variables, constraints
        Size of the largest part.
    solves, seconds
        Number of solves, and their total time.
    splits
        Number of layer partitions that it handed on, to be searched beside the usual ones.
    status
        ``INFEASIBLE``: no other partition can be as fast as the plan it compared with; ``FEASIBLE``: one might.
    bound_s
        Lower bound on plans with any other partition, seconds.
    """

    families: Count
    variables: Count
    constraints: Count
    solves: Count
    seconds: NotNegative
    splits: Count
    status: JointStatus
    bound_s: NotNegative


@dataclass(frozen=True, slots=True, kw_only=True)
class Certificate:
    """
    Proof about the plan.

    Parameters
    ----------
    status
        ``OPTIMAL``: no plan of the searched space is faster than the fastest found by the simulator, up to rounding to
        ticks. ``FEASIBLE``: the gap stays open.
    objective_s
        Simulated iteration time of the plan, seconds.
    lower_bound_s
        Lower bound on the simulated time of every plan of the searched space, seconds.
    gap
        Gap of the search: ``(fastest_s - lower_bound_s) / fastest_s``; without ``fastest_s`` that of ``objective_s``.
    placement_dependent_s
        The objective minus the same configuration's objective with all transfers between hosts free.
    placement_gap
        ``(objective_s - lower_bound_s) / placement_dependent_s``; zero if nothing depends on the placement.
    judge_lower_bound_s
        Older name of ``lower_bound_s``.
    scope
        One sentence: what the bound covers, and what it does not.
    searched
        Values of each dimension that were searched.
    not_searched
        Choices that the bound does not cover, each a short text.
    proof
        Number of configurations ruled out by each step.
    joint_model
        Result of the joint model; ``None`` where the layers of the stages were not free.
    fastest_s
        Iteration time of the fastest plan found, where a plainer one is the plan; ``None``: the plan is the fastest.
    chosen_by
        Objective, where it is not the time: then the bounds above are of the configurations within the last limits.
    """

    status: Status
    objective_s: Positive
    lower_bound_s: NotNegative
    gap: Share
    placement_dependent_s: float
    placement_gap: NotNegative
    judge_lower_bound_s: NotNegative
    scope: str
    wall_time_s: NotNegative
    num_candidates: Count
    num_pruned: Count
    searched: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)
    not_searched: tuple[str, ...] = ()
    proof: tuple[Proof, ...] = ()
    joint_model: JointModel | None = None
    chosen_by: Choice | None = None
    fastest_s: Positive | None = None

    @property
    def best_s(self) -> float:
        """Iteration time of the fastest plan found."""
        return self.objective_s if self.fastest_s is None else self.fastest_s

    @property
    def shown_gap(self) -> float:
        """Share of the plan's own time that no plan can save: ``(objective_s - lower_bound_s) / objective_s``."""
        return (self.objective_s - self.lower_bound_s) / self.objective_s

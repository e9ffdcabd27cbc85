"""What is proven about a plan, and who ruled out what."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from pipette_opt.base.typed import Count, Positive, Size
from pipette_opt.plans.chosen import Choice

Status = Literal["OPTIMAL", "FEASIBLE"]
"""Status of a certificate: proven, or with a gap."""

JointStatus = Literal["INFEASIBLE", "FEASIBLE"]
"""Result of the joint model: no other split of the layers can be as fast as the plan, or one might."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RuledOut:
    """
    Configurations that the same rule, bound or engine rules out.

    Parameters
    ----------
    name
        Of a legality rule, of a bound, or of the engine of the solver that raised the bound to where it ended.
    configurations
        How many.
    example
        One of them, or for a legality rule what it says of one of them.
    """

    name: str
    configurations: Size
    example: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Proof:
    """
    One reason why configurations cannot win.

    Parameters
    ----------
    by
        The reason: a step of the search.
    configurations
        How many it rules out.
    bound_s
        No plan of these is faster; ``None`` where no plan of these can run, or others are the same with less
        recomputation.
    named
        The same configurations by the name of the rule, bound or engine, most first; none in plans of older versions.
    """

    by: str
    configurations: Count
    bound_s: float | None
    named: tuple[RuledOut, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class JointModel:
    """
    The CP-SAT model that chose degrees, layers of each stage and kinds of GPU together, in parts of families.

    Parameters
    ----------
    families
        Configurations and packings that it chose among, each with every split of the layers.
    variables, constraints
        Of the largest part.
    solves, seconds
        How often it was solved, and in what time.
    splits
        Splits of the layers that it handed on, to be searched beside the usual ones.
    status
        ``INFEASIBLE``: no other split can be as fast as the plan it compared with; ``FEASIBLE``: one might.
    bound_s
        No plan with any other split is faster.
    """

    families: Count
    variables: Count
    constraints: Count
    solves: Count
    seconds: float
    splits: Count
    status: JointStatus
    bound_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Certificate:
    """
    What is proven about the plan.

    Parameters
    ----------
    status
        ``OPTIMAL``: no plan of the searched space is faster than the fastest found by the simulator, up to rounding to
        ticks. ``FEASIBLE``: the gap stays open.
    objective_s
        The simulator's iteration time of the plan.
    lower_bound_s
        No plan of the searched space is faster by the simulator.
    gap
        Gap of the search: ``(fastest_s - lower_bound_s) / fastest_s``; without ``fastest_s`` that of ``objective_s``.
    placement_dependent_s
        The objective minus the same configuration's objective with all transfers between hosts free.
    placement_gap
        ``(objective_s - lower_bound_s) / placement_dependent_s``; zero if nothing depends on the placement.
    judge_lower_bound_s
        The same as ``lower_bound_s``, under its older name.
    scope
        One sentence: what the bound covers, and what it does not.
    searched
        Values of each dimension that were searched.
    not_searched
        What the bound says nothing about, each a short text.
    proof
        What ruled out how many configurations.
    joint_model
        What the joint model said; ``None`` where the layers of the stages were not free.
    fastest_s
        Iteration time of the fastest plan found, where a plainer one is the plan; ``None``: the plan is the fastest.
    chosen_by
        The objective, where it is not the time: then the bounds above are of the configurations within the last limits.
    """

    status: Status
    objective_s: Positive
    lower_bound_s: float
    gap: float
    placement_dependent_s: float
    placement_gap: float
    judge_lower_bound_s: float
    scope: str
    wall_time_s: float
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

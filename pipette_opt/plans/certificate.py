"""Certificate of a plan: what is proven, and which step ruled out which configurations."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from pipette_opt.base.typed import Count, NotNegative, Positive, Share, Size

Status = Literal["OPTIMAL", "FEASIBLE"]
"""Status of a certificate: the plan is proven optimal, or a gap remains."""

JointStatus = Literal["INFEASIBLE", "FEASIBLE"]
"""Result of the CP-SAT model over all splits of the layers: no other can be as fast as the plan, or one may."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RuledOut:
    """
    Configurations ruled out by one rule, one bound or one solver engine.

    Parameters
    ----------
    name
        Name of a legality rule, of a bound, or of the solver engine that last raised the bound.
    configurations
        Number of configurations.
    example
        Label of one of these configurations, or the message of the legality rule about it.
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
        Number of configurations that the step rules out.
    bound_s
        Lower bound on the time of plans with these configurations, seconds. ``None`` if the configurations cannot run,
        or if a configuration with less recomputation is never slower.
    named
        Configurations by the rule, bound or engine that ruled them out, most frequent first.
    """

    by: str
    configurations: Count
    bound_s: NotNegative | None
    named: tuple[RuledOut, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class JointModel:
    """
    Size and result of the joint model: the CP-SAT model that chooses degrees, layers of stages and GPU types together.

    Parameters
    ----------
    families
        Number of families: sets of configurations that differ only in layers per stage, recomputed layers and GPU
        types.
    variables, constraints
        Size of the largest part of the model; each part holds some of the families.
    solves, seconds
        Number of solves, and their total time in seconds.
    splits
        Number of layer splits passed on to the placement search, in addition to the usual splits.
    status
        ``INFEASIBLE``: no other split can be as fast as the plan it was compared with; ``FEASIBLE``: one may be.
    bound_s
        Lower bound on the time of plans with any other split of the layers, seconds.
    """

    families: Count
    variables: Count
    constraints: Count
    solves: Count
    seconds: NotNegative
    splits: Count
    status: JointStatus
    bound_s: NotNegative


REGRET_QUANTILE = 0.9
"""Share of the worlds for which the larger figure of a regret holds. Chosen."""


WORTH_MEASURING = 0.1
"""Least share by which a measurement must lower the regret to be proposed. Chosen."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Experiment:
    """
    Measurement that would lower the regret most.

    Parameters
    ----------
    command
        Command of this program that measures constants; empty for a run of the job.
    run
        Configurations of which one is to be run for some iterations; empty for a command.
    gpu_minutes
        Cost.
    regret
        Expected mean regret of the plan that is chosen afterwards, if bounds were times.
    """

    command: str = ""
    run: str = ""
    gpu_minutes: Positive
    regret: NotNegative


@dataclass(frozen=True, slots=True, kw_only=True)
class Regret:
    """
    Slowdown of a plan against the best configuration possible, over worlds that fit the measured runs.

    Parameters
    ----------
    mean
        Mean over the worlds of time over lower bound, minus 1.
    high
        Quantile ``quantile`` of the same ratio, minus 1.
    over_found_mean, over_found_high
        Mean and quantile over the best plan recorded, in each world, instead of its lower bound. The difference comes
        from bounds that are not tight.
    worlds
        Number of worlds.
    measured_runs
        Number of measured runs that the worlds fit.
    groups
        Number of groups of configurations with equal degrees, chunks, micro-batch and recomputation.
    lower_bounds_s
        Lower bound on the time of every listed configuration in each world, seconds: by compute alone, by simulation
        over the fastest links, and by the search.
    left_out_s
        Configurations with so much compute that they are not looked at take at least this by prediction, seconds;
        ``None`` if all are looked at.
    unmeasured_high
        ``high`` without any measured run; ``None`` if there was none.
    experiment
        Measurement that would lower the mean most; ``None`` if none would by ``WORTH_MEASURING``.
    """

    mean: NotNegative
    high: NotNegative
    quantile: Share
    over_found_mean: NotNegative
    over_found_high: NotNegative
    worlds: Size
    measured_runs: Count
    groups: Size
    lower_bounds_s: tuple[Positive, ...]
    left_out_s: Positive | None = None
    unmeasured_high: NotNegative | None = None
    experiment: Experiment | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Robust:
    """
    Upper end of the band of a plan's time, and a lower bound on that of every plan.

    The upper end is the predicted time times a factor, which all configurations with equal degrees, chunks, micro-batch
    and recomputation have in common.

    Parameters
    ----------
    value_s
        Upper end of the plan, seconds.
    best_s
        Least upper end of the plan and the other recorded plans, seconds; less than ``value_s`` if a plainer plan was
        preferred.
    lower_bound_s
        Lower bound on the upper end of every listed configuration, seconds.
    gap
        ``(best_s - lower_bound_s) / best_s``, in [0, 1].
    factor
        Upper end of the plan over its predicted time.
    share
        Share of such jobs whose measured time lies inside the band; half of the others are above the upper end.
    measured_runs
        Number of measured runs that the factors fit.
    groups
        Number of groups of configurations with a factor.
    left_out_s
        Configurations with so much compute that they are not looked at take at least this by prediction, seconds;
        ``None`` if all are looked at.
    """

    value_s: Positive
    best_s: Positive
    lower_bound_s: Positive
    gap: Share
    factor: Positive
    share: Share
    measured_runs: Count
    groups: Size
    left_out_s: Positive | None = None

    @property
    def shown_gap(self) -> float:
        """Largest share of the upper end that another plan could save: ``(value_s - lower_bound_s) / value_s``."""
        return (self.value_s - self.lower_bound_s) / self.value_s


SAME_BOUND = 1e-6
"""Relative difference below which two lower bounds are one. Chosen: above the rounding of bounds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Certificate:
    """
    Proof of how far a plan is from the best plan of the searched space.

    Parameters
    ----------
    status
        ``OPTIMAL``: no plan of the searched space is faster than the fastest found by the simulator, up to rounding to
        solver ticks (integer time units). ``FEASIBLE``: a gap remains.
    objective_s
        Simulated iteration time of the plan, seconds.
    lower_bound_s
        Lower bound on the simulated time of every plan of the searched space, seconds.
    gap
        ``(fastest_s - lower_bound_s) / fastest_s``, in [0, 1]; with ``objective_s`` in place of a missing
        ``fastest_s``.
    placement_dependent_s
        Simulated time of the plan minus its time if all transfers between hosts took no time, seconds.
    placement_gap
        ``(objective_s - lower_bound_s) / placement_dependent_s``; zero if nothing depends on the placement.
    scope
        Sentence that says which plans the bound covers.
    searched
        Searched values of each dimension, such as tensor-parallel sizes.
    not_searched
        Choices that the bound does not cover, as short texts.
    proof
        Number of configurations ruled out by each step.
    joint_model
        Result of the joint model; ``None`` if the search could not choose the layers of each stage.
    fastest_s
        Iteration time of the fastest plan found, seconds, if a plainer plan was preferred
        (:mod:`~pipette_opt.plans.plainness`); ``None``: the plan is the fastest.
    regret
        Regret of the plan over worlds; ``None`` with other objectives.
    robust
        Upper end of the band of the plan's time, and its lower bound; ``None`` with other objectives.
    """

    status: Status
    objective_s: Positive
    lower_bound_s: NotNegative
    gap: Share
    placement_dependent_s: float
    placement_gap: NotNegative
    scope: str
    wall_time_s: NotNegative
    num_candidates: Count
    num_pruned: Count
    searched: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)
    not_searched: tuple[str, ...] = ()
    proof: tuple[Proof, ...] = ()
    joint_model: JointModel | None = None
    fastest_s: Positive | None = None
    regret: Regret | None = None
    robust: Robust | None = None

    @property
    def best_s(self) -> float:
        """Iteration time of the fastest plan found, seconds."""
        return self.objective_s if self.fastest_s is None else self.fastest_s

    @property
    def shown_gap(self) -> float:
        """Largest share of the time that another plan could save: ``(objective_s - lower_bound_s) / objective_s``."""
        return (self.objective_s - self.lower_bound_s) / self.objective_s

    def open_choices(self, within: float) -> tuple[tuple[str, float], ...]:
        """
        Return the choices that may save more than a share of the fastest plan's time, each with the share.

        The choices are in words, that with the largest share first.
        """
        found = {}
        parts = [part for part in self.proof if part.bound_s is not None]
        least = min(parts, key=lambda part: part.bound_s or 0.0, default=None)
        listed_s = self.best_s if least is None or least.bound_s is None else least.bound_s
        if least is not None:
            name = f"configurations such as {least.named[0].example}" if least.named else "searched configurations"
            found[name] = listed_s
        others_s = self.best_s if self.joint_model is None else self.joint_model.bound_s
        found["other layers per stage"] = others_s
        if self.proof and self.lower_bound_s < (1 - SAME_BOUND) * min(listed_s, others_s):
            found["other numbers of GPUs"] = self.lower_bound_s
        shares = {words: 1 - bound_s / self.best_s for words, bound_s in found.items()}
        return tuple(sorted((pair for pair in shares.items() if pair[1] > within), key=lambda pair: -pair[1]))

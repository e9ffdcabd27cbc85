"""
Choice of the shown plan among those that predictions cannot tell apart: the plainest.

:mod:`pipette_opt.plans.plainness` defines plainness. A plan's value is its time, or another objective's value of its
configuration, hosts and time.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from pipette_opt.base.types import IntArray, Prefer
from pipette_opt.parallel import ParallelConfig
from pipette_opt.plans.plainness import WITHIN, plainness
from pipette_opt.prepare import Prepared
from pipette_opt.simulate.solutions import SimulatedSolution, stage_memory

RiskOf = Callable[[SimulatedSolution], float]
"""Probability that the fullest stage of a placed configuration runs out of memory."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Preference:
    """
    Choice of a plan among those that are as good as the best.

    Parameters
    ----------
    prefer
        ``fastest``: the fastest plan; ``simple``: the plainest of those within 1 % of it.
    max_oom_risk
        Accepted probability of running out of memory.
    today
        Configuration that runs today, if it is known.
    factor
        Objective's value of a configuration over its iteration time; infinite where it is not wanted.
    hosts_factor
        Objective's value of hosts over the iteration time of a plan on them.
    """

    prefer: Prefer = "fastest"
    max_oom_risk: float = 0.01
    today: ParallelConfig | None = None
    factor: Callable[[ParallelConfig], float] = lambda config: 1.0
    hosts_factor: Callable[[IntArray], float] = lambda nodes: 1.0

    def value(self, plan: SimulatedSolution) -> float:
        """Value of a plan, the smaller the better."""
        config, seconds = plan.candidate.config, plan.estimate.iteration_time_s
        return self.factor(config) * self.hosts_factor(plan.nodes) * seconds

    def rank(self, config: ParallelConfig, oom_probability: float) -> tuple[int, ...]:
        """Return the plainness of a configuration with this risk."""
        return plainness(config, oom_probability, self.max_oom_risk, self.today)

    def choose(self, ranked: Sequence[SimulatedSolution], risk_of: RiskOf) -> SimulatedSolution:
        """
        Return the plan that is shown.

        Parameters
        ----------
        ranked
            Simulated plans, the fastest first; of equally plain ones the first is taken.
        """
        if self.prefer == "fastest":
            return ranked[0]
        limit = (1 + WITHIN) * self.value(ranked[0])
        near = [plan for plan in ranked if self.value(plan) <= limit]
        return min(near, key=lambda plan: self.rank(plan.candidate.config, risk_of(plan)))


def risks_of(prepared: Prepared, max_oom_risk: float) -> RiskOf:
    """Return a function of the risk of placed configurations that predicts each of them once."""
    known: dict[tuple[ParallelConfig, bytes], float] = {}

    def risk_of(plan: SimulatedSolution) -> float:
        config = plan.candidate.config
        key = config, plan.nodes.tobytes()
        if key not in known:
            stages = stage_memory(prepared.given, config, plan.placement, prepared.predictor, max_oom_risk)
            known[key] = max(stage.oom_probability for stage in stages)
        return known[key]

    return risk_of

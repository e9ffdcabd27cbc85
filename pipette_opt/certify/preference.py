"""
Which of the plans that predictions cannot tell apart is shown: the plainest (:mod:`pipette_opt.plans.plainness`).

A plan's value is its time, or what another objective makes of its configuration, its hosts and its time.
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
    How a plan is chosen among those that are as good as the best.

    Parameters
    ----------
    prefer
        ``fastest``: the fastest plan; ``simple``: the plainest of those within 1 % of it.
    max_oom_risk
        Accepted risk of running out of memory.
    today
        Configuration that runs today, if it is known.
    factor
        Value of a configuration over its iteration time; infinite where it is not wanted.
    hosts_factor
        Value of hosts over the iteration time of a plan on them.
    """

    prefer: Prefer = "fastest"
    max_oom_risk: float = 0.01
    today: ParallelConfig | None = None
    factor: Callable[[ParallelConfig], float] = lambda config: 1.0
    hosts_factor: Callable[[IntArray], float] = lambda nodes: 1.0

    def value(self, one: SimulatedSolution) -> float:
        """Value of a plan, the smaller the better."""
        config, seconds = one.candidate.config, one.estimate.iteration_time_s
        return self.factor(config) * self.hosts_factor(one.nodes) * seconds

    def rank(self, config: ParallelConfig, oom_probability: float) -> tuple[int, ...]:
        """Plainness of a configuration with this risk."""
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
        near = [one for one in ranked if self.value(one) <= limit]
        return min(near, key=lambda one: self.rank(one.candidate.config, risk_of(one)))


def risks_of(prepared: Prepared, max_oom_risk: float) -> RiskOf:
    """Return a function of the risk of placed configurations, each of which is predicted once."""
    known: dict[tuple[ParallelConfig, bytes], float] = {}

    def risk_of(one: SimulatedSolution) -> float:
        config = one.candidate.config
        key = config, one.nodes.tobytes()
        if key not in known:
            stages = stage_memory(prepared.given, config, one.placement, prepared.predictor, max_oom_risk)
            known[key] = max(stage.oom_probability for stage in stages)
        return known[key]

    return risk_of

"""
Choice of the shown plan: the plainest of those that predictions cannot tell apart.

:mod:`pipette_opt.plans.plainness` defines plainness. A plan's value is its time, or another objective that depends on
its configuration, hosts and time.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from pipette_opt.base.risk import USUAL_RISK
from pipette_opt.base.types import IntArray, Prefer
from pipette_opt.certify.params import OptimizeParams
from pipette_opt.parallel import ParallelConfig, hosts_by_rank
from pipette_opt.plans.plainness import WITHIN, is_in_order, plainness
from pipette_opt.prepare import Prepared
from pipette_opt.simulate.solutions import SimulatedSolution, best_first, stage_memory

RiskOf = Callable[[SimulatedSolution], float]
"""Function to the probability that the fullest stage of a placed configuration runs out of memory."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Preference:
    """
    Choice of a plan among those that are as good as the best.

    Parameters
    ----------
    prefer
        ``fastest``: the fastest plan; ``simple``: the plainest plan within 1 % of it.
    max_oom_risk
        Accepted probability of running out of memory.
    today
        Configuration that runs today; ``None`` if unknown.
    host_order
        All hosts in the usual order; empty: as the cluster lists them.
    factor
        Function from a configuration to its objective per second of iteration time; infinite if it is not wanted.
    hosts_factor
        Function from hosts to the objective per second of iteration time on them.
    weighs
        Whether the plan of the best value is searched among all configurations, not only among the fastest.
    """

    prefer: Prefer = "fastest"
    max_oom_risk: float = USUAL_RISK
    today: ParallelConfig | None = None
    host_order: Sequence[int] = ()
    factor: Callable[[ParallelConfig], float] = lambda config: 1.0
    hosts_factor: Callable[[IntArray], float] = lambda nodes: 1.0
    weighs: bool = False

    @classmethod
    def by_time(cls, params: OptimizeParams) -> "Preference":
        """Return the preference whose value is the time."""
        return cls(
            prefer=params.prefer,
            max_oom_risk=params.max_oom_risk,
            today=params.today,
            host_order=params.host_order,
        )

    def value(self, plan: SimulatedSolution) -> float:
        """Return the objective of a plan; smaller is better."""
        config, seconds = plan.candidate.config, plan.estimate.iteration_time_s
        return self.factor(config) * self.hosts_factor(plan.nodes) * seconds

    def is_in_order(self, plan: SimulatedSolution) -> bool:
        """Return whether consecutive ranks of a plan fill the hosts in their usual order."""
        tile = plan.candidate.tile
        return tile.contiguous and is_in_order(hosts_by_rank(tile, plan.nodes), self.host_order)

    def rank(self, config: ParallelConfig, oom_probability: float, *, in_order: bool) -> tuple[int, ...]:
        """
        Return the sort key of plainness for plans of a configuration with this out-of-memory probability.

        ``in_order``: whether consecutive ranks fill the hosts in their usual order.
        """
        return plainness(config, oom_probability, self.max_oom_risk, in_order=in_order, today=self.today)

    def rank_of(self, plan: SimulatedSolution, risk_of: RiskOf) -> tuple[int, ...]:
        """Return the sort key of plainness for a plan."""
        return self.rank(plan.candidate.config, risk_of(plan), in_order=self.is_in_order(plan))

    def choose(self, simulated: Sequence[SimulatedSolution], risk_of: RiskOf) -> SimulatedSolution:
        """Return the plan that is shown; of equally plain plans the fastest."""
        ranked = best_first(simulated)
        in_order = best_first([plan for plan in simulated if self.is_in_order(plan)])
        best = min(ranked, key=self.value) if self.weighs else ranked[0]
        if self.prefer == "fastest":
            return best
        limit = (1 + WITHIN) * self.value(best)
        near = [plan for plan in (*in_order, *ranked) if self.value(plan) <= limit]
        return min(near, key=lambda plan: self.rank_of(plan, risk_of))


def risks_of(prepared: Prepared, max_oom_risk: float) -> RiskOf:
    """Return a function from a plan to its out-of-memory probability; each plan is predicted once."""
    known: dict[tuple[ParallelConfig, bytes], float] = {}

    def risk_of(plan: SimulatedSolution) -> float:
        config = plan.candidate.config
        key = config, plan.nodes.tobytes()
        if key not in known:
            stages = stage_memory(prepared.given, config, plan.placement, prepared.predictor, max_oom_risk)
            known[key] = max(stage.oom_probability for stage in stages)
        return known[key]

    return risk_of

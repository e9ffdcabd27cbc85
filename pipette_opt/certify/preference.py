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
from pipette_opt.parallel import ParallelConfig
from pipette_opt.plans.plainness import WITHIN, plainness
from pipette_opt.prepare import Prepared
from pipette_opt.simulate.solutions import SimulatedSolution, stage_memory

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
    factor: Callable[[ParallelConfig], float] = lambda config: 1.0
    hosts_factor: Callable[[IntArray], float] = lambda nodes: 1.0
    weighs: bool = False

    @classmethod
    def by_time(cls, params: OptimizeParams) -> "Preference":
        """Return the preference whose value is the time."""
        return cls(prefer=params.prefer, max_oom_risk=params.max_oom_risk, today=params.today)

    def value(self, plan: SimulatedSolution) -> float:
        """Return the objective of a plan; smaller is better."""
        config, seconds = plan.candidate.config, plan.estimate.iteration_time_s
        return self.factor(config) * self.hosts_factor(plan.nodes) * seconds

    def rank(self, config: ParallelConfig, oom_probability: float) -> tuple[int, ...]:
        """Return the sort key of plainness for a configuration with this out-of-memory probability."""
        return plainness(config, oom_probability, self.max_oom_risk, self.today)

    def choose(self, ranked: Sequence[SimulatedSolution], risk_of: RiskOf) -> SimulatedSolution:
        """
        Return the plan that is shown.

        Parameters
        ----------
        ranked
            Simulated plans, fastest first; the first of equally good plans is chosen.
        """
        best = min(ranked, key=self.value) if self.weighs else ranked[0]
        if self.prefer == "fastest":
            return best
        limit = (1 + WITHIN) * self.value(best)
        near = [plan for plan in ranked if self.value(plan) <= limit]
        return min(near, key=lambda plan: self.rank(plan.candidate.config, risk_of(plan)))


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

"""Choice of the plan with the least regret over worlds, and the regret in its certificate."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from pipette_opt.certify.preference import Preference
from pipette_opt.parallel import ParallelConfig
from pipette_opt.plans.plan import Plan
from pipette_opt.prepare import Prepared
from pipette_opt.simulate.solutions import SimulatedSolution
from pipette_opt.verify.experiments import deciding_experiment
from pipette_opt.verify.regret import Groups, group_of, regret_of, weights_of
from pipette_opt.worlds.worlds import Worlds


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RegretParams:
    """
    Worlds over which the regret of a plan is minimised.

    Parameters
    ----------
    worlds
        Worlds that fit the measured runs.
    quantile
        Quantile of the regret over the worlds, in (0, 1); ``None``: its mean.
    """

    worlds: Worlds
    quantile: float | None = None


class RegretSearch:
    """
    Regret of a search's configurations over worlds.

    Parameters
    ----------
    bound_s
        Lower bound on every plan, as far as it is proven, seconds.
    """

    def __init__(self, prepared: Prepared, params: RegretParams, bound_s: float) -> None:
        self.params = params
        self.groups = Groups(prepared.instance, prepared.memory.fitting, prepared.memory.capacity_bytes)
        self.groups.least_s = bound_s

    def preference(self, preference: Preference) -> Preference:
        """Return the preference with the regret as the value of plans."""
        weights = weights_of(self.groups, self.params.worlds, self.params.quantile)

        def factor(config: ParallelConfig) -> float:
            return weights.get(group_of(config), float("inf"))

        return replace(preference, factor=factor, weighs=True)

    def certified(self, plan: Plan, simulated: Sequence[SimulatedSolution]) -> Plan:
        """Return the plan with its regret in the certificate."""
        times_s: dict[ParallelConfig, float] = {}
        for found in simulated:
            config, seconds = found.candidate.config, found.estimate.iteration_time_s
            times_s[config] = min(seconds, times_s.get(config, seconds))
        self.groups.least_s = plan.certificate.lower_bound_s
        worlds = self.params.worlds
        seconds = plan.estimate.iteration_time_s
        regret = regret_of(plan.config, seconds, self.groups, worlds, times_s)
        if worlds.observations:
            before = regret_of(plan.config, seconds, self.groups, Worlds(prior=worlds.prior), times_s)
            regret = replace(regret, unmeasured_high=before.high)
        experiment = deciding_experiment(self.groups, worlds, plan.config.world_size)
        regret = replace(regret, experiment=experiment)
        return replace(plan, certificate=replace(plan.certificate, regret=regret))

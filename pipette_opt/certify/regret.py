"""Choice of the plan with the least regret over worlds, and the regret in its certificate."""

from dataclasses import replace

from pipette_opt.certify.preference import Preference
from pipette_opt.certify.state import SearchState
from pipette_opt.parallel import ParallelConfig
from pipette_opt.plans.plan import Plan
from pipette_opt.prepare import Prepared
from pipette_opt.simulate.solutions import best_first
from pipette_opt.specs.objective import Objective
from pipette_opt.verify.experiments import deciding_experiment
from pipette_opt.verify.regret import Groups, group_of, recorded_times_s, regret_of, weights_of
from pipette_opt.worlds.bands import anchored
from pipette_opt.worlds.worlds import Worlds


class RegretSearch:
    """
    Regret of a search's configurations over worlds.

    Parameters
    ----------
    quantile
        Quantile of the regret over the worlds that is minimised, in (0, 1); ``None``: its mean.
    bound_s
        Lower bound on every plan, as far as it is proven, seconds.
    fastest
        Configuration of the fastest plan.
    """

    def __init__(self, prepared: Prepared, quantile: float | None, bound_s: float, fastest: ParallelConfig) -> None:
        instance, memory = prepared.instance, prepared.memory
        self.quantile, self.worlds = quantile, anchored(instance.stack)
        self.groups = Groups(instance, memory.fitting, memory.capacity_bytes, fastest, prepared.work)
        self.groups.least_s = bound_s

    def preference(self, preference: Preference) -> Preference:
        """Return the preference with the regret as the value of plans."""
        weights = weights_of(self.groups, self.worlds, self.quantile)

        def factor(config: ParallelConfig) -> float:
            return weights.get(group_of(config), float("inf"))

        return replace(preference, factor=factor, weighs=True)

    def certified(self, plan: Plan) -> Plan:
        """Return the plan with its regret in the certificate."""
        self.groups.least_s = plan.certificate.lower_bound_s
        worlds = self.worlds
        seconds = plan.estimate.iteration_time_s
        regret = regret_of(plan.config, seconds, self.groups, worlds, recorded_times_s(plan))
        if worlds.observations:
            before = regret_of(plan.config, seconds, self.groups, Worlds(prior=worlds.prior), {})
            regret = replace(regret, unmeasured_high=before.high)
        experiment = deciding_experiment(self.groups, worlds, plan.config.world_size)
        regret = replace(regret, experiment=experiment)
        return replace(plan, certificate=replace(plan.certificate, regret=regret))


def weigh_in_worlds(state: SearchState) -> RegretSearch | None:
    """Make the regret over worlds the value of plans, if it is the objective of the search."""
    if state.params.objective is not Objective.REGRET:
        return None
    state.clock.report("weighing configurations in worlds")
    fastest = best_first(state.simulated)[0].candidate.config
    regrets = RegretSearch(state.prepared, state.params.regret_quantile, state.bound_s, fastest)
    state.preference = regrets.preference(state.preference)
    return regrets

"""Choice of the plan by an objective over worlds, and its value in the certificate: regret, or the upper end."""

from dataclasses import replace

from pipette_opt.certify.preference import Preference
from pipette_opt.certify.state import SearchState
from pipette_opt.parallel import ParallelConfig
from pipette_opt.plans.certificate import Regret
from pipette_opt.plans.plan import Plan
from pipette_opt.simulate.solutions import best_first
from pipette_opt.specs.objective import Objective
from pipette_opt.verify.experiments import deciding_experiment
from pipette_opt.verify.regret import Groups, group_of, high_regret, recorded_times_s, regret_of, weights_of
from pipette_opt.verify.robust import robust_of, upper_ends_of
from pipette_opt.worlds.factor import anchored


class InWorlds:
    """
    Values of a search's configurations by an objective over worlds; a plan must be known.

    The objective is the regret or the upper end of the band of the time.
    """

    def __init__(self, state: SearchState) -> None:
        prepared, memory = state.prepared, state.prepared.memory
        fastest = best_first(state.simulated)[0].candidate.config
        self.params, self.worlds = state.params, anchored(prepared.instance)
        self.groups = Groups(prepared.instance, memory.fitting, memory.capacity_bytes, fastest, prepared.work)
        self.groups.least_s = state.bound_s

    @property
    def is_regret(self) -> bool:
        """Return whether the objective is the regret; else it is the upper end of the band."""
        return self.params.objective is Objective.REGRET

    def preference(self, preference: Preference) -> Preference:
        """Return the preference with the objective as the value of plans."""
        if self.is_regret:
            weights = weights_of(self.groups, self.worlds, self.params.regret_quantile)
        else:
            weights = upper_ends_of(self.groups, self.worlds)

        def factor(config: ParallelConfig) -> float:
            return weights.get(group_of(config), float("inf"))

        return replace(preference, factor=factor, weighs=True)

    def certified(self, plan: Plan) -> Plan:
        """Return the plan with the objective in its certificate."""
        self.groups.least_s = plan.certificate.lower_bound_s
        self.groups.start_again()
        if self.is_regret:
            certificate = replace(plan.certificate, regret=self._regret(plan))
        else:
            seconds, found_s = plan.estimate.iteration_time_s, recorded_times_s(plan)
            robust = robust_of(plan.config, seconds, self.groups, self.worlds, found_s)
            certificate = replace(plan.certificate, robust=robust)
        return replace(plan, certificate=certificate)

    def _regret(self, plan: Plan) -> Regret:
        """Return the regret of a plan, with the experiment that would lower it most."""
        seconds, worlds = plan.estimate.iteration_time_s, self.worlds
        regret = regret_of(plan.config, seconds, self.groups, worlds, recorded_times_s(plan))
        regret = replace(regret, experiment=deciding_experiment(self.groups, worlds, plan.config.world_size))
        if not worlds.observations:
            return regret
        before = high_regret(plan.config, seconds, self.groups, replace(worlds, observations=()))
        return replace(regret, unmeasured_high=before)


def weigh_in_worlds(state: SearchState) -> InWorlds | None:
    """Make an objective over worlds the value of plans, if it is the objective of the search."""
    if not state.params.objective.is_over_worlds:
        return None
    state.clock.report("weighing configurations in worlds")
    weighed = InWorlds(state)
    state.preference = weighed.preference(state.preference)
    return weighed

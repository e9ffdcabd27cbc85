"""Rule on the regret of a plan's certificate."""

from collections.abc import Iterator
from dataclasses import replace

from pipette_opt.plans.plan import Plan
from pipette_opt.specs.objective import Objective
from pipette_opt.verify.common import REPRODUCED, close, same
from pipette_opt.verify.experiments import deciding_experiment
from pipette_opt.verify.regret import Groups, group_of, high_regret, recorded_times_s, regret_of
from pipette_opt.verify.space import Searched
from pipette_opt.worlds.factor import anchored


def groups_again(searched: Searched, plan: Plan) -> Groups:
    """Return the groups of the configurations that fit, with the bound that the search proved for all plans."""
    fastest = plan.config if plan.fastest is None else plan.fastest.config
    groups = Groups(searched.instance, searched.memory.fitting, searched.memory.capacity_bytes, fastest)
    groups.least_s = plan.certificate.lower_bound_s
    return groups


def regret_holds(searched: Searched, plan: Plan) -> Iterator[str]:
    """Rule: the lower bound of each world, and the regret over them, follow from the search space and the worlds."""
    found = plan.certificate.regret
    if found is None:
        if plan.inputs.get("objective") == Objective.REGRET:
            yield "the objective is regret, and the certificate records none"
        return
    groups = groups_again(searched, plan)
    if group_of(plan.config) not in groups.numbers:
        yield f"{plan.config.label()} is not among the {len(groups.numbers)} groups of configurations"
        return
    worlds = anchored(searched.instance)
    seconds = plan.estimate.iteration_time_s
    right = regret_of(plan.config, seconds, groups, worlds, recorded_times_s(plan))
    experiment = deciding_experiment(groups, worlds, plan.config.world_size)
    if worlds.observations:
        before = high_regret(plan.config, seconds, groups, replace(worlds, observations=()))
        right = replace(right, unmeasured_high=before)
    shares = ("mean", "high", "over_found_mean", "over_found_high", "unmeasured_high")
    for name in ("worlds", "measured_runs", "groups", "quantile", "left_out_s", *shares):
        recorded, expected = getattr(found, name), getattr(right, name)
        if not same(recorded, expected):
            yield f"regret.{name} is {recorded}, but the space and the worlds give {expected}"
    pairs = zip(found.lower_bounds_s, right.lower_bounds_s, strict=False)
    wrong = [number for number, (ours, other) in enumerate(pairs) if not close(ours, other, REPRODUCED)]
    if wrong or len(found.lower_bounds_s) != len(right.lower_bounds_s):
        yield f"regret.lower_bounds_s differ in {len(wrong)} of {len(right.lower_bounds_s)} worlds, first {wrong[:1]}"
    if (found.experiment is None) != (experiment is None):
        yield f"regret.experiment is {found.experiment}, but the worlds give {experiment}"
    elif found.experiment is not None and experiment is not None:
        for name in ("command", "run", "gpu_minutes", "regret"):
            recorded, expected = getattr(found.experiment, name), getattr(experiment, name)
            if not same(recorded, expected):
                yield f"regret.experiment.{name} is {recorded}, but the worlds give {expected}"

"""Search for the plan with the least product of time and a factor of the configuration."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from pipette_opt.base.errors import InfeasibleError, InputError
from pipette_opt.candidates import SearchSpace
from pipette_opt.certify.params import OptimizeParams
from pipette_opt.certify.preference import Preference
from pipette_opt.certify.weights import Weights, choice_of
from pipette_opt.optimize import begun, complete
from pipette_opt.plans.chosen import ChoiceStep
from pipette_opt.plans.plainness import WITHIN
from pipette_opt.plans.plan import AS_GOOD, Plan
from pipette_opt.plans.watcher import Watcher
from pipette_opt.specs import Instance

MIN_STEP = 0.1
"""Least fraction of the time limit for each of the searches. Chosen."""


def optimize_weighted(
    weights: Weights,
    instance: Instance,
    space: SearchSpace,
    params: OptimizeParams,
    watcher: Watcher,
    inputs: Mapping[str, Any] | None = None,
) -> Plan:
    """
    Find the plan with the least objective, and prove how good it is.

    The first search is over all configurations. Each further search is over those with a smaller factor than the plan
    just found, until none can have a smaller objective (:mod:`pipette_opt.certify.weights`). The plan's certificate is
    that of the search that found it, with ``chosen_by``. With ``prefer="simple"``, a plainer plan within 1 % is chosen.
    Raises the errors of :func:`~pipette_opt.optimize.optimize`.
    """
    preference = replace(Preference.by_time(params), factor=weights.factor)
    best = float("inf")
    steps: list[ChoiceStep] = []
    plans: list[Plan] = []

    def value_of(plan: Plan) -> float:
        return weights.factor(plan.config) * plan.estimate.iteration_time_s

    def show_better(plan: Plan) -> None:
        nonlocal best
        if value_of(plan) < best:
            best = value_of(plan)
            watcher.on_plan(plan)

    limits, is_whole = weights.limits_below(float("inf")), False
    inner = replace(watcher, on_plan=show_better)
    while limits is not None:
        left = max(1, weights.num_factors - len(steps))
        share_s = max(params.time_limit_s - inner.elapsed_s, MIN_STEP * params.time_limit_s) / left
        to_beat_s = min([params.to_beat_s, *(step.value / weights.base for step in steps)])
        step_params = replace(params, time_limit_s=inner.elapsed_s + share_s, to_beat_s=to_beat_s)
        try:
            state = begun(instance, replace(space, limits=limits), step_params, inner, inputs)
            state.preference = preference
            plan = complete(state, inputs)
        except (InfeasibleError, InputError):
            if not plans:
                raise
            is_whole = True
            break
        plans.append(plan)
        fastest = plan.config if plan.fastest is None else plan.fastest.config
        factor, bound_s = weights.factor(fastest), plan.certificate.lower_bound_s
        steps.append(
            ChoiceStep(
                limits=limits,
                plan=fastest.label(),
                factor=factor,
                iteration_time_s=plan.certificate.best_s,
                lower_bound_s=bound_s,
            )
        )
        limits = weights.limits_below(factor)
        if inner.stop.is_set() or weights.base * bound_s >= min(step.value for step in steps):
            break
    choice = choice_of(params.objective, weights, steps, is_whole=is_whole or limits is None)

    def rank(plan: Plan) -> tuple[tuple[int, ...], float]:
        risk = max((stage.oom_probability for stage in plan.memory), default=0.0)
        return preference.rank(plan.config, risk), value_of(plan)

    if params.prefer == "simple":
        chosen = min((plan for plan in plans if value_of(plan) <= (1 + WITHIN + AS_GOOD) * choice.value), key=rank)
    else:
        chosen = min(plans, key=value_of)
    if abs(value_of(chosen) - choice.value) > AS_GOOD * choice.value:
        choice = replace(choice, shown_value=value_of(chosen))
    return replace(chosen, certificate=replace(chosen.certificate, chosen_by=choice))

"""Rules on the preference for plain plans, on plans with less OOM risk, and on uneven experts."""

from collections.abc import Iterator
from dataclasses import replace

from pipette_opt.base.errors import InputError
from pipette_opt.plans.plainness import WITHIN, is_in_order, plainness, risk_levels
from pipette_opt.plans.plan import Plan
from pipette_opt.simulate.estimate import estimate
from pipette_opt.specs import Instance
from pipette_opt.specs.objective import Objective
from pipette_opt.verify.alternatives import named_alternatives, nearest_placement
from pipette_opt.verify.common import CLOSED_GAP, REPRODUCED, ROUNDING, close, on_cluster, same
from pipette_opt.verify.memory import accepted_risk, stages_memory


def preference_holds(instance: Instance, plan: Plan) -> Iterator[str]:
    """
    Rule: the plan is the fastest found, or within 1 % of it and at least as plain as other recorded plans within 1 %.

    With another objective than time, the limit applies to the objective's value; :mod:`.target` and
    :mod:`.robust_rule` check it.
    """
    fastest, proof, seconds = plan.fastest, plan.certificate, plan.estimate.iteration_time_s
    if fastest is None:
        if proof.fastest_s is not None:
            yield f"certificate.fastest_s is {proof.fastest_s}, and no fastest plan is recorded"
        return
    if proof.fastest_s is None or not close(proof.fastest_s, fastest.iteration_time_s or 0.0, ROUNDING):
        yield f"certificate.fastest_s is {proof.fastest_s}, but fastest takes {fastest.iteration_time_s} s"
        return
    objective = plan.inputs.get("objective")
    if plan.inputs.get("prefer") != "simple" and objective not in (Objective.REGRET, Objective.ROBUST):
        yield f"fastest is another plan, and inputs.prefer is {plan.inputs.get('prefer')!r}"
    if fastest.config == plan.config and proof.fastest_s >= (1 - ROUNDING) * seconds:
        yield f"fastest is of the plan's own configuration, {plan.config.label()}, and as fast"
    if objective not in (None, Objective.TIME):
        return
    limit_s = (1 + WITHIN) * proof.fastest_s
    if seconds > limit_s * (1 + REPRODUCED):
        yield f"the plan takes {seconds} s, more than {WITHIN:.0%} above the fastest plan's {proof.fastest_s} s"
    accepted = accepted_risk(plan.inputs)
    risk = max((stage.oom_probability for stage in plan.memory), default=0.0)
    order = plan.inputs.get("host_order", ())
    try:
        in_order = is_in_order(on_cluster(instance, plan).node, order)
        own = plainness(plan.config, risk, accepted, in_order=in_order)
        for other in (fastest, *plan.alternatives, *(trade.plan for trade in plan.risks)):
            if other.iteration_time_s is None or other.oom_probability is None or other.iteration_time_s > limit_s:
                continue
            if plainness(other.config, other.oom_probability, accepted) >= own:
                continue
            placement, _ = nearest_placement(instance, other)
            in_order = is_in_order(placement.node, order)
            if plainness(other.config, other.oom_probability, accepted, in_order=in_order) < own:
                yield f"{other.config.label()} takes {other.iteration_time_s} s and is plainer than the plan"
    except (InputError, ValueError, LookupError):
        return  # estimate_is_reproduced and alternatives_are_reproduced say why


def risks_are_reproduced(instance: Instance, plan: Plan) -> Iterator[str]:
    """
    Rule: each recorded plan with less OOM risk has at most its accepted risk.

    If there are such plans, each level of risk that a recorded plan keeps has one, at most as slow.
    """
    yield from _risk_levels_are_complete(plan)
    for number, trade in enumerate(plan.risks):
        name, chance = f"risks[{number}]", trade.plan.oom_probability
        if chance is None or chance > trade.max_oom_risk * (1 + REPRODUCED):
            yield f"{name} has a risk of {chance}, more than {trade.max_oom_risk}"


def _risk_levels_are_complete(plan: Plan) -> Iterator[str]:
    """Each level of risk has the fastest plan recorded within it."""
    if not plan.risks:
        return  # taken on trust: other objectives have none
    try:
        levels = risk_levels(accepted_risk(plan.inputs))
    except InputError:
        return  # plan_is_searched says why
    recorded = {trade.max_oom_risk: trade.plan for trade in plan.risks}
    if any(not any(same(level, right) for right in levels) for level in recorded):
        yield f"risks are at {list(recorded)}, but {list(levels)} are searched"
        return
    known = [(other.oom_probability, other.iteration_time_s) for _, other in named_alternatives(plan)]
    known.append((max((stage.oom_probability for stage in plan.memory), default=1.0), plan.certificate.objective_s))
    for level in levels:
        within_s = [seconds for chance, seconds in known if chance is not None and seconds and chance <= level]
        safe = recorded.get(level)
        if not within_s or (safe is not None and safe.iteration_time_s is None):
            continue
        least_s = min(within_s)
        if safe is None or (safe.iteration_time_s or 0.0) > least_s * (1 + CLOSED_GAP):
            yield f"risks has no plan of {least_s} s at a risk of {level}, which a recorded plan keeps"


def imbalance_is_reproduced(instance: Instance, plan: Plan) -> Iterator[str]:
    """Rule: with the recorded expert imbalance the plan has the recorded time and OOM risk."""
    recorded = plan.imbalance
    if recorded is None:
        return
    try:
        uneven = replace(instance, training=replace(instance.training, expert_imbalance=recorded.expert_imbalance))
        placement = on_cluster(instance, plan)
        seconds = estimate(uneven, plan.config, placement).iteration_time_s
        stages = stages_memory(uneven, plan.config, placement, accepted_risk(plan.inputs))
    except (InputError, ValueError) as error:
        yield f"imbalance cannot be simulated: {error}"
        return
    risk = max(stage.oom_probability for stage in stages)
    for name, right in (("iteration_time_s", seconds), ("oom_probability", risk)):
        if not same(getattr(recorded, name), right):
            yield f"imbalance has {name} {getattr(recorded, name)}, but a new simulation gives {right}"

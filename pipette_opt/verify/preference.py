"""The plan is the one that its preference chooses among those that it records; what is said beside it holds."""

from collections.abc import Iterator
from dataclasses import replace

from pipette_opt.base.errors import InputError
from pipette_opt.plans.plainness import WITHIN, plainness
from pipette_opt.plans.plan import Plan, fullness
from pipette_opt.simulate.estimate import estimate
from pipette_opt.specs import Instance
from pipette_opt.specs.objective import Objective
from pipette_opt.verify.alternatives import alternative_placements
from pipette_opt.verify.common import REPRODUCED, ROUNDING, close, on_cluster, same
from pipette_opt.verify.memory import accepted_risk, stages_memory


def preference_holds(instance: Instance, plan: Plan) -> Iterator[str]:
    """
    The plan is the fastest found, or within 1 % of it and no less plain than others recorded that are, too.

    By another objective than the time the limit is on its value, of which the rules on the objective know.
    """
    fastest, proof, seconds = plan.fastest, plan.certificate, plan.estimate.iteration_time_s
    if fastest is None:
        if proof.fastest_s is not None:
            yield f"certificate.fastest_s is {proof.fastest_s}, and no fastest plan is recorded"
        return
    if proof.fastest_s is None or not close(proof.fastest_s, fastest.iteration_time_s or 0.0, ROUNDING):
        yield f"certificate.fastest_s is {proof.fastest_s}, fastest takes {fastest.iteration_time_s} s"
        return
    if plan.inputs.get("prefer") != "simple":
        yield f"fastest is another plan, and inputs.prefer is {plan.inputs.get('prefer')!r}"
    if fastest.config == plan.config:
        yield f"fastest is of the plan's own configuration, {plan.config.label()}"
    if plan.inputs.get("objective") not in (None, Objective.TIME):
        return
    limit_s = (1 + WITHIN) * proof.fastest_s
    if seconds > limit_s * (1 + REPRODUCED):
        yield f"the plan takes {seconds} s, more than {WITHIN:.0%} above the fastest plan's {proof.fastest_s} s"
    accepted = accepted_risk(plan.inputs)
    own = plainness(plan.config, max((one.oom_probability for one in plan.memory), default=0.0), accepted)
    for one in (fastest, *plan.alternatives, *(one.plan for one in plan.risks)):
        if one.iteration_time_s is None or one.oom_probability is None or one.iteration_time_s > limit_s:
            continue
        if plainness(one.config, one.oom_probability, accepted) < own:
            yield f"{one.config.label()} takes {one.iteration_time_s} s and is plainer than the plan"


def risks_are_reproduced(instance: Instance, plan: Plan) -> Iterator[str]:
    """Each plan of the trade between time and risk has at most its risk, and the memory that is said."""
    for number, one in enumerate(plan.risks):
        name, chance = f"risks[{number}]", one.plan.oom_probability
        if chance is None or chance > one.max_oom_risk * (1 + REPRODUCED):
            yield f"{name} has a risk of {chance}, more than {one.max_oom_risk}"
        try:
            found = [
                stages_memory(instance, one.plan.config, placement, accepted_risk(plan.inputs))
                for placement in alternative_placements(instance, one.plan)
            ]
        except (InputError, ValueError, LookupError):
            return  # alternatives_are_reproduced and memory_is_reproduced say why
        fullest = [max(stages, key=fullness) for stages in found]
        if not any(
            same(one.upper_bytes, stage.upper_bytes, REPRODUCED) and same(one.capacity_bytes, stage.capacity_bytes, 0)
            for stage in fullest
        ):
            yield f"{name} needs up to {one.upper_bytes} bytes of {one.capacity_bytes}, predicted again it does not"


def imbalance_is_reproduced(instance: Instance, plan: Plan) -> Iterator[str]:
    """The plan has this time and this risk where experts are as uneven as is said."""
    said = plan.imbalance
    if said is None:
        return
    try:
        uneven = replace(instance, training=replace(instance.training, expert_imbalance=said.expert_imbalance))
        placement = on_cluster(instance, plan)
        seconds = estimate(uneven, plan.config, placement).iteration_time_s
        stages = stages_memory(uneven, plan.config, placement, accepted_risk(plan.inputs))
    except (InputError, ValueError) as error:
        yield f"imbalance cannot be simulated: {error}"
        return
    risk = max(stage.oom_probability for stage in stages)
    for name, right in (("iteration_time_s", seconds), ("oom_probability", risk)):
        if not same(getattr(said, name), right, REPRODUCED):
            yield f"imbalance has {name} {getattr(said, name)}, simulated again {right}"

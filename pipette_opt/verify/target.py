"""The rule on what a plan is best at, where that is not its time."""

from collections.abc import Iterator

from pipette_opt.plans.plainness import WITHIN
from pipette_opt.plans.plan import Plan
from pipette_opt.plans.target import best_value_of, people_value, value_of
from pipette_opt.specs import Instance
from pipette_opt.specs.objective import Objective
from pipette_opt.verify.common import REPRODUCED, ROUNDING, close


def target_is_reproduced(instance: Instance, plan: Plan) -> Iterator[str]:
    """
    The value of the objective is the plan's, and its bound that of the numbers of GPUs.

    The plan is the best of these, and its own number has the bound of its certificate.
    """
    target = plan.target
    if target is None:
        return
    objective = Objective(target.objective)
    value = people_value(objective, value_of(plan, instance.cluster, objective), instance.training.tokens)
    if not close(target.value, value, ROUNDING):
        yield f"objective.value is {target.value}, the plan's is {value}"
    worst = -1 if objective.is_rate else 1  # a rate is better where it is larger
    if target.best_value is not None:
        best_value = people_value(objective, best_value_of(plan, instance.cluster, objective), instance.training.tokens)
        if not close(target.best_value, best_value, ROUNDING):
            yield f"objective.best_value is {target.best_value}, the fastest plan's is {best_value}"
        if worst * value > worst * best_value * (1 + worst * (WITHIN + REPRODUCED)):
            yield f"objective.value is {value}, more than {WITHIN:.0%} worse than {best_value}"
        value = best_value
    best = min((worst * one.bound for one in target.sizes if one.bound is not None), default=worst * value)
    if not close(worst * target.bound, min(best, worst * value), ROUNDING):
        yield f"objective.bound is {target.bound}, its numbers of GPUs give {worst * min(best, worst * value)}"
    better = [
        one
        for one in target.sizes
        if one.value is not None and worst * one.value < worst * value * (1 - ROUNDING * worst)
    ]
    for one in better[:1]:
        yield f"objective.sizes has {one.num_gpus} GPUs with {one.value}, better than the plan's {value}"
    own = [one.lower_bound_s for one in target.sizes if one.num_gpus == plan.config.world_size and one.lower_bound_s]
    if not any(one >= plan.certificate.lower_bound_s * (1 - ROUNDING) for one in own):
        yield f"objective.sizes lacks the bound of {plan.config.world_size} GPUs, {plan.certificate.lower_bound_s} s"

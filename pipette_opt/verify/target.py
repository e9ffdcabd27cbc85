"""Rule on the value of the plan's objective, if the objective is not time."""

from collections.abc import Iterator

from pipette_opt.plans.plainness import WITHIN
from pipette_opt.plans.plan import Plan
from pipette_opt.plans.target import best_value_of, people_value, value_of
from pipette_opt.specs import Instance
from pipette_opt.specs.objective import Objective
from pipette_opt.verify.common import REPRODUCED, ROUNDING, close


def target_is_reproduced(instance: Instance, plan: Plan) -> Iterator[str]:
    """
    Rule: the recorded objective value is the plan's, and its bound follows from the bounds for each number of GPUs.

    No recorded number of GPUs has a better value, and the plan's own number has the bound of its certificate.
    """
    target = plan.target
    if target is None:
        return
    objective = Objective(target.objective)
    value = people_value(objective, value_of(plan, instance.cluster, objective), instance.training.tokens)
    if not close(target.value, value, ROUNDING):
        yield f"objective.value is {target.value}, but the plan's is {value}"
    worst = -1 if objective.is_rate else 1  # a rate is better where it is larger
    if target.best_value is not None:
        best_value = people_value(objective, best_value_of(plan, instance.cluster, objective), instance.training.tokens)
        if not close(target.best_value, best_value, ROUNDING):
            yield f"objective.best_value is {target.best_value}, but the fastest plan's is {best_value}"
        if worst * value > worst * best_value * (1 + worst * (WITHIN + REPRODUCED)):
            yield f"objective.value is {value}, more than {WITHIN:.0%} worse than {best_value}"
        value = best_value
    best = min((worst * size.bound for size in target.sizes if size.bound is not None), default=worst * value)
    if not close(worst * target.bound, min(best, worst * value), ROUNDING):
        yield f"objective.bound is {target.bound}, but its numbers of GPUs give {worst * min(best, worst * value)}"
    better = [
        size
        for size in target.sizes
        if size.value is not None and worst * size.value < worst * value * (1 - ROUNDING * worst)
    ]
    for size in better[:1]:
        yield f"objective.sizes has {size.num_gpus} GPUs with {size.value}, better than the plan's {value}"
    own_s = [size.lower_bound_s for size in target.sizes if size.num_gpus == plan.config.world_size]
    if not any(bound_s and bound_s >= plan.certificate.lower_bound_s * (1 - ROUNDING) for bound_s in own_s):
        yield f"objective.sizes lacks the bound of {plan.config.world_size} GPUs, {plan.certificate.lower_bound_s} s"

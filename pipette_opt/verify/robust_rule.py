"""Rule on the upper end of the band in a plan's certificate."""

from collections.abc import Iterator
from dataclasses import fields

from pipette_opt.plans.certificate import Robust
from pipette_opt.plans.plainness import WITHIN
from pipette_opt.plans.plan import Plan
from pipette_opt.specs.objective import Objective
from pipette_opt.verify.common import REPRODUCED, same
from pipette_opt.verify.regret import group_of, recorded_times_s
from pipette_opt.verify.regret_rule import groups_again
from pipette_opt.verify.robust import robust_of
from pipette_opt.verify.space import Searched
from pipette_opt.worlds.factor import anchored


def robust_holds(searched: Searched, plan: Plan) -> Iterator[str]:
    """
    Rule: the upper end of the band, and its lower bound, follow from the search space and the worlds.

    It is at most 1 % above the least of the recorded plans if plainer plans are preferred, else the least.
    """
    found, objective = plan.certificate.robust, plan.inputs.get("objective")
    if (found is None) == (objective == Objective.ROBUST):
        yield f"the objective is {objective}, and the certificate records {found} as the upper end; solve again"
    if found is None or objective != Objective.ROBUST:
        return
    groups = groups_again(searched, plan)
    if group_of(plan.config) not in groups.numbers:
        yield f"{plan.config.label()} is not among the {len(groups.numbers)} groups of configurations"
        return
    worlds = anchored(searched.instance)
    right = robust_of(plan.config, plan.estimate.iteration_time_s, groups, worlds, recorded_times_s(plan))
    for name in (field.name for field in fields(Robust)):
        recorded, expected = getattr(found, name), getattr(right, name)
        if not same(recorded, expected):
            yield f"robust.{name} is {recorded}, but the space and the worlds give {expected}"
    within = WITHIN if plan.inputs.get("prefer") == "simple" else 0.0
    if right.value_s > (1 + within + REPRODUCED) * right.best_s:
        yield f"the upper end is {right.value_s} s, more than {within:.0%} above {right.best_s} s of a recorded plan"

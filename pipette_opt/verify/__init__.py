"""
Every rule again, in plain Python, on the finished plan.

Nothing of the solver's problem or solution is used: a plan that passes is right by the given data, whatever produced
it. Each rule is one function whose docstring is the rule; it yields what is wrong, with the numbers.
"""

from pipette_opt.errors import PlanError
from pipette_opt.fullness import with_edge_loss
from pipette_opt.plan import Plan
from pipette_opt.specs import Instance
from pipette_opt.verify.alternatives import alternatives_are_reproduced, baselines_are_possible
from pipette_opt.verify.common import Rule
from pipette_opt.verify.memory import memory_is_reproduced
from pipette_opt.verify.rules import (
    certificate_is_consistent,
    configuration_is_legal,
    coordinates_in_rank_order,
    degrees_fill_the_world,
    estimate_adds_up,
    estimate_is_reproduced,
    hosts_exist,
    links_were_measured,
    memory_fits,
    objective_is_reproduced,
    one_rank_per_gpu,
    settings_are_the_given,
    torchrun_ranks_contiguous,
)

__all__ = ["RULES", "verify"]

MAP_RULES: tuple[Rule, ...] = (degrees_fill_the_world, hosts_exist, one_rank_per_gpu)
"""What the map must be before anything else can be asked."""

CONTENT_RULES: tuple[Rule, ...] = (
    coordinates_in_rank_order,
    torchrun_ranks_contiguous,
    settings_are_the_given,
    configuration_is_legal,
    links_were_measured,
    memory_fits,
    memory_is_reproduced,
    certificate_is_consistent,
    estimate_adds_up,
    estimate_is_reproduced,
    objective_is_reproduced,
    alternatives_are_reproduced,
    baselines_are_possible,
)

RULES: tuple[Rule, ...] = MAP_RULES + CONTENT_RULES
"""All rules, in the order in which they are checked."""


def verify(instance: Instance, plan: Plan) -> None:
    """
    Check a plan against what was given.

    Raises ``PlanError`` with every broken rule by name. Rules that read the map are skipped if the map itself is
    broken.
    """
    instance = with_edge_loss(instance)
    for rules in (MAP_RULES, CONTENT_RULES):
        problems = [f"{rule.__name__}: {problem}" for rule in rules for problem in rule(instance, plan)]
        if problems:
            raise PlanError("the plan breaks:\n  " + "\n  ".join(problems))

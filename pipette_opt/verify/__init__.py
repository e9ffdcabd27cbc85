"""
Independent checks of a finished plan, in plain Python.

The checks use neither the solver's problem nor its solution. A plan that passes therefore agrees with the given data,
whatever produced it. Each rule is a function whose docstring states the rule; it yields a text with the numbers for
each violation.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from pipette_opt.base.errors import InfeasibleError, InputError, PlanError
from pipette_opt.parallel import ParallelConfig
from pipette_opt.plans.plan import Plan
from pipette_opt.specs import Instance
from pipette_opt.verify.alternatives import alternatives_are_reproduced
from pipette_opt.verify.certificate import (
    SpaceRule,
    bound_holds,
    joint_model_bounds,
    notes_are_reproduced,
    other_numbers_are_bounded,
    plan_is_searched,
    proof_adds_up,
    scope_is_reproduced,
)
from pipette_opt.verify.common import Rule
from pipette_opt.verify.exchanges import no_exchange_is_faster
from pipette_opt.verify.memory import memory_is_reproduced
from pipette_opt.verify.preference import imbalance_is_reproduced, preference_holds, risks_are_reproduced
from pipette_opt.verify.regret_rule import regret_holds
from pipette_opt.verify.robust_rule import robust_holds
from pipette_opt.verify.rules import (
    certificate_is_consistent,
    configuration_is_legal,
    coordinates_in_rank_order,
    degrees_fill_the_world,
    estimate_adds_up,
    estimate_is_reproduced,
    gaps_are_named,
    hosts_exist,
    links_were_measured,
    memory_fits,
    objective_is_reproduced,
    one_rank_per_gpu,
    settings_are_the_given,
    torchrun_ranks_contiguous,
)
from pipette_opt.verify.space import Searched, recorded_space
from pipette_opt.verify.target import target_is_reproduced
from pipette_opt.verify.trust import on_trust
from pipette_opt.verify.unused import unused_hosts_are_reproduced

__all__ = ["RULES", "Checked", "recorded_space", "verify"]

MAP_RULES: tuple[Rule, ...] = (degrees_fill_the_world, hosts_exist, one_rank_per_gpu)
"""Rules on the rank map, checked first, because all other rules read the map."""

CONTENT_RULES: tuple[Rule, ...] = (
    coordinates_in_rank_order,
    torchrun_ranks_contiguous,
    settings_are_the_given,
    gaps_are_named,
    configuration_is_legal,
    links_were_measured,
    memory_fits,
    memory_is_reproduced,
    certificate_is_consistent,
    estimate_adds_up,
    estimate_is_reproduced,
    objective_is_reproduced,
    target_is_reproduced,
    preference_holds,
    alternatives_are_reproduced,
    risks_are_reproduced,
    imbalance_is_reproduced,
    unused_hosts_are_reproduced,
)
"""Rules on the plan itself that read the rank map."""

SPACE_RULES: tuple[SpaceRule, ...] = (
    plan_is_searched,
    scope_is_reproduced,
    notes_are_reproduced,
    proof_adds_up,
    joint_model_bounds,
    other_numbers_are_bounded,
    bound_holds,
    no_exchange_is_faster,
    regret_holds,
    robust_holds,
)
"""Rules that need the search space of the plan enumerated again."""

RULES: tuple[Rule | SpaceRule, ...] = (*MAP_RULES, *CONTENT_RULES, *SPACE_RULES)
"""All rules, in the order of the checks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Checked:
    """
    Result of a verification that passed.

    Parameters
    ----------
    num_configurations
        Number of configurations that are legal and fit into memory.
    open_configs
        Configurations whose lower bound only the search proves. The lower bounds of all others are verified: over the
        fastest links, or by simulating all of their few placements.
    on_trust
        Figures of the plan that no rule derives again, in words.
    """

    rules: tuple[str, ...]
    num_configurations: int
    open_configs: tuple[ParallelConfig, ...]
    on_trust: tuple[str, ...] = ()

    @property
    def num_bounded(self) -> int:
        """Number of configurations whose lower bound is verified without the search."""
        return self.num_configurations - len(self.open_configs)


def verify(instance: Instance, plan: Plan, also: Sequence[str] = ()) -> Checked:
    """
    Check a plan against the given data, and its certificate against the search space.

    Raises ``PlanError`` with every broken rule by name. If a rule on the rank map is broken, rules that read the map
    are skipped.

    Parameters
    ----------
    also
        Broken rules found elsewhere, to report with the others.
    """
    problems = [*broken_rules(instance, plan), *also]
    searched = None
    try:
        searched = Searched.again(instance, plan)
    except (InputError, InfeasibleError) as error:
        problems.append(f"{plan_is_searched.__name__}: {error}")
    if searched is not None:
        problems += [f"{rule.__name__}: {problem}" for rule in SPACE_RULES for problem in rule(searched, plan)]
    if problems or searched is None:
        raise PlanError("the plan breaks:\n  " + "\n  ".join(problems))
    return Checked(
        rules=tuple(rule.__name__ for rule in RULES),
        num_configurations=len(searched.memory.fitting),
        open_configs=searched.bounded.open_configs,
        on_trust=on_trust(plan),
    )


def verify_content(instance: Instance, plan: Plan) -> None:
    """
    Check the rules on the plan itself, without enumerating the search space; raises ``PlanError`` as :func:`verify`
    does.

    ``solve`` checks its own plan this way, because it has just enumerated and bounded that space.
    """
    problems = broken_rules(instance, plan)
    if problems:
        raise PlanError("the plan breaks:\n  " + "\n  ".join(problems))


def broken_rules(instance: Instance, plan: Plan) -> list[str]:
    """Return a text for every broken rule on the plan itself: name of the rule, problem, numbers."""
    for rules in (MAP_RULES, CONTENT_RULES):
        problems = [f"{rule.__name__}: {problem}" for rule in rules for problem in rule(instance, plan)]
        if problems:
            return problems
    return []

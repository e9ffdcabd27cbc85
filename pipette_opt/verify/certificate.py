"""Rules on the certificate, against the searched space enumerated again."""

from collections.abc import Callable, Iterator

from pipette_opt.plan import Plan
from pipette_opt.verify.space import Searched

SpaceRule = Callable[[Searched, Plan], Iterator[str]]
"""As a rule on the plan; it is given what was searched, enumerated again."""


def plan_is_searched(searched: Searched, plan: Plan) -> Iterator[str]:
    """The plan's configuration and the alternatives' are of the searched space, and fit; as many fit as is said."""
    fitting = {one.config for one in searched.memory.fitting}
    named = {"parallel": plan.config} | {f"alternatives[{i}]": one.config for i, one in enumerate(plan.alternatives)}
    for name, config in named.items():
        if config not in fitting:
            yield f"{name} ({config.label()}) is not among the {len(fitting)} that are legal and fit"
    if plan.certificate.num_candidates != len(fitting):
        yield f"num_candidates is {plan.certificate.num_candidates}, {len(fitting)} are legal and fit"


def bound_holds(searched: Searched, plan: Plan) -> Iterator[str]:
    """No configuration whose placements can all be judged has one that is faster than the certificate's bound."""
    for config, seconds in searched.bounded.faster:
        yield f"lower_bound_s is {plan.certificate.lower_bound_s}, {config.label()} has a placement of {seconds} s"

"""Tables of the page for what there is beside the plan: the next best, and the trade between time and risk."""

from xml.etree.ElementTree import Element

from pipette_opt.base.units import gib
from pipette_opt.plans.plan import Alternative, Plan
from pipette_opt.report.cells import risk, seconds_text
from pipette_opt.report.page.markup import Child, number, table


def alternatives_table(plan: Plan) -> Element:
    """Return the next best plans, each with what its kind takes at least."""
    headers = ("configuration", "iteration >", "out of memory >", "its kind at least >", "why not")
    rows = []
    for place, one in enumerate(plan.alternatives):
        at = f"alternatives.{place}"
        least = one.lower_bound_s
        said = "" if least is None else f"{seconds_text(least)}{', proven' if one.is_proven else ''}"
        rows.append((*_plan_cells(one, at), number(least, said, f"{at}.lower_bound_s"), one.reason))
    return table("The next best plans", headers, rows)


def risks_table(plan: Plan) -> Element:
    """Return the fastest plan found for each accepted risk of running out of memory."""
    headers = ("risk at most", "configuration", "iteration >", "out of memory >", "GiB at most >", "of >")
    rows = []
    for place, one in enumerate(plan.risks):
        at = f"risks.{place}"
        sizes = ((one.upper_bytes, "upper_gib"), (one.capacity_bytes, "capacity_gib"))
        rows.append(
            (
                f"{one.max_oom_risk:.2%}",
                *_plan_cells(one.plan, f"{at}.plan"),
                *(number(gib(size), f"{gib(size):.1f}", f"{at}.{name}") for size, name in sizes),
            )
        )
    return table("The fastest plans by risk of running out of memory", headers, rows)


def _plan_cells(one: Alternative, at: str) -> tuple[Child, Child, Child]:
    """Label, simulated time and risk of a plan whose place in the plan's file is ``at``."""
    seconds, chance = one.iteration_time_s, one.oom_probability
    said = "" if chance is None else risk(chance, at_most=one.oom_probability_at_most)
    return (
        one.config.label(),
        number(seconds, seconds_text(seconds), f"{at}.iteration_time_s"),
        number(chance, said, f"{at}.oom_probability"),
    )

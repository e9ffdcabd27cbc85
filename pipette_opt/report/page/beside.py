"""Tables of other plans on the page: the next best, and the fastest for each accepted risk."""

from xml.etree.ElementTree import Element

from pipette_opt.plans.plan import Alternative, Plan
from pipette_opt.plans.verdict import risk_words
from pipette_opt.report.beside_tables import BEST_OF_KIND, usual_words
from pipette_opt.report.page.markup import Child, element, expected, number, table


def alternatives_table(plan: Plan) -> Element:
    """Return the table of the next best plans, each with a lower bound for plans with such degrees."""
    headers = ("configuration", "iteration >", "risk >", "plans of its kind at least >", "why not")
    rows: list[tuple[Child, ...]] = []
    for place, alternative in enumerate(plan.alternatives):
        at = f"alternatives.{place}"
        least = alternative.lower_bound_s
        bound = element(
            "span",
            expected(plan.estimate, least, f"{at}.lower_bound_s"),
            f", {BEST_OF_KIND}" if alternative.is_proven else None,
        )
        rows.append((*_plan_cells(plan, alternative, at), bound, alternative.reason))
    if (named := usual_words(plan)) is not None:
        cells = [_plan_cells(plan, other, at) for at, role, other in _placed(plan) if role == "usual"]
        _, seconds, chance = cells[0] if cells else ("", "", "")
        rows.append((named[0], seconds, chance, "", named[1]))
    return table("The next best plans", headers, rows)


def risks_table(plan: Plan) -> Element:
    """Return the table of the fastest plan found for each accepted risk of running out of memory."""
    headers = ("accepted", "configuration", "iteration >", "risk >")
    cells = [_plan_cells(plan, other, at) for at, role, other in _placed(plan) if role == "less risk"]
    rows = [(f"{100 * choice.max_oom_risk:.2f} %", *found) for choice, found in zip(plan.risks, cells, strict=True)]
    return table("The fastest plans by accepted risk of running out of memory", headers, rows)


def _placed(plan: Plan) -> list[tuple[str, str, Alternative]]:
    """Return all other plans, each with its path in the plan's file and its role."""
    return [(f"alternatives.{place}", role, other) for place, (role, other) in enumerate(plan.others())]


def _plan_cells(plan: Plan, alternative: Alternative, at: str) -> tuple[Child, Child, Child]:
    """Return label, expected time and risk of another plan; ``at`` is its path in the plan's file."""
    chance = alternative.oom_probability
    chance_text = "" if chance is None else risk_words(chance)
    return (
        alternative.config.label(),
        expected(plan.estimate, alternative.iteration_time_s, f"{at}.iteration_time_s"),
        number(chance, chance_text, f"{at}.oom_probability"),
    )

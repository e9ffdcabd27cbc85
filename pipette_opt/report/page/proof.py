"""Panels of the proof: the gap, the search space, and the reasons that excluded configurations."""

from typing import TYPE_CHECKING
from xml.etree.ElementTree import Element

from pipette_opt.base.units import counted, percent_above, seconds_text, short_seconds
from pipette_opt.plans.plan import Plan
from pipette_opt.plans.tables import STEPS, ruled_out
from pipette_opt.report.beside_tables import fastest_words
from pipette_opt.report.cells import clock_words
from pipette_opt.report.page.figures import LINES, figure, wrapped
from pipette_opt.report.page.markup import Panel, as_html, bullets, element, html_tables, number, paragraph
from pipette_opt.report.proof_tables import certificate, chosen, joint_model_text, searched, sizes

if TYPE_CHECKING:
    from plotly.graph_objects import Figure


def certificate_panel(plan: Plan) -> Panel:
    """Panel of the certificate: how far the plan is from the best of those searched, and what was not searched."""
    proof, estimate = plan.certificate, plan.estimate
    simulated = number(estimate.iteration_time_s, seconds_text(estimate.iteration_time_s), "estimate.iteration_time_s")
    checked = number(proof.num_candidates, counted(proof.num_candidates, "configuration"), "certificate.num_candidates")
    least = short_seconds(estimate.expected_of(proof.lower_bound_s))
    left, were = len(proof.not_searched), "was" if len(proof.not_searched) == 1 else "were"
    not_searched = f" {counted(left, 'choice')} {were} not searched." if left else ""
    details: list[Element] = [
        as_html(certificate(proof, estimate)),
        paragraph(f"{clock_words(estimate)} The simulated iteration takes ", simulated, "."),
    ]
    if proof.joint_model is not None:
        details.append(paragraph(f"{joint_model_text(proof.joint_model, estimate)}."))
    details += html_tables(searched(proof))
    if proof.not_searched:
        details += [element("h3", "Not searched"), bullets(proof.not_searched)]
    body = [
        paragraph(element("strong", _lead(plan))),
        paragraph("None of ", checked, f" that run and fit takes less than {least} per iteration.{not_searched}"),
        *html_tables(chosen(plan), sizes(plan)),
    ]
    return Panel(name="certificate", title="Certificate", body=body, details=details)


def _lead(plan: Plan) -> str:
    """Return a sentence that says how far the plan is from the fastest of those searched."""
    proof, fastest = plan.certificate, fastest_words(plan)
    if proof.status == "OPTIMAL":
        than = f" than the fastest found: {fastest}" if fastest else ""
        return f"The search is finished: no plan searched is faster{than}."
    if proof.shown_gap >= 1:
        return "The search ended early: nothing is known about how much faster other plans may be."
    longer = percent_above(proof.shown_gap)
    return f"The search ended early: the plan takes at most {longer} longer than the fastest of those searched."


def funnel_panel(plan: Plan) -> Panel:
    """Panel with the configurations that are left after each step of the proof, and the reasons that exclude others."""
    proof = plan.certificate
    total = sum(part.configurations for part in proof.proof)
    steps, left = [("considered", total)], total
    for part in proof.proof:
        _, left_words = STEPS.get(part.by, (part.by, f"left after {part.by}"))
        left -= part.configurations
        steps.append((left_words, left))
    checked = number(proof.num_candidates, counted(proof.num_candidates, "configuration"), "certificate.num_candidates")
    if not proof.proof:
        return Panel(
            name="search",
            title="Search",
            body=[paragraph(checked, " run and fit; the reasons for the others are not recorded in this plan.")],
        )
    return Panel(
        name="search",
        title="Search",
        body=[
            paragraph(
                f"{total:,} configurations were considered; ",
                checked,
                " run, fit and recompute no more than they must. Lower bounds on the time rule most of them out; the "
                "others were placed on the hosts and timed.",
            )
        ],
        figure=_funnel(steps[:-1]),
        shows="Configurations left after each step, on a scale of powers of ten.",
        details=[as_html(ruled_out(proof, plan.estimate))],
    )


def _funnel(steps: list[tuple[str, int]]) -> "Figure":
    from plotly.graph_objects import Bar

    names = [*(wrapped(name) for name, _ in steps), "the plan"]
    counts = [*(count for _, count in steps), 1]
    bars = Bar(
        x=counts,
        y=names,
        orientation="h",
        text=[f"{count:,}" for count in counts],
        textposition="auto",
        marker={"color": ["#0072b2"] * len(steps) + ["#009e73"]},
        hovertemplate="%{x:,} configurations<extra></extra>",
        cliponaxis=False,
    )
    return figure(
        bars,
        height=80 + 34 * len(names),
        yaxis={"autorange": "reversed", "automargin": True},
        xaxis={"type": "log", "range": [-0.3, None], "gridcolor": LINES, "dtick": 1, "automargin": True},
        showlegend=False,
    )

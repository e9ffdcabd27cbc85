"""Panels of the proof: the gap, the search space, and the reasons that excluded configurations."""

from typing import TYPE_CHECKING
from xml.etree.ElementTree import Element

from pipette_opt.base.units import counted, percent_above
from pipette_opt.plans.plan import Certificate, Plan
from pipette_opt.report.beside_tables import fastest_words
from pipette_opt.report.cells import clock_words, seconds_text, words
from pipette_opt.report.page.figures import LINES, figure
from pipette_opt.report.page.markup import Panel, bullets, element, expected, number, paragraph, table
from pipette_opt.report.proof_tables import joint_model_text

if TYPE_CHECKING:
    from plotly.graph_objects import Figure


def certificate_panel(plan: Plan) -> Panel:
    """Panel of the certificate: the gap, and the search space that it covers."""
    proof, estimate = plan.certificate, plan.estimate
    time, least, placement = (
        (name, expected(estimate, getattr(proof, field), f"certificate.{field}"), meaning)
        for name, field, meaning in (
            ("iteration time", "objective_s", "of the plan: the critical path of the real schedule"),
            ("at least", "lower_bound_s", "no plan searched is faster"),
            ("placement", "placement_dependent_s", "of the iteration time depends on it"),
        )
    )
    gaps = (
        (name, number(getattr(proof, field), percent_above(getattr(proof, field)), f"certificate.{field}"), meaning)
        for name, field, meaning in _gaps(proof)
    )
    took = number(proof.wall_time_s, f"{proof.wall_time_s:.1f} s", "certificate.wall_time_s")
    rows = [time, least, *gaps, placement, ("search", took, "until the plan was finished")]
    simulated = number(estimate.iteration_time_s, seconds_text(estimate.iteration_time_s), "estimate.iteration_time_s")
    fastest = fastest_words(plan)
    than = f" than the fastest found: {fastest}" if fastest else ""
    lead = (
        f"The search is finished: no plan of the searched space is faster{than}."
        if proof.status == "OPTIMAL"
        else f"The search ended before the gap was closed: a plan of the searched space may be faster{than}."
    )
    body = [
        paragraph(element("strong", lead)),
        table(f"Certificate: {proof.status}", ("name", "figure >", "meaning"), rows),
        paragraph(f"{clock_words(estimate)} The simulated iteration takes ", simulated, "."),
        *_chosen(plan),
    ]
    if proof.joint_model is not None:
        body.append(paragraph(f"{joint_model_text(proof.joint_model, estimate)}."))
    if proof.not_searched:
        body += [element("h3", "Not searched"), bullets(proof.not_searched)]
    values = [(words(name), ", ".join(map(_value, given))) for name, given in proof.searched.items()]
    searched = table("What was searched", ("dimension", "values"), values)
    return Panel(name="certificate", title="Certificate", body=body, tables=[searched] if values else [])


def _gaps(proof: Certificate) -> list[tuple[str, str, str]]:
    """Return name, field and meaning of each gap: of the plan, and of the fastest plan found if it is another."""
    where = "above the best of the searched space"
    if proof.fastest_s is None:
        return [("at most", "gap", where)]
    return [
        ("at most", "shown_gap", where),
        ("fastest found", "gap", "above it at most; that plan is less plain"),
    ]


def _chosen(plan: Plan) -> list[Element]:
    """Return paragraphs and a table for an objective other than the time; empty for the time."""
    found, robust, target = [], plan.certificate.robust, plan.target
    if robust is not None:
        at = "certificate.robust"
        found.append(
            paragraph(
                "Chosen by the upper end of the band of its time: ",
                number(robust.value_s, seconds_text(robust.value_s), f"{at}.value_s"),
                ", no plan has less than ",
                number(robust.lower_bound_s, seconds_text(robust.lower_bound_s), f"{at}.lower_bound_s"),
                ": the least found is at most ",
                number(robust.gap, percent_above(robust.gap), f"{at}.gap"),
                " above the best of the searched space.",
            )
        )
    if target is not None:
        rows = []
        for place, size in enumerate(target.sizes):
            at = f"objective.sizes.{place}"
            seconds = (
                expected(plan.estimate, getattr(size, field), f"{at}.{field}")
                for field in ("iteration_time_s", "lower_bound_s")
            )
            value = number(size.value, _value_text(plan, size.value), f"{at}.value")
            rows.append((f"{size.num_gpus:,}", size.status, *seconds, value))
        found += [
            paragraph(
                f"Chosen for {words(target.objective)}: ",
                number(target.value, _value_text(plan, target.value), "objective.value"),
                f" {target.unit}, the bound is ",
                number(target.bound, _value_text(plan, target.bound), "objective.bound"),
                ": it is ",
                number(target.gap, target.distance, "objective.gap"),
                ".",
            ),
            table(
                f"Numbers of GPUs; values are {target.unit}",
                ("GPUs", "status", "iteration >", "at least >", "value >"),
                rows,
            ),
        ]
    return found


def _value_text(plan: Plan, value: float | None) -> str:
    """Format a value of the plan's objective, at the expected time."""
    return "-" if value is None or plan.target is None else f"{plan.target.expected_of(value, plan.estimate):,.4g}"


def _value(value: object) -> str:
    return (
        "none"
        if value is None
        else {True: "yes", False: "no"}.get(value, str(value))
        if isinstance(value, bool)
        else str(value)
    )


def funnel_panel(plan: Plan) -> Panel:
    """Panel with the configurations that reach each step of the proof, and the reasons that exclude others."""
    proof = plan.certificate
    total = sum(part.configurations for part in proof.proof)
    rows, steps, left = [], [], total
    for number_, part in enumerate(proof.proof):
        steps.append((part.by, left))
        left -= part.configurations
        at = f"certificate.proof.{number_}"
        named = part.named or (None,)
        for place, reason in enumerate(named):
            first = place == 0
            bound = expected(plan.estimate, part.bound_s, f"{at}.bound_s") if first and part.bound_s else ""
            count = reason.configurations if reason else part.configurations
            field = f"{at}.named.{place}.configurations" if reason else f"{at}.configurations"
            same = reason is None or reason.name == part.by
            rows.append(
                (
                    part.by,
                    "" if reason is None or same else reason.name,
                    number(count, f"{count:,}", field),
                    bound,
                    reason.example if reason else "",
                )
            )
    checked = number(proof.num_candidates, counted(proof.num_candidates, "configuration"), "certificate.num_candidates")
    if not steps:
        return Panel(
            name="search",
            title="Search",
            body=[paragraph(checked, " fit; the reasons for the others are not recorded in this plan.")],
        )
    return Panel(
        name="search",
        title="Search",
        body=[
            paragraph(
                f"{total:,} configurations were considered, ",
                checked,
                " are legal, fit and recompute no more than they must. Each step hands on what it cannot rule out; "
                "the last one compares what is left.",
            )
        ],
        figure=_funnel(steps),
        shows="Configurations that reach each step, on a scale of powers of ten.",
        tables=[
            table(
                "Configurations by the reason that ruled them out",
                ("ruled out by", "name", "configurations >", "takes at least >", "for example"),
                rows,
            )
        ],
    )


def _funnel(steps: list[tuple[str, int]]) -> "Figure":
    from plotly.graph_objects import Bar

    names = [*(name for name, _ in steps), "the plan"]
    counts = [*(count for _, count in steps), 1]
    bars = Bar(
        x=counts,
        y=names,
        orientation="h",
        text=[f"{count:,}" for count in counts],
        textposition="auto",
        marker={"color": ["#0072b2"] * len(steps) + ["#009e73"]},
        hovertemplate="%{y}: %{x:,} configurations arrive<extra></extra>",
        cliponaxis=False,
    )
    return figure(
        bars,
        height=60 + 34 * len(names),
        yaxis={"autorange": "reversed", "automargin": True},
        xaxis={"type": "log", "range": [-0.3, None], "gridcolor": LINES, "dtick": 1, "automargin": True},
        showlegend=False,
    )

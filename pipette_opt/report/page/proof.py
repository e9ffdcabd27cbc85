"""Panels of the proof: the gap, the search space, and the reasons that excluded configurations."""

from typing import TYPE_CHECKING
from xml.etree.ElementTree import Element

from pipette_opt.base.units import counted, percent_above, three_digits
from pipette_opt.plans.plan import Certificate, Plan
from pipette_opt.report.beside_tables import fastest_words
from pipette_opt.report.cells import clock_words, seconds_text, words
from pipette_opt.report.page.figures import LINES, figure, wrapped
from pipette_opt.report.page.markup import Panel, bullets, element, expected, number, paragraph, table
from pipette_opt.report.proof_tables import joint_model_text

if TYPE_CHECKING:
    from plotly.graph_objects import Figure


def certificate_panel(plan: Plan) -> Panel:
    """Panel of the certificate: how far the plan is from the best of those searched, and what was not searched."""
    proof, estimate = plan.certificate, plan.estimate
    time, least, placement = (
        (name, expected(estimate, getattr(proof, field), f"certificate.{field}"), meaning)
        for name, field, meaning in (
            ("iteration time", "objective_s", "of the plan"),
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
    searched = number(
        proof.num_candidates, counted(proof.num_candidates, "configuration"), "certificate.num_candidates"
    )
    least_s = three_digits(estimate.expected_of(proof.lower_bound_s))
    left, were = len(proof.not_searched), "was" if len(proof.not_searched) == 1 else "were"
    not_searched = f" {counted(left, 'choice')} {were} not searched." if left else ""
    details: list[Element] = [
        table(f"Certificate: {proof.status}", ("name", "figure >", "meaning"), rows),
        paragraph(f"{clock_words(estimate)} The simulated iteration takes ", simulated, "."),
    ]
    if proof.joint_model is not None:
        details.append(paragraph(f"{joint_model_text(proof.joint_model, estimate)}."))
    if proof.searched:
        values = [(words(name), ", ".join(map(_value, given))) for name, given in proof.searched.items()]
        details.append(table("What was searched", ("dimension", "values"), values))
    if proof.not_searched:
        details += [element("h3", "Not searched"), bullets(proof.not_searched)]
    body = [
        paragraph(element("strong", _lead(plan))),
        paragraph("None of ", searched, f" that run and fit takes less than {least_s} s per iteration.{not_searched}"),
        *_chosen(plan),
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


STEPS = {
    "legality rules": ("the launcher's rules", "accepted by the launcher"),
    "memory": ("memory", "fit in memory"),
    "fewer recomputed layers": ("fewer recomputed layers fit", "recompute no more than they must"),
    "less on the host": ("less on the host fits", "offload no more than they must"),
    "tensor overlap": ("tensor overlap fits", "overlap tensor messages if they can"),
    "no placement": ("no placement on the hosts", "fit on the hosts"),
    "work alone": ("compute time", "could win if messages took no time"),
    "best links": ("least time over the fastest links", "could win over the fastest links"),
    "judge over best links": ("full schedule over the fastest links", "could win with the full schedule"),
    "any layers": ("bound for any split of the layers", "could win with any split of the layers"),
    "search": ("placement on the hosts", "the plan"),
}
"""Words for each step of the proof: what rules configurations out, and what is true of those that are left."""


def funnel_panel(plan: Plan) -> Panel:
    """Panel with the configurations that are left after each step of the proof, and the reasons that exclude others."""
    proof = plan.certificate
    total = sum(part.configurations for part in proof.proof)
    rows, steps, left = [], [("considered", total)], total
    for number_, part in enumerate(proof.proof):
        by, left_words = STEPS.get(part.by, (part.by, f"left after {part.by}"))
        left -= part.configurations
        steps.append((left_words, left))
        at = f"certificate.proof.{number_}"
        bound = expected(plan.estimate, part.bound_s, f"{at}.bound_s") if part.bound_s else ""
        if not part.named:
            count = number(part.configurations, f"{part.configurations:,}", f"{at}.configurations")
            rows.append((by, count, bound, ""))
        for place, reason in enumerate(part.named):
            field = f"{at}.named.{place}.configurations"
            count = number(reason.configurations, f"{reason.configurations:,}", field)
            rows.append((by, count, "" if place else bound, reason.example))
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
        details=[
            table(
                "Configurations by the reason that ruled them out",
                ("ruled out by", "configurations >", "takes at least >", "for example"),
                rows,
            )
        ],
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

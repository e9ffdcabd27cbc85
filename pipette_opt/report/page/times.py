"""Panels of the time by cause, for plan, critical path and next best plans, and of the sensitivity."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from pipette_opt.base.table import Table
from pipette_opt.base.units import chosen_percent, percent, short_seconds, three_digits, words
from pipette_opt.plans.plan import Plan
from pipette_opt.plans.tables import alternatives, expected_text, times
from pipette_opt.report.beside_tables import fastest_line, imbalance_line, risks
from pipette_opt.report.page.figures import BAD, CAUSES, INK, OTHER_COLOUR, figure, wrapped
from pipette_opt.report.page.markup import Panel, as_html, html_tables, number, paragraph
from pipette_opt.report.page.sensitivity import Changed

if TYPE_CHECKING:
    from plotly.graph_objects import Figure


def time_panel(plan: Plan) -> Panel:
    """Panel of expected seconds by cause, for the plan and the next best plans."""
    estimate = plan.estimate
    bars: list[tuple[str, Mapping[str, float]]] = [("this plan", estimate.breakdown)]
    if estimate.critical_path:
        bars.append(("its critical path", estimate.critical_path))
    next_best = [other for other in plan.alternatives if other.breakdown]
    bars += [(wrapped(other.config.label()), other.breakdown) for other in next_best]
    causes = list(dict.fromkeys(cause for _, parts in bars for cause in parts))
    gone = max(estimate.breakdown, key=lambda cause: estimate.breakdown[cause], default="of unknown cause")
    body = [
        paragraph(
            "An iteration is expected to take ",
            number(estimate.expected_s, short_seconds(estimate.expected_s), "estimate.expected_s"),
            f", most of it {words(gone)}. ",
            _band(plan),
        ),
        *(paragraph(line) for line in (fastest_line(plan), imbalance_line(plan)) if line),
    ]
    return Panel(
        name="time",
        title="Time",
        body=body,
        figure=_stacked(plan, bars, causes),
        shows="Expected seconds of an iteration by cause: the mean of all ranks of this plan, its critical path (the "
        "chain of work and messages that ends with the iteration)"
        + (", and the next best plans." if next_best else "."),
        details=html_tables(times(estimate, plan.alternatives), alternatives(plan), risks(plan)),
    )


def _band(plan: Plan) -> str:
    band = plan.estimate.band
    if band is None:
        return ""
    ends = f"{three_digits(band.low_s)} to {three_digits(band.high_s)} s"
    return f"{chosen_percent(band.share)} of such jobs take {ends}, by {band.source}."


def _stacked(plan: Plan, bars: Sequence[tuple[str, Mapping[str, float]]], causes: Sequence[str]) -> "Figure":
    from plotly.graph_objects import Bar

    names = [name for name, _ in bars]
    traces = [
        Bar(
            name=words(cause),
            y=names,
            x=[plan.estimate.expected_of(parts.get(cause, 0.0)) for _, parts in bars],
            orientation="h",
            marker={"color": CAUSES.get(cause, OTHER_COLOUR), "line": {"width": 0}},
            hovertemplate=f"{words(cause)}: %{{x:.3g}} s<extra>%{{y}}</extra>",
        )
        for cause in causes
    ]
    return figure(
        *traces,
        height=130 + max(52, *(20 + 16 * name.count("<br>") for name in names)) * len(bars),
        barmode="stack",
        bargap=0.35,
        xaxis={"title": {"text": "expected seconds"}, "automargin": True, "gridcolor": "#dfe4ea"},
        yaxis={"autorange": "reversed", "automargin": True},
    )


def sensitivity_panel(plan: Plan, changed: Sequence[Changed]) -> Panel:
    """Panel of the change of the plan's time if an input is 10 % slower or faster."""
    total = plan.estimate.iteration_time_s
    ordered = sorted(changed, key=lambda change: -abs(change.slower_s - change.faster_s))
    rows = [
        (
            change.name,
            expected_text(plan.estimate, change.slower_s),
            percent(change.slower_s / total - 1, "+"),
            expected_text(plan.estimate, change.faster_s),
            percent(change.faster_s / total - 1, "+"),
        )
        for change in ordered
    ]
    most = ordered[0]
    return Panel(
        name="sensitivity",
        title="Sensitivity",
        body=[
            paragraph(
                f"Most depends on the {most.name}: a tenth slower costs {percent(most.slower_s / total - 1, '+')}. "
                "The plan stays as it is; another one may suit the changed machines better."
            )
        ],
        figure=_tornado(ordered, total),
        shows="Change of the iteration time, in per cent, where one input is a tenth slower or a tenth faster.",
        details=[
            as_html(
                Table(
                    title="Expected iteration time with one input changed",
                    headers=("input", "a tenth slower >", "change >", "a tenth faster >", "change >"),
                    rows=rows,
                )
            )
        ],
    )


def _tornado(changed: Sequence[Changed], total: float) -> "Figure":
    from plotly.graph_objects import Bar

    names = [wrapped(change.name) for change in changed]
    traces = [
        Bar(
            name=name,
            y=names,
            x=[100 * (seconds / total - 1) for seconds in values],
            orientation="h",
            marker={"color": colour},
            hovertemplate="%{y}, " + name + ": %{x:+.2f} %<extra></extra>",
        )
        for name, colour, values in (
            ("a tenth slower", BAD, [change.slower_s for change in changed]),
            ("a tenth faster", "#0072b2", [change.faster_s for change in changed]),
        )
    ]
    return figure(
        *traces,
        height=120 + 40 * len(names),
        barmode="overlay",
        xaxis={
            "title": {"text": "change, %"},
            "automargin": True,
            "gridcolor": "#dfe4ea",
            "zerolinecolor": INK,
        },
        yaxis={"autorange": "reversed", "automargin": True},
    )

"""Panel of the schedule of the slowest replica, with strips of time for each stage."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from pipette_opt.base.table import Table
from pipette_opt.base.units import percent
from pipette_opt.costs.placed import placed_times
from pipette_opt.parallel import Placement, microbatches_of
from pipette_opt.plans.plan import Plan
from pipette_opt.report.page.figures import figure
from pipette_opt.report.page.markup import Panel, as_html, element, paragraph
from pipette_opt.simulate.trace import COMPUTE, Event, trace_events
from pipette_opt.specs import Instance

if TYPE_CHECKING:
    from plotly.graph_objects import Figure

MAX_BINS, MAX_CELLS = 2000, 60_000
"""Maximum moments per strip, and maximum cells of all strips, so that the page stays small. Chosen."""

KINDS = {
    "forward": ("#56b4e9", "#0072b2"),
    "backward": ("#f2b84b", "#d98a00"),
    "send": ("#cc79a7",),
    "receive": ("#e8b9d3",),
    "gather": ("#7fc9b3",),
    "reduction": ("#d55e00",),
    "optimizer": ("#009e73",),
}
"""Colours of each kind of event; forward and backward passes alternate colours by micro-batch."""

IDLE = "#ffffff"


def schedule_panel(plan: Plan, instance: Instance, placement: Placement) -> Panel:
    """Panel with two strips for each stage: computation, and messages."""
    times = placed_times(instance, plan.config, placement)
    rounds = microbatches_of(instance.training, plan.config)
    expected, total = plan.estimate.expected_of, plan.estimate.expected_s
    events = [
        event._replace(start_s=expected(event.start_s), end_s=expected(event.end_s))
        for event in trace_events(times, rounds, instance.p2p)
    ]
    kinds = [kind for kind in KINDS if any(event.category == kind for event in events)]
    busy = {
        (stage, kind): sum(
            event.end_s - event.start_s for event in events if (event.stage, event.category) == (stage, kind)
        )
        for stage in range(plan.config.pipeline_model_parallel_size)
        for kind in kinds
    }
    rows = []
    for stage in range(plan.config.pipeline_model_parallel_size):
        compute = sum(busy.get((stage, kind), 0.0) for kind in ("forward", "backward"))
        rows.append(
            (
                f"stage {stage}",
                *(f"{busy[stage, kind]:.4f}" for kind in kinds),
                percent(max(0.0, 1 - compute / total)),
            )
        )
    per = "a micro-batch" if plan.config.num_chunks == 1 else "a micro-batch of a model chunk"
    return Panel(
        name="schedule",
        title="Schedule",
        body=[
            paragraph(
                f"The slowest replica, {rounds:,} micro-batches: shades take turns with {per}. ",
                element("code", "pipette-opt estimate plan.json --trace trace.json"),
                " writes every event for Perfetto.",
            )
        ],
        figure=_strips(events, plan.config.pipeline_model_parallel_size, total),
        shows="When each stage of the slowest replica computes, and when its messages are on the way.",
        details=[
            as_html(
                Table(
                    title="Expected seconds of each stage by kind; messages may run beside the computation",
                    headers=("stage", *(f"{kind} >" for kind in kinds), "no computation >"),
                    rows=rows,
                )
            )
        ],
    )


def _strips(events: Sequence[Event], stages: int, total: float) -> "Figure":
    from plotly.graph_objects import Heatmap, Scatter

    bins = min(MAX_BINS, MAX_CELLS // (2 * stages))
    colours = [IDLE, *(colour for shades in KINDS.values() for colour in shades)]
    first = {kind: 1 + sum(len(shades) for shades in list(KINDS.values())[:place]) for place, kind in enumerate(KINDS)}
    codes = np.zeros((2 * stages, bins), dtype=np.uint8)
    texts = [["idle"] * bins for _ in range(2 * stages)]
    for event in sorted(events, key=lambda event: event.start_s):
        network = event.row != COMPUTE
        row, kind = 2 * event.stage + network, event.category.split(" ")[0]
        start, end = (round(seconds / total * bins) for seconds in (event.start_s, event.end_s))
        end = min(max(end, start + network), bins)
        shade = (event.microbatch or 0) % len(KINDS[kind])
        codes[row, start:end] = first[kind] + shade
        texts[row][start:end] = [event.name] * max(end - start, 0)
    step = 1.0 / len(colours)
    scale = [[edge, colour] for place, colour in enumerate(colours) for edge in (place * step, (place + 1) * step)]
    names = [name for stage in range(stages) for name in (f"stage {stage}", f"messages {stage}")]
    strips = Heatmap(
        z=codes,
        text=texts,
        x0=total / bins / 2,
        dx=total / bins,
        y=names,
        zmin=-0.5,
        zmax=len(colours) - 0.5,
        colorscale=scale,
        showscale=False,
        ygap=1,
        hovertemplate="%{y}, %{x:.3g} s: %{text}<extra></extra>",
    )
    legend = [
        Scatter(
            x=[None],
            y=[names[0]],
            mode="markers",
            name=kind,
            marker={"symbol": "square", "size": 11, "color": shades[-1]},
        )
        for kind, shades in KINDS.items()
        if any(event.category.startswith(kind) for event in events)
    ]
    return figure(
        strips,
        *legend,
        height=min(130 + 36 * stages, 900),
        xaxis={"title": {"text": "expected seconds"}, "range": [0.0, total], "automargin": True, "showgrid": False},
        yaxis={
            "autorange": "reversed",
            "automargin": True,
            "type": "category",
            "showgrid": False,
            "tickvals": names[::2],
            "ticktext": [f"{stage}" for stage in range(stages)],
            "title": {"text": "pipeline stage"},
        },
    )

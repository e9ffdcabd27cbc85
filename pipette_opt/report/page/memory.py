"""Panel of the memory of each stage: components, range over stacks, and capacity of the GPU."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from pipette_opt.base.units import gib
from pipette_opt.plans.plan import Plan, StageMemory
from pipette_opt.plans.predicted import fullness
from pipette_opt.plans.tables import components, nine_in_ten, stages
from pipette_opt.plans.verdict import risk_words
from pipette_opt.report.page.figures import BAD, COMPONENTS, INK, OTHER_COLOUR, figure
from pipette_opt.report.page.markup import Panel, html_tables, number, paragraph

if TYPE_CHECKING:
    from plotly.graph_objects import Figure


def memory_panel(plan: Plan) -> Panel:
    """Panel of the peak memory of a GPU in each stage, by component."""
    memory = plan.memory
    if not memory:
        return Panel(name="memory", title="Memory", body=[paragraph("Memory was not predicted for this plan.")])
    names = list(dict.fromkeys(name for stage in memory for name in stage.components))
    fullest = max(memory, key=fullness)
    at = f"memory.{memory.index(fullest)}"
    return Panel(
        name="memory",
        title="Memory",
        body=[
            paragraph(
                f"The fullest stage is {fullest.stage}: ",
                number(gib(fullest.predicted_bytes), f"{gib(fullest.predicted_bytes):.1f} GiB", f"{at}.predicted_gib"),
                f" predicted, {nine_in_ten(fullest)} GiB in nine of ten stacks. The GPU has ",
                number(gib(fullest.capacity_bytes), f"{gib(fullest.capacity_bytes):.1f} GiB", f"{at}.capacity_gib"),
                " beside CUDA's context and the driver; the risk of running out of memory is "
                f"{risk_words(fullest.oom_probability)}.",
            )
        ],
        figure=_stages(memory, names),
        shows="GiB of the peak of one GPU of each stage by component; whiskers over nine in ten stacks, a line at the "
        "capacity.",
        details=html_tables(stages(memory), components(memory)),
    )


def _stages(memory: Sequence[StageMemory], names: Sequence[str]) -> "Figure":
    from plotly.graph_objects import Bar, Scatter

    stages = [f"{stage.stage}" for stage in memory]
    traces: list[object] = [
        Bar(
            name=name,
            x=stages,
            y=[gib(stage.components.get(name, 0)) for stage in memory],
            marker={"color": COMPONENTS.get(name, OTHER_COLOUR), "line": {"width": 0}},
            hovertemplate=f"stage %{{x}}, {name}: %{{y:.2f}} GiB<extra></extra>",
        )
        for name in names
    ] or [Bar(name="predicted", x=stages, y=[gib(stage.predicted_bytes) for stage in memory], marker={"color": INK})]
    ends = [stage.range_bytes for stage in memory]
    whiskers = {
        "array": [gib(high - stage.predicted_bytes) for stage, (_, high) in zip(memory, ends, strict=True)],
        "arrayminus": [gib(stage.predicted_bytes - low) for stage, (low, _) in zip(memory, ends, strict=True)],
        "symmetric": False,
        "thickness": 1.5,
    }
    traces.append(
        Scatter(
            name="nine in ten stacks",
            x=stages,
            y=[gib(stage.predicted_bytes) for stage in memory],
            error_y=whiskers,
            mode="markers",
            marker={"symbol": "diamond", "size": 7, "color": INK},
            customdata=[f"{nine_in_ten(stage)} GiB, risk {risk_words(stage.oom_probability)}" for stage in memory],
            hovertemplate="stage %{x}: %{y:.1f} GiB predicted<br>nine in ten stacks: %{customdata}<extra></extra>",
        )
    )
    traces.append(
        Scatter(
            name="capacity",
            x=stages,
            y=[gib(stage.capacity_bytes) for stage in memory],
            mode="lines+markers",
            line={"color": BAD, "width": 2, "shape": "hvh"},
            marker={"symbol": "line-ew-open", "size": 14, "color": BAD, "line": {"width": 2}},
            hovertemplate="stage %{x}, capacity %{y:.2f} GiB<extra></extra>",
        )
    )
    return figure(
        *traces,
        height=400,
        barmode="stack",
        bargap=max(0.25, 1 - 0.1 * len(stages)),
        xaxis={"title": {"text": "pipeline stage"}, "type": "category", "automargin": True},
        yaxis={"title": {"text": "GiB"}, "rangemode": "tozero", "automargin": True, "gridcolor": "#dfe4ea"},
    )

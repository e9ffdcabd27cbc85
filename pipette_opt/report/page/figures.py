"""Common style of the figures: colours for colour-blind readers, and axes that fit a phone."""

from html import escape
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from plotly.graph_objects import Figure

CAUSES = {
    "compute": "#0072b2",
    "waiting_for_launches": "#f0e442",
    "tensor_parallel": "#56b4e9",
    "expert_parallel": "#cc79a7",
    "pipeline_parallel": "#e69f00",
    "data_parallel": "#d55e00",
    "bubble": "#b8bec6",
    "optimizer": "#009e73",
}
"""Colour of each cause of time (Okabe and Ito's palette, https://jfly.uni-koeln.de/color/)."""

COMPONENTS = {
    "weights": "#0072b2",
    "gradients": "#56b4e9",
    "optimizer": "#009e73",
    "activations": "#e69f00",
    "buffers": "#cc79a7",
    "other": "#b8bec6",
}
"""Colour of each component of memory, from the same palette."""

OTHER_COLOUR = "#7a5195"
INK, MARKS, LINES, BAD = "#1d2733", "#4a5665", "#dfe4ea", "#b3261e"

RATES = [[0.0, "#e7695a"], [0.25, "#f0b04a"], [0.5, "#f6efcb"], [0.75, "#b5d5e8"], [1.0, "#5aa2d0"]]
"""Colour scale from slow (0) to fast (1); dark marks are legible on all colours."""

RATES_OF_LEVELS = [[0.0, "#eef5fb"], [1.0, "#5aa2d0"]]
"""Colour scale for clusters with network levels: slow links are not red, because levels differ by design."""

UNMEASURED = "#8a94a0"
"""Colour of links that were not measured."""


def figure(*traces: Any, height: int, **layout: Any) -> "Figure":
    """
    Return a figure as wide as the page; ``height`` is in pixels.

    The legend is below the figure, because the toolbar of plotly covers the upper margin.
    """
    from plotly.graph_objects import Figure

    axis = {"gridcolor": LINES, "zerolinecolor": LINES, "automargin": True, "fixedrange": False}
    found = Figure(data=list(traces))
    found.update_layout(
        template="none",
        height=height,
        margin={"l": 8, "r": 12, "t": 36, "b": 8, "pad": 4},
        font={"family": "system-ui, sans-serif", "size": 12, "color": INK},
        paper_bgcolor="rgba(0,0,0,0)",
        plot_bgcolor="#ffffff",
        legend={"orientation": "h", "yref": "container", "y": 0, "yanchor": "bottom", "x": 0, "traceorder": "normal"},
        modebar={"bgcolor": "#ffffff", "color": MARKS, "activecolor": INK},
        hoverlabel={"align": "left", "font": {"family": "system-ui, sans-serif"}},
        xaxis=axis,
        yaxis=axis,
    )
    found.update_layout(**layout)
    return found


def shown(text: str) -> str:
    """Escape a name for a figure, because plotly reads ``<b>`` as markup."""
    return escape(text, quote=False)


def wrapped(label: str, width: int = 22) -> str:
    """Break the label of a configuration into lines of at most ``width`` characters."""
    lines = [""]
    for word in label.split(" "):
        if lines[-1] and len(lines[-1]) + 1 + len(word) > width:
            lines.append("")
        lines[-1] += (" " if lines[-1] else "") + word
    return "<br>".join(map(shown, lines))

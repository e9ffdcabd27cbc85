"""Panel of the placement: the grid of stages and replicas, and their hosts."""

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from pipette_opt.base.units import counted
from pipette_opt.parallel import RankGrid
from pipette_opt.plans.plan import Plan
from pipette_opt.report.page.figures import INK, figure, shown
from pipette_opt.report.page.markup import Panel, html_tables, paragraph
from pipette_opt.report.tables import hosts_of_stages, unused_hosts
from pipette_opt.specs import ClusterSpec, Instance

if TYPE_CHECKING:
    from plotly.graph_objects import Figure

LISTED = [[0.0, "#eef5fb"], [0.5, "#bcd8ef"], [1.0, "#86b6e0"]]
"""Colour scale for hosts in the order of the cluster's list; dark text is legible on all colours."""

MAX_TICKS = 16
"""Maximum number of stages or replicas with a label each; more labels overlap on a phone. Chosen."""

MAX_LEFT_OUT = 3
"""Maximum number of reasons for unused hosts in the text. Chosen."""

MAX_WRITTEN = 32
"""Maximum number of replicas for which cells show host names. Chosen."""


def placement_panel(plan: Plan, instance: Instance | None = None) -> Panel:
    """
    Panel of the grid of stages and replicas.

    Parameters
    ----------
    instance
        Job of the plan; without it the cells do not name GPU types.
    """
    config = plan.config
    used = len(plan.placement.nodes_used)
    unused = unused_hosts(plan)
    reasons = [f"{hosts.text} ({reason.text})" for hosts, reason in map(unused.shown_cells, unused.rows)]
    more = ["others for other reasons, in the table"] if len(reasons) > MAX_LEFT_OUT else []
    left_out = [paragraph(f"Left out: {', '.join([*reasons[:MAX_LEFT_OUT], *more])}.")] if reasons else []
    return Panel(
        name="placement",
        title="Placement",
        body=[
            paragraph(
                f"{config.world_size:,} ranks on {used:,} of {counted(len(plan.hosts), 'host')}: "
                f"{counted(config.pipeline_model_parallel_size, 'stage')} of "
                f"{counted(config.data_parallel_size, 'replica')}, each of "
                f"{counted(config.tensor_model_parallel_size * config.context_parallel_size, 'rank')}, in the order "
                f"{plan.placement.order}."
            ),
            *left_out,
        ],
        figure=_grid(plan, {} if instance is None else _kinds(instance.cluster)),
        shows="Host of each stage (down) and replica (across); the darker, the later in the cluster's list.",
        details=html_tables(hosts_of_stages(plan), unused),
    )


def _kinds(cluster: ClusterSpec) -> dict[str, str]:
    """Return the GPU type of each host; empty if all hosts have the same type."""
    several = len(cluster.gpu_kinds) > 1
    return {node.host: node.gpu.name for node in cluster.nodes} if several else {}


def _grid(plan: Plan, kinds: Mapping[str, str]) -> "Figure":
    from plotly.graph_objects import Heatmap

    ranks = RankGrid.of(plan.config, plan.placement.order).ranks()
    stages, replicas = ranks.shape[:2]
    cells = ranks.reshape(stages, replicas, -1)
    nodes, gpus = plan.placement.node[cells], plan.placement.local_rank[cells]
    names = [shown(f"{host} {kinds[host]}" if host in kinds else host) for host in plan.hosts]
    hosts = [[", ".join(dict.fromkeys(names[node] for node in cell)) for cell in row] for row in nodes.tolist()]
    hovers = [
        [
            f"{hosts[stage][replica]}<br>ranks {runs_of(cells[stage, replica])}<br>GPUs {runs_of(gpus[stage, replica])}"
            for replica in range(replicas)
        ]
        for stage in range(stages)
    ]
    longest = max(len(host) for row in hosts for host in row)
    writes = replicas <= MAX_WRITTEN
    few = max(stages, replicas) <= MAX_WRITTEN
    ticks = {"dtick": 1} if max(stages, replicas) <= MAX_TICKS else {"nticks": MAX_TICKS}
    axis = {"showgrid": False, "automargin": True, "tick0": 0, "tickangle": 0, "zeroline": False, **ticks}
    return figure(
        Heatmap(
            z=nodes[:, :, 0].astype(np.int32),
            text=hosts if writes else None,
            texttemplate="%{text}" if writes else None,
            customdata=hovers,
            textfont={"color": INK},
            colorscale=LISTED,
            zmin=0,
            zmax=max(len(names) - 1, 1),
            showscale=False,
            xgap=2 if few else 0,
            ygap=2 if stages <= MAX_WRITTEN else 0,
            hovertemplate="stage %{y}, replica %{x}<br>%{customdata}<extra></extra>",
        ),
        height=min(max(90 + 34 * stages, 180), 900),
        meta={"label_width": (7 * longest + 6) * replicas} if writes else None,
        xaxis={**axis, "title": {"text": "data-parallel replica"}},
        yaxis={**axis, "title": {"text": "pipeline stage"}, "autorange": "reversed"},
    )


def runs_of(numbers: np.ndarray) -> str:
    """Format whole numbers as ranges, such as ``0-3, 8-11``."""
    given = np.unique(numbers)
    pieces = np.split(given, np.flatnonzero(np.diff(given) != 1) + 1)
    return ", ".join(f"{run[0]}" if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in pieces)

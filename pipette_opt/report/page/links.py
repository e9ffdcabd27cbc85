"""Heat map of the links between hosts, with missing links, slow links, and links that the plan uses."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from pipette_opt.base.table import Table
from pipette_opt.base.types import BoolArray, FloatArray, IntArray
from pipette_opt.base.units import GB, chosen_percent, counted, percent
from pipette_opt.plans.links_used import expert_links, links_used
from pipette_opt.plans.plan import Plan
from pipette_opt.read.link_notes import SLOW
from pipette_opt.report.page.figures import INK, RATES, RATES_OF_LEVELS, UNMEASURED, figure, shown
from pipette_opt.report.page.markup import Panel, html_tables, paragraph
from pipette_opt.specs import ClusterSpec, Instance
from pipette_opt.specs.levels import Level

if TYPE_CHECKING:
    from plotly.graph_objects import Figure

MAX_CELLS = 128
"""Maximum cells per side of the map; with more hosts, neighbours in the list share a cell. Chosen: 5 MB per page."""

MAX_NAMED = 15
"""Maximum number of links in a table. Chosen."""

TOP = 0.98
"""Quantile of the rates at which the colour scale ends; faster cells look alike. Chosen."""

MAX_MARKED = 2000
"""Maximum number of slow or used links marked in the map. Chosen."""

MAP_PIXELS, ROW_PIXELS, MARK_PIXELS = 540, 48, 6
"""Maximum height of the map, of a row, and of a mark, in pixels; a mark takes at most half a cell. Chosen."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Links:
    """
    Rates of the links between the hosts of a cluster.

    Parameters
    ----------
    gb_per_s
        Aggregate rate of ``flows`` concurrent flows from host to host, GB/s, shape ``(hosts, hosts)``; NaN if
        unmeasured.
    usual
        Median rate of all pairs at the same network distance, GB/s, shape ``(hosts, hosts)``.
    used
        Traffic of the plan by pair of hosts, in words.
    """

    hosts: tuple[str, ...]
    flows: int
    gb_per_s: FloatArray
    usual: FloatArray
    used: dict[tuple[int, int], str]

    @property
    def slow(self) -> BoolArray:
        """Mask of pairs whose rate is below ``SLOW`` times the median, as in ``import links``."""
        return self.gb_per_s < SLOW * self.usual

    @property
    def missing(self) -> BoolArray:
        """Mask of the pairs of different hosts without a measurement."""
        return np.isnan(self.gb_per_s) & ~np.eye(len(self.hosts), dtype=np.bool_)


def links_of(plan: Plan, instance: Instance) -> Links:
    """Return the rates of all links, at the largest measured number of concurrent flows."""
    cluster = instance.cluster
    flows = max((matrix.concurrent_flows for matrix in cluster.link_matrices), default=1)
    rates = np.array(cluster.pair_bytes_per_s(flows)) / GB
    np.fill_diagonal(rates, np.nan)
    distance, usual = _distances(cluster), np.full_like(rates, np.nan)
    for level in np.unique(distance):
        here = (distance == level) & ~np.isnan(rates)
        if here.any():
            usual[distance == level] = np.median(rates[here])
    index = {host: number for number, host in enumerate(cluster.hosts)}
    pairs = {**expert_links(instance, plan), **links_used(plan)}
    used = {(index[sender], index[receiver]): who for (sender, receiver), who in pairs.items()}
    return Links(hosts=cluster.hosts, flows=flows, gb_per_s=rates, usual=usual, used=used)


def _distances(cluster: ClusterSpec) -> IntArray:
    """Return the number of network levels that two hosts do not share, shape ``(hosts, hosts)``."""
    found = np.zeros((cluster.num_nodes, cluster.num_nodes), dtype=np.int64)
    for level in cluster.levels:
        found += level.group_of_node[:, None] != level.group_of_node
    return found


def links_panel(plan: Plan, instance: Instance) -> Panel:
    """Panel of the heat map, with tables of slow, missing and used links."""
    links = links_of(plan, instance)
    num_pairs = len(links.hosts) * (len(links.hosts) - 1)
    num_slow, num_missing = int(links.slow.sum()), int(links.missing.sum())
    slow_used = sum(bool(links.slow[pair]) for pair in links.used)
    levels = ", ".join(
        f"{level.name} ({counted(len(np.unique(level.group_of_node)), 'group')})" for level in instance.cluster.levels
    )
    measured = "measured" if instance.cluster.links_measured else "not measured, but given or nominal"
    body = [
        paragraph(
            f"The plan sends over {len(links.used):,} of {num_pairs:,} links, {slow_used:,} of them slow. In all, "
            f"{num_slow:,} are slow (below {chosen_percent(SLOW)} of the median of pairs as near) and {num_missing:,} "
            f"missing. Rates are {measured}: GB/s of {counted(links.flows, 'flow')} from host to host at once"
            + (f"; levels: {levels}." if levels else ".")
        )
    ]
    return Panel(
        name="links",
        title="Links",
        body=body,
        figure=folded_figure(links, instance.cluster.levels),
        shows=_shows(links),
        details=html_tables(*_tables(links)),
    )


def _shows(links: Links) -> str:
    width = _width(links)
    cell = "" if width == 1 else f" A cell is the slowest link of {width} x {width} neighbouring hosts."
    return f"Rate from each host (down) to each other (across); grey where nothing was measured.{cell}"


def _width(links: Links) -> int:
    return -(-len(links.hosts) // MAX_CELLS)


def _blocks(array: FloatArray, width: int) -> FloatArray:
    """
    Return the links grouped into cells of ``width`` x ``width`` hosts, shape ``(cells, cells, width ** 2)``.

    Entries beyond the last host are NaN.
    """
    side = -(-len(array) // width)
    padded = np.full((side * width, side * width), np.nan)
    padded[: len(array), : len(array)] = array
    return padded.reshape(side, width, side, width).swapaxes(1, 2).reshape(side, side, -1)


def folded_figure(links: Links, levels: Sequence[Level]) -> "Figure":
    """Heat map of all links, with a square around each group of a network level; many hosts share cells."""
    from plotly.graph_objects import Heatmap

    width = _width(links)
    cells = _blocks(links.gb_per_s, width)
    slowest = np.where(np.isnan(cells), np.inf, cells).min(axis=2)
    slowest[np.isinf(slowest)] = np.nan
    names = [shown(host) for host in links.hosts[::width]]
    known = slowest[~np.isnan(slowest)]
    top = float(np.quantile(known, TOP)) if known.size else 1.0
    more = {}
    if width > 1:
        counts = np.stack([_blocks(mask.astype(float), width) for mask in (links.missing, links.slow)], axis=2)
        more["customdata"] = np.nansum(counts, axis=3).astype(np.int32)
    block, folded = (f" and {width - 1} more", "slowest ") if width > 1 else ("", "")
    hidden = "; slow %{customdata[1]}, missing %{customdata[0]}" if width > 1 else ""
    side = [-0.5, len(names) - 0.5]
    axis = {"showgrid": False, "zeroline": False, "automargin": True, "nticks": 16, "range": side}
    unknown = np.where(np.isnan(slowest), 1.0, np.nan)
    if width == 1:
        np.fill_diagonal(unknown, np.nan)
    traces: list[object] = [
        Heatmap(
            z=slowest.astype(np.float32),
            x=names,
            y=names,
            zmin=0.0,
            zmax=top,
            colorscale=RATES_OF_LEVELS if levels else RATES,
            hoverongaps=False,
            colorbar={"title": {"text": "GB/s", "side": "right"}, "thickness": 12, "len": 1.0, "outlinewidth": 0},
            hovertemplate=f"%{{y}}{block} to %{{x}}{block}: {folded}%{{z:.1f}} GB/s{hidden}<extra></extra>",
            **more,
        )
    ]
    if not np.isnan(unknown).all():
        missing = Heatmap(
            z=unknown.astype(np.float32),
            x=names,
            y=names,
            colorscale=[[0.0, UNMEASURED], [1.0, UNMEASURED]],
            showscale=False,
            hoverongaps=False,
            hovertemplate="%{y} to %{x}: not measured<extra></extra>",
        )
        traces.append(missing)
    if width == 1:
        slow = [(sender, receiver) for sender, receiver in np.argwhere(links.slow).tolist()][:MAX_MARKED]
        size = min(MARK_PIXELS, MAP_PIXELS // (2 * len(names)))
        marks = [("slow", "x-thin-open", size + 1, dict.fromkeys(slow, "slow"))]
        if len(links.used) <= MAX_MARKED:
            marks.insert(0, ("used by the plan", "square", size, links.used))
        traces += [_marks(links, names, *mark) for mark in marks if mark[-1]]
    return figure(
        *traces,
        height=min(MAP_PIXELS, 120 + ROW_PIXELS * len(names)),
        xaxis={**axis, "type": "category"},
        yaxis={**axis, "type": "category", "range": side[::-1]},
        shapes=list(_outlines(levels, width)),
    )


def _marks(
    links: Links, names: Sequence[str], name: str, symbol: str, size: int, pairs: Mapping[tuple[int, int], str]
) -> object:
    """Return the plotly trace of marks on single links."""
    from plotly.graph_objects import Scatter

    colour = INK if symbol.endswith("open") else "#ffffff"
    return Scatter(
        name=name,
        x=[names[receiver] for _, receiver in pairs],
        y=[names[sender] for sender, _ in pairs],
        mode="markers",
        marker={"symbol": symbol, "size": size, "color": colour, "line": {"width": 1, "color": INK}},
        customdata=[shown(f"{links.gb_per_s[pair]:.1f} GB/s, {traffic}") for pair, traffic in pairs.items()],
        hovertemplate="%{y} to %{x}: %{customdata}<extra></extra>",
        showlegend=True,
    )


def _outlines(levels: Sequence[Level], width: int) -> Iterator[dict[str, object]]:
    """Yield a square for each group of neighbouring hosts, for every network level with several groups."""
    for level in levels:
        groups = level.group_of_node
        starts = [0, *(np.flatnonzero(np.diff(groups)) + 1).tolist(), len(groups)]
        if not 2 < len(starts) <= MAX_CELLS:
            continue
        for first, last in pairwise(starts):
            low, high = first / width - 0.5, last / width - 0.5
            yield {"type": "rect", "x0": low, "x1": high, "y0": low, "y1": high, "line": {"color": INK, "width": 1}}


def _tables(links: Links) -> list[Table]:
    used = sorted(links.used, key=lambda pair: _rate(links, pair))
    slow = [(sender, receiver) for sender, receiver in np.argwhere(links.slow).tolist()]
    slow.sort(key=lambda pair: _rate(links, pair))
    bad = links.slow | links.missing
    counts = bad.sum(axis=0) + bad.sum(axis=1)
    worst = [host for host in np.argsort(-counts, kind="stable")[:MAX_NAMED].tolist() if counts[host]]
    hosts = [
        (
            links.hosts[host],
            f"{links.slow[host].sum() + links.slow[:, host].sum():,}",
            f"{links.missing[host].sum() + links.missing[:, host].sum():,}",
        )
        for host in worst
    ]
    first = f"(first {MAX_NAMED})"
    return [
        _links_table(links, used, f"Slowest of the links that the plan uses {first}"),
        _links_table(links, slow, f"Slow links {first}"),
        Table(
            title=f"Hosts with most slow or missing links {first}", headers=("host", "slow >", "missing >"), rows=hosts
        ),
    ]


def _rate(links: Links, pair: tuple[int, int]) -> float:
    return float(np.nan_to_num(links.gb_per_s[pair], nan=np.inf))


def _links_table(links: Links, pairs: Sequence[tuple[int, int]], title: str) -> Table:
    rows = [
        (
            links.hosts[sender],
            links.hosts[receiver],
            f"{links.gb_per_s[sender, receiver]:.2f}",
            percent(links.gb_per_s[sender, receiver] / links.usual[sender, receiver], decimals=1),
            links.used.get((sender, receiver), "-"),
        )
        for sender, receiver in pairs[:MAX_NAMED]
    ]
    return Table(title=title, headers=("from", "to", "GB/s >", "of the usual >", "used by"), rows=rows)

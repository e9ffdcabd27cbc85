"""Lower bound of a candidate on several GPU types: the simulator over the best links between types."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import product
from operator import itemgetter

import numpy as np

from pipette_opt.base.errors import MissingLinkError
from pipette_opt.base.types import FloatArray, IntArray
from pipette_opt.base.units import ceil_div
from pipette_opt.costs.placed import placed_batch, placed_times
from pipette_opt.costs.times import PlacedTimes
from pipette_opt.parallel import Placement, tile_placement
from pipette_opt.problem.best_links import scarce_kinds
from pipette_opt.problem.data import CandidateData, ProblemData
from pipette_opt.simulate.many import estimate_many
from pipette_opt.simulate.solutions import flow_counts
from pipette_opt.specs import Instance, LinkMatrix

MAX_COLUMNS = 512
"""All choices of GPU types for the rows of a column are simulated if there are at most this many. Chosen."""

MAX_COLUMNS_TOLD = 4
"""Largest number of columns whose critical paths are returned. Chosen."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class BestKinds:
    """
    Simulated times of a candidate configuration over the best links between the GPU types of its rows.

    Parameters
    ----------
    seconds
        Lower bound on the simulated time of every placement, seconds; infinite if every placement lacks a link.
    times
        Times of the fastest columns, fastest first.
    backward_s
        Least backward pass of the first chunk of each stage, seconds, shape ``(pp,)``.
    """

    seconds: float
    times: tuple[PlacedTimes, ...]
    backward_s: FloatArray


def best_kinds(instance: Instance, data: ProblemData, candidate: CandidateData) -> BestKinds:
    """
    Bound a candidate configuration by the simulator, over the GPU types that a column of hosts must have in any
    placement.

    A column is the hosts at one place in every row. Its stages are as slow as its hosts, its transfers use its own
    links, and no replica ends before it. Other hosts of a row only matter for rings, which count as the best links. If
    a column has too many choices, a few are simulated for their paths, and the bound is 0.
    """
    sets = list(columns_of_kinds(data, candidate))
    is_whole = bool(sets)
    if not is_whole:
        sets = [_likely_columns(data, candidate)]
    ideal, hosts = _ideal(instance, candidate), np.arange(candidate.num_cells).reshape(candidate.grid)
    every = np.unique(np.concatenate(sets), axis=0)

    def placed(kinds: IntArray) -> Placement:
        nodes = hosts + candidate.num_cells * np.reshape(kinds, (-1, 1, 1))
        return tile_placement(candidate.config, candidate.tile, nodes)

    seconds = estimate_many(ideal, [(candidate.config, placed(kinds)) for kinds in every])
    by_kinds = dict(zip(map(bytes, every), seconds.tolist(), strict=True))
    least = [min((by_kinds[bytes(kinds)] for kinds in columns), default=float("inf")) for columns in sets]
    fastest = max(zip(least, sets, strict=True), key=itemgetter(0))
    ranked = sorted(fastest[1], key=lambda kinds: by_kinds[bytes(kinds)])[:MAX_COLUMNS_TOLD]
    times = []
    for kinds in ranked:
        try:
            times.append(placed_times(ideal, candidate.config, placed(kinds)))
        except MissingLinkError:
            break
    alike = [placed(np.full(candidate.grid[0], kind)) for kind in range(len(instance.cluster.gpu_kinds))]
    batch = placed_batch(ideal, [(candidate.config, placement) for placement in alike])
    return BestKinds(
        seconds=fastest[0] if is_whole else 0.0, times=tuple(times), backward_s=batch.backward_s[:, 0].min(axis=(0, 2))
    )


def columns_of_kinds(data: ProblemData, candidate: CandidateData) -> Iterator[IntArray]:
    """
    Yield sets of columns, as GPU types of their rows, ``(num_columns, rows)``; every placement has a column of each
    set.

    If hosts of fast GPU types cannot fill the grid, a set has the columns with at least the mean number of slow hosts.
    Yields nothing if there are too many columns to list.
    """
    rows, columns = candidate.grid[0], candidate.num_cells // candidate.grid[0]
    allowed, kinds = data.allowed(candidate), len(candidate.forward_ticks)
    may_be = np.zeros((kinds, rows), dtype=np.bool_)
    np.logical_or.at(may_be, data.kind_of_node, allowed.T)
    choices = [np.flatnonzero(may_be[:, row]).tolist() for row in range(rows)]
    if np.prod([float(len(of_row)) for of_row in choices]) > MAX_COLUMNS:
        return
    hosts = np.bincount(data.kind_of_node[allowed.any(axis=0)], minlength=kinds)
    every = np.array(list(product(*choices)), dtype=np.int64).reshape(-1, rows)
    held = (every[:, :, None] == np.arange(kinds)).sum(axis=1)  # (columns, kinds)
    every, held = every[ok := (held <= hosts).all(axis=1)], held[ok]
    for few in scarce_kinds(data, candidate):
        lacking = candidate.num_cells - int(hosts[~np.isin(np.arange(kinds), few)].sum())
        yield every[held[:, few].sum(axis=1) >= ceil_div(lacking, columns)]
    yield every


def _likely_columns(data: ProblemData, candidate: CandidateData) -> IntArray:
    """Return three columns with the mean hosts of each GPU type: slow hosts last, slow hosts first, random order."""
    rows = candidate.grid[0]
    speed = np.argsort((candidate.forward_ticks + candidate.backward_ticks).sum(axis=1), kind="stable")
    hosts = np.bincount(data.kind_of_node, minlength=len(speed))[speed]
    ends = np.minimum(np.ceil(np.cumsum(hosts) * rows / hosts.sum()), rows).astype(np.int64)
    sorted_kinds = np.repeat(speed, np.diff(ends, prepend=0))
    return np.stack([sorted_kinds, sorted_kinds[::-1], np.random.default_rng(0).permutation(sorted_kinds)])


def _ideal(instance: Instance, candidate: CandidateData) -> Instance:
    """Return an instance with a host of each GPU type for every cell, and the best links between any two types."""
    cluster = instance.cluster
    first = [cluster.nodes[node] for node in np.unique(cluster.kind_of_node, return_index=True)[1].tolist()]
    nodes = tuple(
        replace(node, host=f"{kind}-{cell}") for kind, node in enumerate(first) for cell in range(candidate.num_cells)
    )
    kind = np.repeat(np.arange(len(first)), candidate.num_cells)
    row = np.tile(np.arange(candidate.num_cells) // (candidate.num_cells // candidate.grid[0]), len(first))
    matrices = []
    for num_flows in flow_counts(instance, candidate):
        fastest = cluster.fastest_bytes_per_s_of_kinds(num_flows)
        links = np.where(row[:, None] == row, fastest.max(), fastest[np.ix_(kind, kind)])
        matrices.append(LinkMatrix(concurrent_flows=num_flows, bytes_per_s=np.where(links > 0, links, np.nan)))
    fastest_links = replace(
        cluster,
        nodes=nodes,
        link_matrices=tuple(matrices),
        node_bytes_per_s=None,
        inter_node_latency_s=cluster.least_latency_s,
        known_latency_s=None,
        levels=(),
    )
    return replace(instance, cluster=fastest_links)

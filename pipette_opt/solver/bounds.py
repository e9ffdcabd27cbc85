"""
Lower bounds on the integer objective of a candidate (configuration with a host tile), computed without a search.

Every hop costs at least the best allowed link of its grid rows. Moreover, hops have distinct senders and distinct
receivers. The *level* for ``n`` hops is the smallest t for which the links of cost <= t contain ``n`` arcs with
distinct senders and receivers. So the slowest hop of a placement costs at least the level.

This hop can be in any grid row; each row gives a scenario. The bound is the least objective of the scenarios, as the
objective never falls when a time grows. Paths use many links, so their bound also counts the least total cost of as
many distinct arcs.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import combinations
from math import comb

import numpy as np

from pipette_opt.base.types import BoolArray, IntArray
from pipette_opt.base.units import ceil_div
from pipette_opt.plans.clock import Clock
from pipette_opt.problem.best_links import best_path_work, has_room, optimistic_ticks, scarce_kinds
from pipette_opt.problem.data import UNUSABLE_TICKS, CandidateData, ProblemData
from pipette_opt.problem.objective import PlacedTicks, finish_ticks
from pipette_opt.solver.matching import bottleneck_level
from pipette_opt.solver.transfers import Transfers, least_transfers, some_host_has

MAX_KINDS = 256
"""Largest number of sets of grid rows that are tried as the rows with slow GPU types. Chosen."""

MAX_HOSTS_TO_BOUND = 200
"""With more hosts than this, matching takes too long and the bound uses only the best links. Chosen."""


def lower_bounds(data: ProblemData, cutoff: int = UNUSABLE_TICKS, clock: Clock | None = None) -> IntArray:
    """
    Return lower bounds on all candidate configurations, integer ticks, shape ``(num_candidates,)``; ``UNUSABLE_TICKS``
    without a placement.

    Bounds by matching are computed until the clock is over, smallest bounds over the best links first. Candidates whose
    bound over the best links reaches ``cutoff`` keep it.
    """
    bounds = np.array([optimistic_ticks(data, candidate) for candidate in data.candidates], dtype=np.int64)
    for index in np.argsort(bounds, kind="stable").tolist():
        if bounds[index] >= cutoff or (clock is not None and clock.is_over):
            break
        bounds[index] = max(bounds[index], candidate_bound(data, data.candidates[index]))
    return bounds


def candidate_bound(data: ProblemData, candidate: CandidateData) -> int:
    """Return a lower bound on the integer objective of every placement of the candidate configuration, ticks."""
    if not has_room(data, candidate):
        return UNUSABLE_TICKS
    if data.num_nodes > MAX_HOSTS_TO_BOUND:
        return optimistic_ticks(data, candidate)
    rings = _ring_scenarios(data, candidate)
    if rings is None:
        return UNUSABLE_TICKS
    rings = rings.copy()
    rings[[0, -1]] += least_embedding(candidate)
    best = 0
    for placed in _path_scenarios(data, candidate):
        if placed is None:
            return UNUSABLE_TICKS
        finish = finish_ticks(candidate.paths, placed)  # (pp, scenarios)
        ends = (finish[:, :, None] + rings[:, None, :]).max(axis=0)
        best = max(best, int(ends.min()))
    return best + candidate.optimizer_ticks


def _path_scenarios(data: ProblemData, candidate: CandidateData) -> Iterator[PlacedTicks | None]:
    """
    Yield sets of scenarios, one array column for each scenario; every placement satisfies at least one of each set.

    ``None`` is yielded if no placement exists. In the first set, each boundary between rows in turn has the slowest
    transfer. Two further sets follow: each boundary in turn has the slowest pair of transfers there and back; and one
    column's transfers take as long as the mean over columns. If hosts of fast GPU types cannot fill the
    grid, the last sets choose the rows in which a column has its mean number of slow hosts.
    """
    allowed = data.allowed(candidate)
    rows = np.arange(candidate.num_stages) // candidate.tile.stages
    hops = _least_tensor_hops(candidate)
    transfers = least_transfers(data, candidate)
    if hops is None or transfers is None:
        yield None
        return
    kinds = [_kinds_of(data, candidate, allowed[rows])]
    placed = _placed(candidate, kinds, hops, *transfers.at_level(transfers.level))
    yield from _path_transfers(data, candidate, transfers, placed)
    for scarce in scarce_kinds(data, candidate):
        is_scarce = np.isin(data.kind_of_node, scarce)
        scarce_hosts = allowed & is_scarce
        places = np.flatnonzero(np.logical_or.reduce(scarce_hosts, axis=1)).tolist()
        others = int(np.logical_or.reduce(allowed & ~is_scarce, axis=0).sum())
        count = ceil_div(candidate.num_cells - others, candidate.num_cells // candidate.grid[0])
        count = min(count, len(places))
        listed = count
        while comb(len(places), listed) > MAX_KINDS:
            listed -= 1
        chosen = list(combinations(places, listed))
        kinds = [
            _kinds_of(data, candidate, np.where(np.isin(rows, scarce_rows)[:, None], scarce_hosts[rows], allowed[rows]))
            for scarce_rows in chosen
        ]
        placed = _placed(candidate, kinds, hops, *(side[:, None] for side in transfers.least))
        if listed < count:
            more = _least_more(data, candidate, scarce_hosts, allowed, chosen, count - listed)
            placed = replace(placed, path_work=placed.path_work + more)
        yield placed


def _path_transfers(
    data: ProblemData, candidate: CandidateData, transfers: "Transfers", placed: PlacedTicks
) -> Iterator[PlacedTicks]:
    """
    Yield scenarios for paths in which the transfers of a column cost at least as much as equally many distinct links.

    Parameters
    ----------
    placed
        Scenarios in which each boundary in turn has the slowest transfer.
    """
    _, D, K = candidate.grid
    forth, home = candidate.p2p_ticks, candidate.p2p_ticks.T
    both = np.where(np.maximum(forth, home) < UNUSABLE_TICKS, forth + home, UNUSABLE_TICKS)
    between, count = transfers.between, len(transfers.between)
    often = np.minimum(candidate.paths.up, candidate.paths.down)[:, between]  # both ways, shape (paths, count)
    passes = often > 0
    links = passes.sum(axis=1)
    always = np.where(passes, often, UNUSABLE_TICKS).min(axis=1, initial=UNUSABLE_TICKS) * (links > 0)

    def adding_up(scenarios: PlacedTicks, more: IntArray, columns: int) -> PlacedTicks:
        """Raise each path so that its transfers in ``columns`` columns cost at least that many distinct links."""
        least = {number: least_cost(both, number * columns) // columns for number in np.unique(links).tolist()}
        total = passes @ (scenarios.send_forward + scenarios.send_backward)[between] + more
        lacking = np.maximum(np.array([least[number] for number in links.tolist()])[:, None] - total, 0)
        return replace(scenarios, path_work=scenarios.path_work + lacking * always[:, None])

    nothing = np.zeros((1, 1), dtype=np.int64)
    yield adding_up(placed, nothing, 1)
    if not count:
        return
    level = bottleneck_level(both, count * D * K)
    level = max(level, some_host_has(both.min(axis=1), data.allowed(candidate), candidate.num_cells))
    send, back = (np.repeat(side[:, None], count, axis=1) for side in transfers.least)
    raised = np.maximum(level - (send + back)[between, np.arange(count)], 0)  # (count,): a scenario each
    slowest = replace(
        placed,
        send_forward=send,
        send_backward=back,
        path_work=placed.path_work[:, :1] + often * raised[None, :],
    )
    yield adding_up(slowest, passes * raised[None, :], 1)
    if D * K > 1:
        least = replace(slowest, path_work=np.broadcast_to(placed.path_work[:, :1], often.shape))
        yield adding_up(least, nothing, D * K)


def least_cost(ticks: IntArray, number: int) -> int:
    """
    Return the least total ticks of ``number`` arcs with distinct senders and distinct receivers, by min-cost flow.

    ``UNUSABLE_TICKS`` if fewer usable arcs exist.
    """
    from ortools.graph.python import min_cost_flow  # takes a while to load

    if number <= 0:
        return 0
    n, m = ticks.shape
    tails, heads = np.nonzero(ticks < UNUSABLE_TICKS)
    source, sink = n + m, n + m + 1
    flow = min_cost_flow.SimpleMinCostFlow()
    for start, end, cost in (
        (np.full(n, source), np.arange(n), np.zeros(n)),
        (tails, n + heads, ticks[tails, heads]),
        (n + np.arange(m), np.full(m, sink), np.zeros(m)),
    ):
        once = np.ones(len(start), dtype=np.int64)
        flow.add_arcs_with_capacity_and_unit_cost(start, end, once, cost.astype(np.int64))
    flow.set_node_supply(source, number)
    flow.set_node_supply(sink, -number)
    return int(flow.optimal_cost()) if flow.solve() == flow.OPTIMAL else UNUSABLE_TICKS


def _placed(
    candidate: CandidateData, kinds: list[BoolArray], hops: tuple[int, int], send: IntArray, send_back: IntArray
) -> PlacedTicks:
    """
    Return the times of scenarios as array columns, without gradient rings; a single column is repeated for all
    scenarios.

    Parameters
    ----------
    kinds
        Mask of GPU types that each stage may have, shape ``(num_kinds, pp)``, for each scenario.
    hops
        Ticks of tensor communication of one layer between hosts, forward and backward.
    """
    number = max(len(kinds), send.shape[1])

    def columns(parts: list[IntArray]) -> IntArray:
        together = np.concatenate(parts, axis=1)
        return np.broadcast_to(together, (len(together), number))

    return PlacedTicks(
        send_forward=columns([send]),
        send_backward=columns([send_back]),
        ring=np.zeros(candidate.num_stages, dtype=np.int64),
        path_work=columns([best_path_work(candidate, possible, hops) for possible in kinds]),
    )


def _least_more(
    data: ProblemData,
    candidate: CandidateData,
    scarce_hosts: BoolArray,
    allowed: BoolArray,
    chosen: Sequence[tuple[int, ...]],
    count: int,
) -> IntArray:
    """
    Return the least ticks that ``count`` more rows of slow hosts add to each path, shape ``(paths, scenarios)``.

    Parameters
    ----------
    scarce_hosts, allowed
        Masks of the slow hosts, and of all hosts, with enough memory for each row.
    chosen
        Rows of each scenario that have slow hosts already.
    """
    rows = candidate.grid[0]
    row = np.arange(candidate.num_stages) // candidate.tile.stages
    usable = [_kinds_of(data, candidate, hosts[row]) for hosts in (scarce_hosts, allowed)]
    slow, fast = (np.where(kinds, candidate.paths.work_ticks, UNUSABLE_TICKS).min(axis=1) for kinds in usable)
    longer = np.zeros((len(slow), rows), dtype=np.int64)
    np.add.at(longer.T, row, np.minimum(slow - fast, UNUSABLE_TICKS).T)
    found = np.zeros((len(slow), len(chosen)), dtype=np.int64)
    for scenario, scarce_rows in enumerate(chosen):
        left = np.sort(np.delete(longer, scarce_rows, axis=1), axis=1)
        found[:, scenario] = np.minimum(left[:, :count], UNUSABLE_TICKS).sum(axis=1)
    return found


def _kinds_of(data: ProblemData, candidate: CandidateData, possible: BoolArray) -> BoolArray:
    """Return the GPU types that each stage may have, shape ``(num_kinds, pp)``; hosts have ``(pp, num_nodes)``."""
    kinds = np.zeros((len(candidate.forward_ticks), len(possible)), dtype=np.bool_)
    np.logical_or.at(kinds, data.kind_of_node, possible.T)
    return kinds


def _least_tensor_hops(candidate: CandidateData) -> tuple[int, int] | None:
    """Return the least ticks of a layer's tensor communication between hosts, both passes; ``None`` without a link."""
    if candidate.grid[2] == 1:
        return 0, 0
    hops = int(candidate.tensor_forward_ticks.min()), int(candidate.tensor_backward_ticks.min())
    return None if max(hops) >= UNUSABLE_TICKS else hops


def _ring_floor(data: ProblemData, candidate: CandidateData) -> IntArray | None:
    """Return the least ticks of each stage's reduction on hosts of its row, shape ``(pp,)``; ``None`` without rings."""
    _, D, K = candidate.grid
    ring = candidate.ring_floor_ticks.copy()
    if candidate.ring_length == 1:
        return ring
    allowed, rows = data.allowed(candidate), np.arange(candidate.num_stages) // candidate.tile.stages
    same_hosts = bool((allowed == allowed[0]).all())
    known: dict[tuple[int, int], int] = {}
    for stage, row in enumerate(rows.tolist()):
        key = (int(candidate.ring_class[stage]), 0 if same_hosts else row)
        if key not in known:
            inside = np.ix_(allowed[row], allowed[row])
            known[key] = bottleneck_level(candidate.ring_ticks[key[0]][inside], D * K)
        ring[stage] = max(ring[stage], known[key])
    return None if ring.max() >= UNUSABLE_TICKS else ring


def least_embedding(candidate: CandidateData) -> int:
    """Return the least ticks of the tied-embedding reduction, the slowest of ``D * K`` distinct host pairs."""
    if not candidate.embedding_ticks.size:
        return candidate.embedding_floor_ticks
    apart = candidate.embedding_ticks.copy()
    np.fill_diagonal(apart, UNUSABLE_TICKS)
    return bottleneck_level(apart, candidate.grid[1] * candidate.grid[2])


def _ring_scenarios(data: ProblemData, candidate: CandidateData) -> IntArray | None:
    """
    Return reductions with the slowest hop in each row in turn, integer ticks, shape ``(pp, rows)``; ``None`` if no ring
    exists.

    Stages with different ring costs give several sets of such scenarios; the set with the largest sum is returned.
    """
    P, D, K = candidate.grid
    base = _ring_floor(data, candidate)
    if base is None or candidate.ring_length == 1:
        return None if base is None else base[:, None]
    rows = np.arange(candidate.num_stages) // candidate.tile.stages
    best: IntArray | None = None
    for ring_class in np.unique(candidate.ring_class):
        level = bottleneck_level(candidate.ring_ticks[ring_class], P * D * K)
        if level >= UNUSABLE_TICKS:
            return None
        slow = candidate.ring_ticks[ring_class] >= level
        at_level = candidate.ring_ticks[:, slow].min(axis=1)[candidate.ring_class]  # (pp,)
        here = np.equal.outer(rows, np.arange(P))
        raised = np.where(here, np.maximum(base, at_level)[:, None], base[:, None])
        if best is None or raised.sum() > best.sum():
            best = raised
    return best

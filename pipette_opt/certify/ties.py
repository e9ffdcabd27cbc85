"""
Choice among equally fast plans: the simpler plan, on fewer hosts, in the usual order of hosts.

Plans are equally fast if ticks (integer time units) cannot tell them apart. The usual order is that of the cluster
file, or of the hosts that run today.
"""

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import combinations, islice, takewhile

import numpy as np

from pipette_opt.base.degrees import CHUNKS, DEGREES, EXPERT_TENSOR
from pipette_opt.base.errors import MissingLinkError
from pipette_opt.base.types import IntArray
from pipette_opt.certify.compared import placements_in_order
from pipette_opt.certify.preference import risks_of
from pipette_opt.certify.state import SearchState
from pipette_opt.parallel import ParallelConfig, tile_placement
from pipette_opt.plans.clock import Clock
from pipette_opt.prepare import Prepared
from pipette_opt.problem.data import ProblemData
from pipette_opt.problem.solution import Solution
from pipette_opt.simulate.many import estimate_many
from pipette_opt.simulate.solutions import TIE, SimulatedSolution, best_first, simplicity, simulate_solution
from pipette_opt.simulate.swap_search import has_room

TIES_AT_ONCE = 64
"""Number of placements simulated together. Chosen."""


def settle(state: SearchState, clock: Clock) -> SimulatedSolution:
    """Return the preferred plan with hosts in the usual order, or a simpler plan that is as fast and as plain."""
    prepared, simulated, preference = state.prepared, state.simulated, state.preference
    order = state.params.host_order or range(state.data.num_nodes)
    risk_of = risks_of(prepared, preference.max_oom_risk)

    def rank(plan: SimulatedSolution) -> tuple[int, ...]:
        return preference.rank_of(plan, risk_of)

    shown = preference.choose(simulated, risk_of)
    for plan in _hosts_in_order(prepared, shown, preference.host_order):
        state.take(plan)
    simulated = state.simulated
    shown = preference.choose(simulated, risk_of)
    if preference.prefer == "fastest" and not preference.weighs:
        return best_first([*simulated, *settle_ties(prepared, simulated, shown, order, clock)])[0]
    least_s = (1 - TIE) * shown.estimate.iteration_time_s
    equal = [plan for plan in simulated if plan.estimate.iteration_time_s >= least_s and rank(plan) == rank(shown)]
    settled = settle_ties(prepared, equal, shown, order, clock)[-1]
    is_as_good = settled.estimate.iteration_time_s >= least_s and rank(settled) <= rank(shown)
    is_as_good &= preference.value(settled) <= (1 + TIE) * preference.value(shown)
    return settled if is_as_good else shown


def _hosts_in_order(
    prepared: Prepared, shown: SimulatedSolution, host_order: Sequence[int]
) -> Iterator[SimulatedSolution]:
    """Yield placements of a plan's configuration and host tile whose consecutive ranks fill hosts in usual order."""
    data, candidate = prepared.problem, shown.candidate
    for tile, nodes in placements_in_order(
        prepared.instance, candidate.config, host_order, {shown.nodes.size: shown.nodes}
    ):
        if tile == candidate.tile and has_room(data, candidate, nodes):
            with suppress(MissingLinkError):
                yield _simulated(prepared, shown, nodes)


def settle_ties(
    prepared: Prepared,
    simulated: Sequence[SimulatedSolution],
    best: SimulatedSolution,
    order: Sequence[int],
    clock: Clock,
) -> list[SimulatedSolution]:
    """
    Return plans as fast as ``best``, the preferred plan last.

    The plans are simpler ones, simulated before or on the hosts of ``best``. The last has its hosts in the usual order.

    Parameters
    ----------
    order
        All hosts of the cluster in the usual order.
    """
    limit_s = (1 + TIE) * best.estimate.iteration_time_s
    equal = [plan for plan in (*simulated, *_simpler(prepared, best)) if plan.estimate.iteration_time_s <= limit_s]
    chosen = min(equal, key=lambda plan: simplicity(plan.candidate.config))
    nodes = in_order(prepared, chosen, order, limit_s, clock)
    return [*equal, _simulated(prepared, chosen, nodes)]


def _simpler(prepared: Prepared, best: SimulatedSolution) -> Iterator[SimulatedSolution]:
    """Yield plans with simpler configurations of equal degrees, on the hosts and host tile of ``best``."""
    for index, candidate in enumerate(prepared.problem.candidates):
        if (candidate.grid, candidate.tile) != (best.candidate.grid, best.candidate.tile):
            continue
        if not _same_degrees(candidate.config, best.candidate.config):
            continue
        fits = has_room(prepared.problem, candidate, best.nodes)
        if fits and simplicity(candidate.config) < simplicity(best.candidate.config):
            yield simulate_solution(
                prepared.instance, prepared.problem, Solution(candidate=index, nodes=best.nodes, objective_ticks=0)
            )


def _same_degrees(config: ParallelConfig, other: ParallelConfig) -> bool:
    names = (degree.field for degree in DEGREES if degree not in (EXPERT_TENSOR, CHUNKS))
    return all(getattr(config, name) == getattr(other, name) for name in names)


def in_order(
    prepared: Prepared, best: SimulatedSolution, order: Sequence[int], limit_s: float, clock: Clock
) -> IntArray:
    """
    Return the hosts of an equally fast plan, as near as possible to the usual order.

    Start with the first of :func:`orders` that is as fast. Then swap rows and columns.

    Parameters
    ----------
    order
        All hosts of the cluster in the usual order.
    limit_s
        Largest time of a placement that counts as equally fast, seconds.
    """
    place = np.empty(len(order), dtype=np.int64)
    place[np.asarray(order)] = np.arange(len(order))
    data, candidate = prepared.problem, best.candidate

    def first_as_fast(placements: Iterator[IntArray]) -> IntArray | None:
        with_room = (nodes for nodes in placements if has_room(data, candidate, nodes))
        while batch := list(islice(with_room, TIES_AT_ONCE)):
            if clock.is_over:
                return None
            placed = [(candidate.config, tile_placement(candidate.config, candidate.tile, nodes)) for nodes in batch]
            fast = np.flatnonzero(estimate_many(prepared.instance, placed) <= limit_s)
            if len(fast):
                return batch[int(fast[0])]
        return None

    found = first_as_fast(orders(best.nodes, place))
    nodes = best.nodes if found is None or not _comes_before(found, best.nodes, place) else found
    while True:
        swapped = takewhile(lambda _: not clock.is_over, _with_lines_swapped(nodes, place))
        better = first_as_fast(after for after in swapped if _comes_before(after, nodes, place))
        if better is None:
            return nodes
        nodes = better


def orders(nodes: IntArray, place: IntArray) -> Iterator[IntArray]:
    """
    Yield placements in usual orders: on the first hosts; on the hosts of ``nodes``; sorted within rows; sorted columns.

    Parameters
    ----------
    place
        Rank of each host in the usual order, shape ``(num_nodes,)``.
    """
    first = np.argsort(place)[: nodes.size]
    yield first.reshape(nodes.shape)
    yield nodes.ravel()[np.argsort(place[nodes.ravel()])].reshape(nodes.shape)
    yield np.take_along_axis(nodes, np.argsort(place[nodes], axis=1), axis=1)
    yield nodes[:, np.argsort(place[nodes].min(axis=(0, 2)))]


def _comes_before(nodes: IntArray, other: IntArray, place: IntArray) -> bool:
    before, after = place[nodes.ravel()], place[other.ravel()]
    different = before != after
    first = int(different.argmax())
    return bool(different[first] and before[first] < after[first])


def _with_lines_swapped(nodes: IntArray, place: IntArray) -> Iterator[IntArray]:
    """Yield placements with two rows swapped, two columns swapped, or one row sorted."""
    for axis in (0, 1):
        for first, second in combinations(range(nodes.shape[axis]), 2):
            lines = np.arange(nodes.shape[axis])
            lines[[first, second]] = second, first
            yield np.take(nodes, lines, axis=axis)
    for row in range(len(nodes)):
        after = nodes.copy()
        after[row] = after[row, np.argsort(place[nodes[row]].min(axis=1))]
        yield after


def _simulated(prepared: Prepared, chosen: SimulatedSolution, nodes: IntArray) -> SimulatedSolution:
    """Return the candidate configuration of a plan simulated on other hosts."""
    data: ProblemData = replace(prepared.problem, candidates=(chosen.candidate,))
    return simulate_solution(prepared.instance, data, Solution(candidate=0, nodes=nodes, objective_ticks=0))

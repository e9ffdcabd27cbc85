"""
Placement of candidate configurations by annealing; by the simulator alone where relaxations are not exact: swap local
search, and branch and bound over hosts.
"""

from collections.abc import Sequence

from pipette_opt.base.units import counted
from pipette_opt.certify.opening import place_once
from pipette_opt.certify.state import OpenCandidate, SearchState
from pipette_opt.plans.clock import Clock
from pipette_opt.plans.steps import PROVERS
from pipette_opt.problem.build import links_decide
from pipette_opt.problem.data import UNUSABLE_TICKS, CandidateData
from pipette_opt.simulate.host_tree import HostTree
from pipette_opt.simulate.swap_search import improve_by_swaps, num_orders
from pipette_opt.solver.pruning import FLOAT_MARGIN
from pipette_opt.specs import Instance

MAX_MOVES = 640_000
"""Largest number of moves of one annealing run. Chosen."""

MAX_FIRST_MOVES = 160_000
"""Largest number of moves of one annealing run before the first proof, which often needs no more. Chosen."""

HOST_TREE = "branch and bound over hosts"
"""Name of the bound by :class:`~pipette_opt.simulate.host_tree.HostTree` in the certificate."""

FEW_ORDERS = 120
"""Largest number of placements at which a candidate's hosts are searched before annealing: 5 hosts. Chosen."""

MAX_ORDERS = 5040
"""Largest number of placements that are searched without swaps before: 7 hosts in any order. Chosen."""

MAX_HOSTS = 64
"""With more hosts than this, branch and bound over hosts is not tried. Chosen."""

SIMULATED_AT_ONCE = 1024
"""Least number of placements simulated for one candidate configuration before the least bound is looked for. Chosen."""


def anneal_open(state: SearchState, clock: Clock) -> None:
    """Anneal each candidate, simulate it and add its critical paths, until nothing is new or time is over."""
    most_moves = MAX_MOVES if PROVERS in state.done else MAX_FIRST_MOVES
    while not (state.is_over or clock.is_over):
        able = [entry for entry in state.could_win() if entry.moves <= most_moves]
        if not able:
            return
        state.report(f"placing {counted(len(able), 'candidate')}")
        for entry in able:
            if state.is_over or clock.is_over:
                return
            place_once(state, entry)


def is_relaxation_exact(instance: Instance, candidate: CandidateData) -> bool:
    """
    Return whether the longest path through the schedule reaches the simulated time at some placement.

    It may not in four cases. Collectives are no functions of their slowest hop: the relaxation has the best links, or
    as many hosts in an NVLink domain as possible. Collectives overlap with compute that depends on the placement: it
    has the compute of the fastest host. There are so many hosts that overlapped rings have no levels: it has the best
    rings. With several GPU types, the optimizer step and what hides messages depend on the types in use: it has the
    fastest that a placement can have.
    """
    config, tile = candidate.config, candidate.tile
    certain = links_decide(instance, config, tile) and len(instance.cluster.gpu_kinds) == 1
    if not config.overlap_grad_reduce:
        return certain
    return certain and tile.nodes_per_slot == 1 and (candidate.ring_level.size > 0 or candidate.ring_length == 1)


def settle_few_orders(state: SearchState, clock: Clock) -> None:
    """Search the hosts of candidate configurations that have only a few placements, before annealing."""
    few = [entry for entry in state.could_win() if num_orders(state.data, entry.candidate) <= FEW_ORDERS]
    _search_hosts(state, few, clock)


def swap_hosts(state: SearchState, clock: Clock) -> None:
    """
    Improve placements by swapping hosts, then search the hosts by branch and bound, where relaxations are not exact or
    the provers are done with them.
    """
    instance, inexact = state.prepared.instance, []
    for entry in state.could_win():
        if clock.is_over or state.is_over:
            return
        state.report("improving placements")
        if not entry.is_proven and is_relaxation_exact(instance, entry.candidate):
            continue
        inexact.append(entry)
        best = state.plan_of(entry)
        if best is None or num_orders(state.data, entry.candidate) <= MAX_ORDERS or entry.swapped is best.nodes:
            continue
        nodes = improve_by_swaps(instance, state.data, entry.candidate, best.nodes, clock, state.params.seed)
        state.look(entry, nodes)
        entry.swapped = best.nodes if (after := state.plan_of(entry)) is None else after.nodes
    alone = all(entry.is_proven for entry in inexact) and state.listed_bound_s <= state.other_splits_s
    _search_hosts(state, inexact, state.clock if alone else clock)


def host_work(state: SearchState) -> object:
    """Return a value that changes while :func:`swap_hosts` has work; ``None`` once the gap is closed."""
    if state.is_closed:
        return None
    trees = [entry.tree.simulated for entry in state.open if entry.tree is not None]
    proven = sum(entry.is_proven for entry in state.open)
    return state.fastest_s, state.listed_bound_s, len(state.data.candidates), sum(trees), proven


def _search_hosts(state: SearchState, entries: Sequence[OpenCandidate], clock: Clock) -> None:
    """Search the hosts of candidate configurations by branch and bound, the one with the least bound first."""
    instance, data = state.prepared.instance, state.data
    for entry in entries:
        if entry.tree is None and data.num_nodes <= MAX_HOSTS:
            entry.tree = HostTree(instance, data, entry.candidate)
    while not (state.is_over or clock.is_over):
        trees = [(entry, entry.tree) for entry in entries if entry.tree is not None and state.may_be_faster(entry)]
        able = [(entry, tree) for entry, tree in trees if not tree.is_done and tree.bound_s < state.fastest_s]
        if not able:
            return
        entry, tree = min(able, key=lambda each: (each[0].bound_ticks, each[0].index))
        state.report(f"searching the hosts of {counted(len(able), 'candidate')}")
        tree.go_on(state.fastest_s, clock, SIMULATED_AT_ONCE)
        if tree.best is not None:
            state.look(entry, tree.best[0])
        ticks = int(min(tree.bound_s * (1 - FLOAT_MARGIN) / data.tick_s, UNUSABLE_TICKS))
        state.raise_ticks(entry, ticks, HOST_TREE)

"""Placement of candidates by annealing, and by swaps in the simulator where relaxations are not exact."""

from pipette_opt.base.units import counted
from pipette_opt.certify.opening import bound_by_slowest_host, place_once
from pipette_opt.certify.state import OpenCandidate, SearchState
from pipette_opt.plans.clock import Clock
from pipette_opt.plans.steps import PROVERS
from pipette_opt.problem.build import experts_stay_inside, hops_decide
from pipette_opt.problem.data import UNUSABLE_TICKS, CandidateData
from pipette_opt.simulate.swap_search import MAX_ORDERS, best_of_all, improve_by_swaps, num_orders
from pipette_opt.solver.pruning import FLOAT_MARGIN
from pipette_opt.specs import Instance

MAX_MOVES = 640_000
"""Largest number of moves of one annealing run. Chosen."""

MAX_FIRST_MOVES = 160_000
"""Largest number of moves of one annealing run before the first proof, which often needs no more. Chosen."""

EVERY_PLACEMENT = "judge of every placement"
"""Name of the bound of a candidate configuration whose placements were all simulated."""

FEW_ORDERS = 120
"""Candidates with at most this many placements are simulated on all of them before annealing: 5 hosts. Chosen."""


def anneal_open(state: SearchState, clock: Clock) -> None:
    """Anneal each candidate, simulate it and add its critical paths, until nothing is new or time is over."""
    most_moves = MAX_MOVES if PROVERS in state.done else MAX_FIRST_MOVES
    while not (state.is_over or clock.is_over):
        able = [entry for entry in state.could_win() if entry.moves <= most_moves]
        if not able:
            return
        state.report(f"placing {counted(len(able), 'candidate')} for the simulator")
        for entry in able:
            if state.is_over or clock.is_over:
                return
            place_once(state, entry)


def is_relaxation_exact(instance: Instance, candidate: CandidateData) -> bool:
    """
    Return whether the longest path through the schedule reaches the simulated time at some placement.

    It may not in four cases. Experts send to other hosts: the relaxation has the best links. Rings have several hosts
    in some NVLink domains: it has as many as possible. Collectives overlap with compute that depends on the placement:
    it has the compute of the fastest host. There are so many hosts that overlapped rings have no levels: it has the
    best rings.
    """
    config, tile = candidate.config, candidate.tile
    certain = experts_stay_inside(instance, config, tile) and hops_decide(instance, config, tile)
    if not config.overlap_grad_reduce:
        return certain
    is_alike = len(instance.cluster.gpu_kinds) == 1 and tile.nodes_per_slot == 1
    return certain and is_alike and (candidate.ring_level.size > 0 or candidate.ring_length == 1)


def settle_few_orders(state: SearchState, clock: Clock) -> None:
    """Simulate every placement of candidate configurations that have only a few, before annealing."""
    for entry in state.could_win():
        if state.is_over or num_orders(state.data, entry.candidate) > FEW_ORDERS:
            continue
        state.report("simulating every placement")
        _simulate_all(state, entry, clock)


def _simulate_all(state: SearchState, entry: OpenCandidate, clock: Clock) -> bool:
    """Simulate all placements of a candidate; the best time becomes the bound. Return whether time sufficed."""
    settled = best_of_all(state.prepared.instance, state.data, entry.candidate, clock)
    if settled is None:
        return False
    nodes, seconds = settled
    if nodes is not None:
        state.look(entry, nodes)
    ticks = int(min(seconds * (1 - FLOAT_MARGIN) / state.data.tick_s, UNUSABLE_TICKS))
    state.raise_ticks(entry, ticks, EVERY_PLACEMENT)
    return True


def swap_hosts(state: SearchState, clock: Clock) -> None:
    """
    Bound candidate configurations by the slowest host. Improve placements by swapping hosts in the simulator, where
    relaxations are not exact.
    """
    instance = state.prepared.instance
    for entry in state.could_win():
        candidate = entry.candidate
        if clock.is_over or state.is_over:
            return
        state.report("placing by the simulator")
        bound_by_slowest_host(state, entry)
        if not state.may_be_faster(entry) or is_relaxation_exact(instance, candidate):
            continue
        if num_orders(state.data, candidate) <= MAX_ORDERS:
            _simulate_all(state, entry, clock)
        elif (best := state.plan_of(entry)) is not None:
            state.look(
                entry,
                improve_by_swaps(instance, state.data, candidate, best.nodes, clock, state.params.seed),
            )

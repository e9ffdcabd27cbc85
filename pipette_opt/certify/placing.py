"""
Placement of candidate configurations by annealing, and by swap local search with the simulator where relaxations are
not exact.
"""

from pipette_opt.base.units import counted
from pipette_opt.certify.ledger import Ledger, OpenCandidate
from pipette_opt.certify.opening import bound_by_slowest_host, place_once
from pipette_opt.plans.clock import Clock
from pipette_opt.problem.build import experts_stay_inside, hops_decide
from pipette_opt.problem.data import UNUSABLE_TICKS, CandidateData
from pipette_opt.simulate.swap_search import MAX_ORDERS, best_of_all, improve_by_swaps, num_orders
from pipette_opt.solver.pruning import FLOAT_MARGIN
from pipette_opt.specs import Instance

MAX_MOVES = 640_000
"""Largest number of moves of one annealing run. Chosen."""

ANNEALING_SHARE = 0.3
"""Largest fraction of the remaining time for annealing. Chosen."""

SWAPPING_SHARE = 0.5
"""
Fraction of the remaining time for candidate configurations whose relaxation never reaches the simulated time.
Chosen.
"""

EVERY_PLACEMENT = "judge of every placement"
"""Name of the bound of a candidate configuration whose placements were all simulated."""

FEW_ORDERS = 120
"""
Candidate configurations with at most this many placements are simulated on all of them before annealing: 5 hosts.
Chosen.
"""


def anneal_open(ledger: Ledger) -> None:
    """
    Anneal each candidate configuration, simulate it and add its critical paths, until annealing finds nothing new or
    time is over.
    """
    clock = ledger.clock.slice(ANNEALING_SHARE)
    while not (ledger.is_over or clock.is_over):
        able = [entry for entry in ledger.could_win() if entry.moves <= MAX_MOVES]
        if not able:
            return
        ledger.report(f"placing {counted(len(able), 'candidate')} for the simulator")
        for entry in able:
            if ledger.is_over or clock.is_over:
                return
            place_once(ledger, entry)


def is_relaxation_exact(instance: Instance, candidate: CandidateData) -> bool:
    """
    Return whether the longest path through the schedule reaches the simulated time at some placement.

    It may not in three cases. Experts send to other hosts: the relaxation has the best links. Collectives overlap with
    compute: it has the best rings. Rings have several hosts in some NVLink domains: it has as many as possible.
    """
    config, tile = candidate.config, candidate.tile
    certain = experts_stay_inside(instance, config, tile) and hops_decide(instance, config, tile)
    return certain and not config.overlap_grad_reduce


def settle_few_orders(ledger: Ledger) -> None:
    """Simulate every placement of candidate configurations that have only a few, before annealing."""
    for entry in ledger.could_win():
        if ledger.is_over or num_orders(ledger.data, entry.candidate) > FEW_ORDERS:
            continue
        ledger.report("simulating every placement")
        _simulate_all(ledger, entry, ledger.clock)


def _simulate_all(ledger: Ledger, entry: OpenCandidate, clock: Clock) -> bool:
    """
    Find a candidate configuration's best placement by simulating all; its time becomes the bound. Return whether time
    sufficed.
    """
    settled = best_of_all(ledger.prepared.instance, ledger.data, entry.candidate, clock)
    if settled is None:
        return False
    nodes, seconds = settled
    if nodes is not None:
        ledger.look(entry, nodes)
    entry.raise_bound(int(min(seconds * (1 - FLOAT_MARGIN) / ledger.data.tick_s, UNUSABLE_TICKS)), EVERY_PLACEMENT)
    return True


def swap_hosts(ledger: Ledger) -> None:
    """
    Improve placements by swapping hosts in the simulator, for candidate configurations whose relaxation is not
    exact.
    """
    clock = ledger.clock.slice(SWAPPING_SHARE)
    instance = ledger.prepared.instance
    for entry in ledger.could_win():
        candidate = entry.candidate
        if is_relaxation_exact(instance, candidate):
            continue
        if clock.is_over or ledger.is_over:
            return
        ledger.report("placing by the simulator")
        bound_by_slowest_host(ledger, entry)
        if not ledger.may_be_faster(entry):
            continue
        if num_orders(ledger.data, candidate) <= MAX_ORDERS:
            _simulate_all(ledger, entry, clock)
        elif entry.best is not None:
            ledger.look(
                entry,
                improve_by_swaps(instance, ledger.data, candidate, entry.best.nodes, clock, ledger.params.seed),
            )

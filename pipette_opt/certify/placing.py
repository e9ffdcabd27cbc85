"""
Placement of candidates for the simulator without a solver: annealing, and swapping hosts where relaxations
stay loose.
"""

import time

from pipette_opt.base.units import counted
from pipette_opt.certify.ledger import Ledger, OpenCandidate
from pipette_opt.certify.opening import bound_by_slowest_host, place_once
from pipette_opt.problem.build import experts_stay_inside, hops_decide
from pipette_opt.problem.data import UNUSABLE_TICKS, CandidateData
from pipette_opt.simulate.reseat import MAX_ORDERS, best_of_all, climb, num_orders
from pipette_opt.solver.pruning import FLOAT_MARGIN
from pipette_opt.specs import Instance

MAX_MOVES = 640_000
"""Number of moves of a candidate's longest annealing. Chosen."""

ANNEALING_SHARE = 0.3
"""Largest share of the remaining time for annealing. Chosen."""

RESEATING_SHARE = 0.5
"""Share of the time left afterwards for candidates whose relaxation never reaches the simulated time. Chosen."""

EVERY_PLACEMENT = "judge of every placement"
"""Name of the bound of a candidate whose placements were all simulated."""

FEW_ORDERS = 120
"""Largest number of placements of a candidate that are all simulated before annealing: 5 hosts in any order. Chosen."""


def anneal_open(ledger: Ledger) -> None:
    """Place, simulate and cut each candidate until annealing teaches nothing new, or its share of the time is over."""
    ends = time.perf_counter() + ANNEALING_SHARE * max(ledger.seconds_left, 0.0)
    while not ledger.is_over and time.perf_counter() < ends:
        able = [entry for entry in ledger.could_win() if entry.moves <= MAX_MOVES]
        if not able:
            return
        ledger.report(f"placing {counted(len(able), 'candidate')} for the simulator")
        for entry in able:
            if ledger.is_over or time.perf_counter() >= ends:
                return
            place_once(ledger, entry)


def form_is_exact(instance: Instance, candidate: CandidateData) -> bool:
    """
    Return whether paths through the schedule reach the simulated time at some placement.

    They may not in three cases: experts send to other hosts (best links are counted), collectives overlap with compute
    (counted with the best rings), or rings have several hosts in some NVLink domains (counted with as many as
    possible).
    """
    config, block = candidate.config, candidate.block
    certain = experts_stay_inside(instance, config, block) and hops_decide(instance, config, block)
    return certain and not config.overlap_grad_reduce


def settle_few_orders(ledger: Ledger) -> None:
    """Simulate every placement of candidates that have very few, before annealing."""
    for entry in ledger.could_win():
        if ledger.is_over or num_orders(ledger.data, entry.candidate) > FEW_ORDERS:
            continue
        ledger.report("simulating every placement")
        _simulate_all(ledger, entry, ledger.ends)


def _simulate_all(ledger: Ledger, entry: OpenCandidate, ends: float) -> bool:
    """Find a candidate's best placement, whose time is its bound. Return whether time sufficed."""
    settled = best_of_all(ledger.prepared.instance, ledger.data, entry.candidate, ends, ledger.stop)
    if settled is None:
        return False
    nodes, seconds = settled
    if nodes is not None:
        ledger.look(entry, nodes)
    entry.raise_bound(int(min(seconds * (1 - FLOAT_MARGIN) / ledger.data.tick_s, UNUSABLE_TICKS)), EVERY_PLACEMENT)
    return True


def swap_hosts(ledger: Ledger) -> None:
    """Improve placements by the simulator, by swapping hosts, for candidates whose relaxation is not exact."""
    ends = time.perf_counter() + RESEATING_SHARE * max(ledger.seconds_left, 0.0)
    instance = ledger.prepared.instance
    for entry in ledger.could_win():
        candidate = entry.candidate
        if form_is_exact(instance, candidate):
            continue
        if time.perf_counter() >= ends or ledger.is_over:
            return
        ledger.report("placing by the simulator")
        bound_by_slowest_host(ledger, entry)
        if not ledger.may_be_faster(entry):
            continue
        if num_orders(ledger.data, candidate) <= MAX_ORDERS:
            _simulate_all(ledger, entry, ends)
        elif entry.best is not None:
            ledger.look(
                entry, climb(instance, ledger.data, candidate, entry.best.nodes, ends, ledger.stop, ledger.params.seed)
            )

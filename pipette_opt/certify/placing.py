"""Placing candidates for the simulator without a solver: annealing, and those that no form times exactly."""

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
"""Moves of a candidate's longest annealing. Chosen."""

ANNEALING_SHARE = 0.3
"""Share of the time left that annealing may take. Chosen."""

RESEATING_SHARE = 0.5
"""Part of the time left after that for candidates whose lower form never reaches the simulated time. Chosen."""

EVERY_PLACEMENT = "judge of every placement"
"""Name of the bound that a candidate has once all its placements are simulated."""

FEW_ORDERS = 120
"""Placements of a candidate up to which all are simulated before anything is annealed: 5 hosts in any order. Chosen."""


def anneal_open(ledger: Ledger) -> None:
    """Place, simulate and cut each candidate until that teaches nothing more, or its share of the time is over."""
    ends = time.perf_counter() + ANNEALING_SHARE * max(ledger.seconds_left, 0.0)
    while not ledger.is_over and time.perf_counter() < ends:
        able = [one for one in ledger.could_win() if one.moves <= MAX_MOVES]
        if not able:
            return
        ledger.report(f"placing {counted(len(able), 'candidate')} for the simulator")
        for one in able:
            if ledger.is_over or time.perf_counter() >= ends:
                return
            place_once(ledger, one)


def form_is_exact(instance: Instance, candidate: CandidateData) -> bool:
    """
    Whether paths through the schedule reach the simulated time at some placement.

    They may not where experts send to other hosts (best links are counted), collectives run beside compute (what they
    add is that of the best rings), or rings have several hosts in each of some NVLink domains (as many as can be).
    """
    config, block = candidate.config, candidate.block
    certain = experts_stay_inside(instance, config, block) and hops_decide(instance, config, block)
    return certain and not config.overlap_grad_reduce


def settle_few_orders(ledger: Ledger) -> None:
    """Simulate every placement of candidates that have next to none, before anything is annealed."""
    for one in ledger.could_win():
        if ledger.is_over or num_orders(ledger.data, one.candidate) > FEW_ORDERS:
            continue
        ledger.report("simulating every placement")
        _simulate_all(ledger, one, ledger.ends)


def _simulate_all(ledger: Ledger, one: OpenCandidate, ends: float) -> bool:
    """The best placement of a candidate, and its time as its bound; whether there was time enough."""
    settled = best_of_all(ledger.prepared.instance, ledger.data, one.candidate, ends, ledger.stop)
    if settled is None:
        return False
    nodes, seconds = settled
    if nodes is not None:
        ledger.look(one, nodes)
    one.raise_bound(int(min(seconds * (1 - FLOAT_MARGIN) / ledger.data.tick_s, UNUSABLE_TICKS)), EVERY_PLACEMENT)
    return True


def swap_hosts(ledger: Ledger) -> None:
    """Place candidates by the simulator alone whose lower form is not exact."""
    ends = time.perf_counter() + RESEATING_SHARE * max(ledger.seconds_left, 0.0)
    instance = ledger.prepared.instance
    for one in ledger.could_win():
        candidate = one.candidate
        if form_is_exact(instance, candidate):
            continue
        if time.perf_counter() >= ends or ledger.is_over:
            return
        ledger.report("placing by the simulator")
        bound_by_slowest_host(ledger, one)
        if not ledger.may_be_faster(one):
            continue
        if num_orders(ledger.data, candidate) <= MAX_ORDERS:
            _simulate_all(ledger, one, ends)
        elif one.best is not None:
            ledger.look(
                one, climb(instance, ledger.data, candidate, one.best.nodes, ends, ledger.stop, ledger.params.seed)
            )

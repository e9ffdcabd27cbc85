"""Best packing within a time limit, and a lower bound on the time of all packings."""

from dataclasses import dataclass

from pipette_opt.base.units import at_most_percent
from pipette_opt.plans.clock import Clock
from pipette_opt.solver.packing.bounds import time_bound
from pipette_opt.solver.packing.exact import is_small, solved
from pipette_opt.solver.packing.problem import Packing, PackingProblem, total_time
from pipette_opt.solver.packing.relaxation import relaxed, rounded
from pipette_opt.solver.packing.search import improved
from pipette_opt.solver.packing.start import best_start

DONE = 1.0005
"""Time over its bound at which the search ends. Chosen: 0.05 % is far below the error of any predicted time."""

FIRST_S, FIRST_SHARE = 2.0, 0.1
"""Limits of the first local search, in seconds and as a share of the time limit. Chosen by benchmarks.packing."""

RELAXATION_SHARE, TRIAL_SHARE = 0.4, 0.2
"""Shares of the remaining time for the relaxation and for each start from it. Chosen by benchmarks.packing."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PackingResult:
    """
    Packing with its time and a lower bound, both in units of work.

    Parameters
    ----------
    problem
        The problem with the number of steps that the packing takes; the bound holds for packings in as many.
    is_arithmetic
        Whether the bound is of sums and sorted lists, so that it can be computed again without a solver.
    """

    problem: PackingProblem
    packing: Packing
    time: int
    bound: int
    is_arithmetic: bool


def pack_documents(problem: PackingProblem, clock: Clock, workers: int = 1, seed: int = 0) -> PackingResult:
    """Return the best packing that is found until the clock is over, in the fewest steps of best-fit decreasing."""
    problem, packing = best_start(problem)
    clock.watcher.is_prepared = True
    bound = arithmetic = time_bound(problem)

    def search(start: Packing, share: float = 1.0) -> Packing:
        time = total_time(problem, best(packing, start))
        clock.report(f"local search (at most {at_most_percent(time / bound - 1)} above the best)")
        return improved(problem, start, clock.slice(share), bound * DONE, seed)

    def best(*packings: Packing) -> Packing:
        return min(packings, key=lambda each: total_time(problem, each))

    small = is_small(problem)
    packing = search(packing, 0.01 if small else min(FIRST_SHARE, FIRST_S / max(clock.left_s, FIRST_S)))
    if small and total_time(problem, packing) > bound:
        clock.report("CP-SAT model of all bins")
        packing, bound = solved(problem, packing, bound, clock, workers, seed)
    if total_time(problem, packing) > bound * DONE and not clock.is_over:
        clock.report("relaxation: long documents, and short ones as a fluid")
        found = relaxed(problem, clock.slice(RELAXATION_SHARE), workers, seed)
        if found is not None:
            bound = max(bound, found.bound)
            starts = [rounded(problem, found, by_class=by_class) for by_class in (False, True)]
            packing = best(packing, *(search(start, TRIAL_SHARE) for start in starts if start is not None))
        packing = search(packing)
    time = total_time(problem, packing)
    return PackingResult(
        problem=problem, packing=packing, time=time, bound=min(bound, time), is_arithmetic=bound == arithmetic
    )

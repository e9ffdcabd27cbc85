"""Solver as comparisons run it: annealing and proof alternate, each round twice as long as the round before."""

import threading
from collections.abc import Iterable
from dataclasses import replace

import numpy as np

from pipette_opt.annealing.anneal import AnnealingParams
from pipette_opt.annealing.threads import anneal_on_threads
from pipette_opt.plans.clock import Clock
from pipette_opt.plans.watcher import Watcher
from pipette_opt.problem.data import ProblemData
from pipette_opt.problem.solution import Result, Solution, result_of
from pipette_opt.solver.incumbent import OnProgress
from pipette_opt.solver.params import SolverParams
from pipette_opt.solver.solve import solve

FIRST_S_PER_HOST = 0.03
"""Seconds per host of the first round's annealing, and of its proof. Chosen."""

MIN_PROOF_S = 1.0
"""Minimum time of a proof, seconds: building the CP-SAT model comes before any bound. Chosen."""


def place(
    data: ProblemData,
    params: SolverParams,
    on_progress: OnProgress | None = None,
    stop: threading.Event | None = None,
) -> Result:
    """
    Return the best candidate with its placement, and a bound over all candidates.

    :func:`~pipette_opt.solver.solve.solve` proves bounds, but finds few placements itself. Each round starts from the
    bounds and placements of the round before; the engines themselves start anew. The last round uses the rest of the
    time limit.
    """
    clock = Clock(watcher=Watcher() if stop is None else Watcher(stop=stop)).after(params.time_limit_s)
    bounds = np.zeros(len(data.candidates), dtype=np.int64)
    best_of: dict[int, Solution] = {}
    seconds, seed, pruned = FIRST_S_PER_HOST * data.num_nodes, params.seed, 0
    while True:
        left_s = clock.left_s
        is_last = left_s <= 2 * (seconds + MIN_PROOF_S)
        annealing = AnnealingParams(time_limit_s=min(seconds, left_s / 2), seed=seed)
        annealed = anneal_on_threads(data, annealing, params.num_workers, clock.stop, tuple(best_of.values()))
        _keep(best_of, [solution for result in annealed for solution in result.solutions])
        known = zip(data.candidates, bounds.tolist(), strict=True)
        bounded = replace(data, candidates=tuple(replace(each, least_ticks=bound) for each, bound in known))
        settings = replace(params, time_limit_s=clock.left_s if is_last else max(seconds, MIN_PROOF_S), seed=seed)
        result = solve(bounded, settings, tuple(best_of.values()), on_progress, clock.stop)
        _keep(best_of, result.solutions)
        bounds, pruned = np.maximum(bounds, result.candidate_bounds), max(pruned, result.num_pruned)
        result = result_of(best_of.values(), bounds, clock.watcher.started)
        best = result.solution
        close = best and best.objective_ticks - result.lower_bound_ticks <= params.gap_limit * best.objective_ticks
        if close or result.status == "INFEASIBLE" or clock.is_over:
            return replace(result, num_pruned=pruned)
        seconds, seed = 2 * seconds, seed + 1


def _keep(best_of: dict[int, Solution], found: Iterable[Solution]) -> None:
    """Update ``best_of``, the best placement of each candidate, with the found placements."""
    for solution in found:
        known = best_of.get(solution.candidate)
        if known is None or solution.objective_ticks < known.objective_ticks:
            best_of[solution.candidate] = solution

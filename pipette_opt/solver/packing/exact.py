"""CP-SAT model of a small packing: how many documents of each length are in each bin."""

import math
from itertools import pairwise

import numpy as np
from ortools.sat.python import cp_model

from pipette_opt.plans.clock import Clock
from pipette_opt.solver.packing.problem import Packing, PackingProblem, bin_sums, lane_times
from pipette_opt.solver.stoppable import new_solver, solve_within

MAX_CELLS = 1_000
"""Largest number of distinct lengths times bins that this model takes. Chosen: more is not proven in half a minute."""


def is_small(problem: PackingProblem) -> bool:
    """Return whether the model is small enough."""
    return len(np.unique(problem.lengths)) * problem.num_bins <= MAX_CELLS


def solved(
    problem: PackingProblem, packing: Packing, bound: int, clock: Clock, workers: int, seed: int
) -> tuple[Packing, int]:
    """
    Return the best packing and the bound of CP-SAT, which begins with a packing and a bound.

    Bins of a lane are in the order of their work, lanes in the order of their time.
    """
    lengths, kinds, counts = np.unique(problem.lengths, return_inverse=True, return_counts=True)
    works = {kind: int(problem.works[np.argmax(kinds == kind)]) for kind in range(len(lengths))}
    size, bins = problem.bins_per_lane, range(problem.num_bins)
    order = _order(problem, packing)
    model = cp_model.CpModel()
    amounts = {}
    for kind, length in enumerate(lengths.tolist()):
        most = min(int(counts[kind]), problem.bin_tokens // length)
        row = [model.new_int_var(0, most, "") for _ in bins]
        model.add(sum(row) == int(counts[kind]))
        for place, amount in enumerate(row):
            amounts[kind, place] = amount
            model.add_hint(amount, int(((packing.bin_of == order[place]) & (kinds == kind)).sum()))
    sums = []
    for place in bins:
        model.add(
            sum(length * amounts[kind, place] for kind, length in enumerate(lengths.tolist())) <= problem.bin_tokens
        )
        sums.append(sum(works[kind] * amounts[kind, place] for kind in works))
        if place % size:
            model.add(sums[-2] >= sums[-1])
    times = [
        sum(sums[first : first + size]) + problem.largest_weight * sums[first] for first in range(0, len(bins), size)
    ]
    for longer, shorter in pairwise(times):
        model.add(longer >= shorter)
    slowest = times[:: problem.num_replicas]
    total = sum(int(weight) * time for weight, time in zip(problem.wave_weights, slowest, strict=True))
    model.add(total >= bound)
    model.minimize(total)
    solver = new_solver()
    status = solve_within(solver, model, clock, workers, seed)
    if status not in (cp_model.OPTIMAL, cp_model.FEASIBLE):
        return packing, bound
    bin_of = np.zeros(len(problem.lengths), np.int64)
    for kind in works:
        found = [solver.value(amounts[kind, place]) for place in bins]
        bin_of[kinds == kind] = np.repeat(np.arange(len(bins)), found)
    return Packing(bin_of=bin_of, lane_of=np.arange(len(bins)) // size), max(
        bound, math.ceil(solver.best_objective_bound - 1e-6)
    )


def _order(problem: PackingProblem, packing: Packing) -> list[int]:
    """Return bins as the model has them: lanes by their time, bins of a lane by their work, the largest first."""
    works, times = bin_sums(problem, packing.bin_of, problem.works), lane_times(problem, packing)
    lanes = packing.lane_of
    order: list[int] = np.lexsort((-works, lanes, -times[lanes])).tolist()
    return order

"""Annealing of one candidate configuration: restarts from hot to cold."""

import time

import numpy as np

from pipette_opt.annealing.compiled import NUM_TIMES, evaluate, tables
from pipette_opt.annealing.kernels import anneal_tuned, fits, random_start
from pipette_opt.base.types import IntArray
from pipette_opt.problem.data import UNUSABLE_TICKS, ProblemData

MAX_MOVES = 1_000_000
"""Largest number of moves of one restart, which cannot be stopped before its end. Chosen."""

SOFTNESS = 3.0
"""Temperature of the soft maxima, relative to that of the moves. Chosen."""

SCHEDULES = ((4.0, False), (8.0, False), (4.0, False), (1.6, True))
"""Schedules of restarts, taken in turn: temperature factor, and whether they start at the best placement. Chosen."""

LARGE_CELLS = 256
"""From this number of cells, every restart starts at the best placement, as a random start takes too long. Chosen."""

LARGE_SCHEDULES = ((1.6, True), (0.8, True), (4.0, True), (8.0, True))
LARGE_FACTOR_CELLS = 64
"""
Schedules of large grids, and the number of cells for which their temperature factors are chosen.

On more cells, the factor falls in proportion, because one swap changes a smaller part of the objective.
"""

REFINED_CELLS = 64
"""From this number of cells, annealing refines a placement that it is given. Chosen."""


class CandidateSearch:
    """
    Annealing of one candidate configuration, with the best placement found.

    Parameters
    ----------
    bound
        Lower bound of the candidate's objective, integer ticks.
    hot, cold
        First and last temperature of a restart, as a fraction of the start's distance to the bound.
    """

    def __init__(self, data: ProblemData, index: int, bound: int, *, seed: int, hot: float, cold: float) -> None:
        candidate = data.candidates[index]
        self.index, self.bound, self.hot, self.cold = index, bound, hot, cold
        self.grid, self.num_cells = candidate.grid, candidate.num_cells
        self.tables = tables(data, candidate)
        self.random = np.random.SeedSequence((seed, index)).generate_state(1, np.uint64) | np.uint64(1)
        self.nodes = np.empty(data.num_nodes, dtype=np.int64)
        self.best_nodes = self.nodes.copy()
        self.best: int = UNUSABLE_TICKS
        self.restarts, self.moves_per_s = 0, 1e6 * min(1.0, 128 / self.num_cells)
        stages = candidate.num_stages
        self.finish = np.zeros((stages, self.grid[1]), dtype=np.int64)
        self.ring = np.zeros(stages, dtype=np.int64)
        self.times = np.zeros((NUM_TIMES, stages), dtype=np.int64)

    def offer(self, nodes: IntArray) -> None:
        """Keep a placement if it fits and is better than the best; ``nodes`` lists all hosts, the grid's first."""
        if fits(self.tables, nodes):
            value = self.value(nodes)
            if value < self.best:
                self.best, self.best_nodes = value, nodes.copy()

    def restart(self, moves: int) -> None:
        """Anneal once from hot to cold, by the next schedule."""
        is_known = self.best < UNUSABLE_TICKS
        refines = self.num_cells >= LARGE_CELLS or (is_known and self.num_cells >= REFINED_CELLS)
        factor, from_best = (LARGE_SCHEDULES if refines else SCHEDULES)[self.restarts % len(SCHEDULES)]
        if refines:
            factor *= LARGE_FACTOR_CELLS / self.num_cells
        self.restarts += 1
        started = time.perf_counter()
        energy = self.random_start()
        if from_best and is_known:
            self.nodes[:] = self.best_nodes
        scale = factor * max(energy - self.bound, 1)
        moves, found = min(moves, MAX_MOVES), self.nodes.copy()
        hot, cold = self.hot * scale, self.cold * scale
        value = anneal_tuned(self.tables, self.nodes, found, self.random, moves, hot, cold, SOFTNESS)
        if value < self.best:
            self.best, self.best_nodes = int(value), found
        self.moves_per_s = moves / max(time.perf_counter() - started, 1e-9)

    def cells(self) -> IntArray:
        """Return the hosts of the best placement in the grid's shape."""
        return self.best_nodes[: self.num_cells].reshape(self.grid)

    def random_start(self) -> int:
        """Fill ``nodes`` with a random placement. Return its objective, integer ticks."""
        random_start(self.tables, self.nodes, self.random)
        return self.value(self.nodes)

    def value(self, nodes: IntArray) -> int:
        """Return the integer objective of a placement, ticks."""
        return int(evaluate(self.tables, nodes, self.finish, self.ring, self.times))

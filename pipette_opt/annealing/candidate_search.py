"""
Annealing of one candidate configuration: restarts from hot to cold, and replica exchange between several temperatures.

A restart needs to know its length beforehand; replica exchange (Swendsen and Wang, Phys. Rev. Lett. 57, 1986) does not.
Hot replicas cross between valleys, and good placements move down the temperature ladder to the cold ones. With an equal
seed, a longer run repeats a shorter one and continues it.
"""

import time
from collections.abc import Callable, Iterator
from operator import itemgetter

import numpy as np

from pipette_opt.annealing import kernels, swaps
from pipette_opt.annealing.compiled import evaluate, tables
from pipette_opt.annealing.plain_grid import grid_of, has_grid
from pipette_opt.annealing.replicas import QUENCH_EVERY, anneal_replicas
from pipette_opt.base.types import IntArray
from pipette_opt.problem.data import UNUSABLE_TICKS, ProblemData

CHUNK_S = 0.2
"""Approximate seconds of replica exchange between two checks of the time and the stop event. Chosen."""

CHUNK_MOVES = 16 * swaps.REBUILD
"""
Number of moves of a restart between two checks of the time and the stop event.

It is a constant because random thresholds are drawn when a part of the restart begins.
"""

MAX_CHUNK_MOVES = 1_000_000
"""Largest number of moves of one restart in the general kernel, which cannot be stopped before its end. Chosen."""

GENERAL_HOT = 4.0
"""Factor on the temperatures in the general kernel, which accepts moves by the hard maximum. Chosen."""

SCHEDULES = ((1.0, 10.0, False), (2.0, 5.0, False), (1.0, 20.0, False), (0.4, 10.0, True))
"""Schedules of restarts, taken in turn: temperature factor, softness of the soft maxima, start at the best. Chosen."""

LARGE_CELLS = 256
"""From this number of cells, annealing refines coarse placements, as a random start would take too long. Chosen."""

LARGE_SCHEDULES = ((0.4, 10.0, True), (0.2, 10.0, True), (1.0, 10.0, True), (2.0, 10.0, True))
LARGE_FACTOR_CELLS = 64
"""
Schedules of large grids, and the number of cells for which their temperature factors are chosen.

On more cells, the factor falls in proportion, because one swap changes a smaller part of the objective.
"""

REFINED_CELLS = 64
"""From this number of cells, annealing refines a placement that it is given. Chosen."""

SETTLED_MOVES, SETTLED_FACTOR, SETTLED_SOFTNESS = 200, 0.4, 10.0
"""Moves per cell and start that suffice to compare coarse starts; temperature factor and softness then. Chosen."""

NUM_REPLICAS, REPLICA_SOFTNESS = 10, 10.0
HOTTEST, HOTTEST_CELLS, COLDEST = 1.5, 64, 3.0
"""
Factors of the hottest and the coldest replica's temperature, relative to those of a restart. Chosen.

With fewer cells than ``HOTTEST_CELLS``, the hottest temperature rises in proportion, because one swap changes a larger
part of the objective.
"""

QUENCH_FACTOR = 0.1
"""Temperature factor of restarts from the best replica. Chosen."""

ROUND_MOVES = NUM_REPLICAS * swaps.REBUILD * (QUENCH_EVERY + 1) // QUENCH_EVERY
"""Mean number of moves of all replicas between two exchanges, including restarts from the best replica."""


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
        self.index, self.bound, self.hot, self.cold = index, bound, hot, cold
        self.grid = data.candidates[index].grid
        self.tables = tables(data, data.candidates[index])
        self.simple = grid_of(self.tables) if has_grid(self.tables) else None
        self.random = np.random.SeedSequence((seed, index)).generate_state(1, np.uint64) | np.uint64(1)
        self.nodes = np.empty(data.num_nodes, dtype=np.int64)
        self.best_nodes = self.nodes.copy()
        self.best: int = UNUSABLE_TICKS
        self.temperature, self.energy = 1.0, 0
        self.replicas: _Replicas | None = None
        self.restarts, self.moves, self.moves_per_s = 0, 0, 1e6 * min(1.0, 128 / data.candidates[index].num_cells)
        cells = data.candidates[index].num_cells
        self.is_large = cells >= LARGE_CELLS
        self.starts: list[IntArray] = []
        self.archive = np.full((swaps.NUM_ARCHIVED, 2), -1, dtype=np.int64)
        self.archived = np.zeros((swaps.NUM_ARCHIVED, cells), dtype=np.int64)
        t = self.tables
        self.finish = np.zeros((len(t.watched), self.grid[1]), dtype=np.int64)
        self.ring = np.zeros(len(t.watched), dtype=np.int64)
        self.times = np.zeros((6, len(t.row)), dtype=np.int64)

    def offer(self, nodes: IntArray) -> None:
        """Keep a placement if it fits and is better than the best; ``nodes`` lists all hosts, the grid's first."""
        if kernels.fits(self.tables, nodes):
            value = self.value(nodes)
            if value < self.best:
                self.best, self.best_nodes = value, nodes.copy()

    def archived_nodes(self) -> Iterator[IntArray]:
        """Yield the archived placements with the spare hosts appended, then empty the archive."""
        everything = np.arange(len(self.nodes))
        for place in np.flatnonzero(self.archive[:, 0] >= 0):
            cells = self.archived[place]
            yield np.concatenate([cells, np.setdiff1d(everything, cells)])
        self.archive[:] = -1

    def restart(self, moves: int, is_over: Callable[[], bool]) -> None:
        """Anneal once from hot to cold, by the next schedule of the tuned variant."""
        refines = self.is_large or (self.best < UNUSABLE_TICKS and self.archived.shape[1] >= REFINED_CELLS)
        factor, softness, from_best = (LARGE_SCHEDULES if refines else SCHEDULES)[self.restarts % len(SCHEDULES)]
        if refines:
            factor *= self._cooler
        self.restarts += 1
        started = time.perf_counter()
        energy = self.random_start()
        if from_best and self.best < UNUSABLE_TICKS:
            self.nodes[:] = self.best_nodes
        scale = factor * max(energy - self.bound, 1)
        hot, cold = self.hot * scale, self.cold * scale
        if self.simple is None:
            moves = min(moves, MAX_CHUNK_MOVES)
            self._anneal_any(moves, GENERAL_HOT * hot, GENERAL_HOT * cold, min(softness, 3.0))
        else:
            moves = self._anneal_grid(moves, hot, cold, softness, is_over)
        self.moves_per_s = moves / max(time.perf_counter() - started, 1e-9)

    @property
    def settling_moves(self) -> int:
        """Number of moves that suffice to compare the coarse starts."""
        return SETTLED_MOVES * self.archived.shape[1] * len(self.starts)

    def settle(self, moves: int, is_over: Callable[[], bool]) -> None:
        """
        Anneal all coarse starts at low temperature, drop the worse half, and repeat until one is left.

        All rounds have equally many moves. The objective of a start does not predict the result: a poor start can
        become the best.
        """
        scale = SETTLED_FACTOR * self._cooler * max(self.random_start() - self.bound, 1)
        rounds = len(self.starts).bit_length()
        while self.starts and not is_over():
            settled = []
            for nodes in self.starts:
                self.nodes[:] = nodes
                best, best_nodes = self.best, self.best_nodes
                self.best, self.best_nodes = self.value(nodes), nodes.copy()
                part = max(1, moves // (rounds * len(self.starts)))
                self._anneal_grid(part, self.hot * scale, self.cold * scale, SETTLED_SOFTNESS, is_over)
                settled.append((self.best, self.best_nodes))
                if best <= self.best:
                    self.best, self.best_nodes = best, best_nodes
            settled.sort(key=itemgetter(0))
            self.starts = [nodes for _, nodes in settled[: len(settled) // 2]]
        self.starts = []

    @property
    def _cooler(self) -> float:
        """Factor from a temperature for ``LARGE_FACTOR_CELLS`` cells to the temperature for this grid."""
        return LARGE_FACTOR_CELLS / self.archived.shape[1]

    def temper(self, moves: int, is_over: Callable[[], bool]) -> None:
        """Continue replica exchange for about ``moves`` moves; only for candidates of the plain-grid kernel."""
        if self.replicas is None:
            self.replicas = _Replicas(self)
        self.replicas.run(moves, is_over)

    def load_replicas(self) -> None:
        """Load the kernels of replica exchange and of shared placements, which numba compiles once per installation."""
        kernels.fits(self.tables, np.arange(len(self.nodes), dtype=np.int64))
        kernels.uniform(self.random.copy())

    def _anneal_any(self, moves: int, hot: float, cold: float, softness: float) -> None:
        trial_nodes = self.nodes.copy()
        found = kernels.anneal_tuned(self.tables, self.nodes, trial_nodes, self.random, moves, hot, cold, softness)
        if found < self.best:
            self.best, self.best_nodes = int(found), trial_nodes

    def _anneal_grid(self, moves: int, hot: float, cold: float, softness: float, is_over: Callable[[], bool]) -> int:
        """Anneal in parts between checks of the stop event. Return the number of moves made."""
        for begin in range(0, moves, CHUNK_MOVES):
            if begin and is_over():
                self.moves += begin
                return begin
            end = min(begin + CHUNK_MOVES, moves)
            self.best = int(
                swaps.anneal_grid(
                    self.simple,
                    self.nodes,
                    self.best,
                    self.best_nodes,
                    self.random,
                    begin,
                    end,
                    moves,
                    hot,
                    cold,
                    softness,
                    self.archive,
                    self.archived,
                )
            )
        self.moves += moves
        return moves

    def proceed(self, moves: int) -> None:
        """Continue annealing with Pipette's variant for ``moves`` moves."""
        if self.best == UNUSABLE_TICKS:
            self.energy = self.random_start()
            self.best = self.energy
            self.best_nodes = self.nodes.copy()
        self.temperature, self.energy, self.best = kernels.anneal_pipette(
            self.tables, self.nodes, self.best_nodes, self.random, moves, self.temperature, self.energy, self.best
        )

    def cells(self) -> IntArray:
        """Return the hosts of the best placement in the grid's shape."""
        return self.best_nodes[: int(np.prod(self.grid))].reshape(self.grid)

    def random_start(self) -> int:
        """Fill ``nodes`` with a random placement. Return its objective, integer ticks."""
        kernels.random_start(self.tables, self.nodes, self.random)
        return self.value(self.nodes)

    def value(self, nodes: IntArray) -> int:
        """Return the integer objective of a placement, ticks."""
        return int(evaluate(self.tables, nodes, self.finish, self.ring, self.times))


class _Replicas:
    """Placements of one candidate configuration at temperatures from hot to cold, for replica exchange."""

    def __init__(self, search: CandidateSearch) -> None:
        self.search = search
        self.scale = max(search.random_start() - search.bound, 1)
        hottest = HOTTEST * max(1.0, HOTTEST_CELLS / search.archived.shape[1])
        self.temperatures = self.scale * np.geomspace(hottest * search.hot, COLDEST * search.cold, NUM_REPLICAS)
        self.nodes = np.empty((NUM_REPLICAS, len(search.nodes)), dtype=np.int64)
        for replica in self.nodes:
            search.random_start()
            replica[:] = search.nodes
        self.best = UNUSABLE_TICKS
        self.rounds = 0

    def run(self, moves: int, is_over: Callable[[], bool]) -> None:
        """
        Run rounds of moves and exchanges for about ``moves`` moves.

        A better placement found otherwise since the last call becomes the coldest replica.
        """
        search = self.search
        if search.best < self.best:
            self.nodes[-1] = search.best_nodes
        last = self.rounds + max(1, round(moves / ROUND_MOVES))
        while True:
            rounds = min(last - self.rounds, max(1, int(CHUNK_S * search.moves_per_s / ROUND_MOVES)))
            started = time.perf_counter()
            self.anneal(rounds)
            search.moves_per_s = rounds * ROUND_MOVES / max(time.perf_counter() - started, 1e-9)
            if self.rounds >= last or is_over():
                break
        self.best = search.best

    def anneal(self, rounds: int) -> None:
        """Run ``rounds`` more rounds of moves and exchanges."""
        search, cool = self.search, QUENCH_FACTOR * self.scale
        assert search.simple is not None
        search.best = int(
            anneal_replicas(
                search.simple,
                search.tables,
                self.nodes,
                self.temperatures,
                self.rounds,
                rounds,
                search.best,
                search.best_nodes,
                search.random,
                cool * search.hot,
                cool * search.cold,
                REPLICA_SOFTNESS,
                search.archive,
                search.archived,
            )
        )
        self.rounds += rounds

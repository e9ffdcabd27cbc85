"""Simulated annealing over the placements of the promising candidates."""

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from pipette_opt.heuristics import kernels, swaps
from pipette_opt.heuristics.coarse import coarse_starts
from pipette_opt.heuristics.common import checked_solution, result_of
from pipette_opt.heuristics.compiled import evaluate, tables
from pipette_opt.optimistic import optimistic_ticks
from pipette_opt.problem import UNUSABLE_TICKS, ProblemData
from pipette_opt.solution import Result, Solution
from pipette_opt.types import IntArray

MAX_CHUNK_MOVES = 1_000_000
"""Moves of a restart of the general kernel at most, which cannot be stopped meanwhile."""

CHUNK_S = 0.2
"""Seconds of annealing after which time and stop are looked at, about."""

GENERAL_HOT = 4.0
"""Temperatures of the general kernel over those of the grid's: its moves see the hard maximum."""

SHARED_MOVES = 100_000
"""Restarts of so many moves offer all that they have archived to the other candidates of the shape."""

SCHEDULES = ((1.0, 10.0, False), (2.0, 5.0, False), (1.0, 20.0, False), (0.4, 10.0, True))
"""Of the restarts in turn: temperature factor, spread of the soft maxima over temperature, start from the best."""

LARGE_CELLS = 256
"""From here on a random start takes too long: annealing refines coarse placements."""

LARGE_SCHEDULES = ((0.1, 10.0, True), (0.3, 10.0, True), (0.05, 5.0, True), (1.0, 10.0, True))
"""The same for large grids."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AnnealingParams:
    """
    How long and how to anneal.

    Parameters
    ----------
    variant
        ``tuned``, or ``pipette``: the five moves and the schedule that Pipette's annealer has (temperature 1,
        0.999 per move, worsenings scaled to [0.1, 1)), on this objective.
    time_limit_s
        Wall time; which restarts are run is the same for the same seed, how many depends on the time.
    max_moves
        Moves in all; with this and no time limit the result depends on the seed only.
    first_moves
        Moves of each candidate's first restart; later ones double.
    hot, cold
        First and last temperature of a restart, as share of what the start could improve.
    pool_gap, pool_size
        Candidates that cannot beat the best, but whose optimistic time is at most this share above it, get one
        restart for the pool (another judge may rank them first), at most this many and a third of the budget.
    """

    variant: Literal["tuned", "pipette"] = "tuned"
    time_limit_s: float | None = 5.0
    max_moves: int | None = None
    seed: int = 0
    first_moves: int = 20_000
    hot: float = 0.005
    cold: float = 0.0002
    pool_gap: float = 0.03
    pool_size: int = 32

    def __post_init__(self) -> None:
        if self.time_limit_s is None and self.max_moves is None:
            raise ValueError("time_limit_s or max_moves must be given, got neither.")
        if self.time_limit_s is not None and self.time_limit_s < 0:
            raise ValueError(f"time_limit_s must be >= 0, got {self.time_limit_s}.")
        if self.max_moves is not None and self.max_moves < 1:
            raise ValueError(f"max_moves must be >= 1, got {self.max_moves}.")
        if self.first_moves < 1:
            raise ValueError(f"first_moves must be >= 1, got {self.first_moves}.")
        if self.pool_gap < 0:
            raise ValueError(f"pool_gap must be >= 0, got {self.pool_gap}.")
        if self.pool_size < 0:
            raise ValueError(f"pool_size must be >= 0, got {self.pool_size}.")
        if not 0 < self.cold <= self.hot:
            raise ValueError(f"temperatures must satisfy 0 < cold <= hot, got cold={self.cold}, hot={self.hot}.")


LONG_CELLS, LONG_SHARE = 24, 1 / 3
"""From so many cells on a candidate that is alone has restarts that take this share of the time left: on many hosts a
long one finds what several short ones do not."""

REFINED_FACTOR, REFINED_SOFTNESS = 0.3, 10.0
"""Temperature factor and spread with which a given placement is refined."""


class _Shapes:
    """The placements worth trying for each shape of grid, whichever candidate they were found for."""

    def __init__(self, data: ProblemData, start: Sequence[Solution], offer: Callable[[Solution], None] | None) -> None:
        self.data, self.offer = data, offer
        self.found: dict[tuple[int, int, int], list[IntArray]] = {}
        self.searches: dict[tuple[int, int, int], list[_Search]] = {}
        self.told: dict[int, int] = {}
        everything = np.arange(data.num_nodes)
        for one in start:
            if checked_solution(data, one.candidate, one.nodes) is None or len(np.unique(one.nodes)) < one.nodes.size:
                continue
            nodes = np.concatenate([one.nodes.ravel(), np.setdiff1d(everything, one.nodes)])
            self.found.setdefault(data.candidates[one.candidate].grid, []).append(nodes)

    def join(self, search: "_Search") -> None:
        """A new candidate starts with what others of its shape have, the first of a large shape with coarse starts."""
        if search.simple is not None and search.is_large and search.grid not in self.searches:
            starts = coarse_starts(self.data, self.data.candidates[search.index])
            self.found.setdefault(search.grid, []).extend(starts)
        for nodes in self.found.setdefault(search.grid, []):
            search.offer(nodes)
        self.searches.setdefault(search.grid, []).append(search)

    def share(self, search: "_Search", *, archive: bool) -> None:
        """What a candidate has found, to the others of its shape."""
        placements = [search.best_nodes.copy(), *(search.archived_nodes() if archive else ())]
        known = self.found.setdefault(search.grid, [])
        known.append(placements[0])
        del known[:-32]
        for other in self.searches[search.grid]:
            if other is not search:
                for nodes in placements:
                    other.offer(nodes)
            self._tell(other)

    def _tell(self, search: "_Search") -> None:
        """Hand an improvement on."""
        if self.offer is None or search.best >= self.told.get(search.index, UNUSABLE_TICKS):
            return
        self.told[search.index] = search.best
        solution = checked_solution(self.data, search.index, search.cells())
        if solution is not None:
            self.offer(solution)


class _Search:
    """Annealing of one candidate; keeps the best placement found."""

    def __init__(self, data: ProblemData, index: int, bound: int, params: AnnealingParams) -> None:
        self.index, self.bound, self.params = index, bound, params
        self.grid = data.candidates[index].grid
        self.tables = tables(data, data.candidates[index])
        self.simple = swaps.grid_of(self.tables) if swaps.has_grid(self.tables) else None
        self.random = np.random.SeedSequence((params.seed, index)).generate_state(1, np.uint64) | np.uint64(1)
        self.nodes = np.empty(data.num_nodes, dtype=np.int64)
        self.best_nodes = self.nodes.copy()
        self.best: int = UNUSABLE_TICKS
        self.temperature, self.energy = 1.0, 0
        self.restarts, self.moves_per_s = 0, 1e6 * min(1.0, 128 / data.candidates[index].num_cells)
        cells = data.candidates[index].num_cells
        self.is_large = cells >= LARGE_CELLS
        self.archive = np.full((swaps.NUM_ARCHIVED, 2), -1, dtype=np.int64)
        self.archived = np.zeros((swaps.NUM_ARCHIVED, cells), dtype=np.int64)
        t = self.tables
        self.finish = np.zeros((len(t.watched), self.grid[1]), dtype=np.int64)
        self.ring = np.zeros(len(t.watched), dtype=np.int64)
        self.times = np.zeros((6, len(t.row)), dtype=np.int64)

    def offer(self, nodes: IntArray) -> None:
        """Take a placement of all hosts, the grid first, if it is better and fits."""
        if kernels.fits(self.tables, nodes):
            value = self._value(nodes)
            if value < self.best:
                self.best, self.best_nodes = value, nodes.copy()

    def archived_nodes(self) -> Iterator[IntArray]:
        """Placements of the archive, spare hosts appended; the archive is emptied."""
        everything = np.arange(len(self.nodes))
        for place in np.flatnonzero(self.archive[:, 0] >= 0):
            cells = self.archived[place]
            yield np.concatenate([cells, np.setdiff1d(everything, cells)])
        self.archive[:] = -1

    def restart(self, moves: int, is_over: Callable[[], bool]) -> None:
        """One tuned annealing, by the next schedule."""
        factor, softness, from_best = (LARGE_SCHEDULES if self.is_large else SCHEDULES)[self.restarts % len(SCHEDULES)]
        self.restarts += 1
        started = time.perf_counter()
        energy = self._random_start()
        if from_best and self.best < UNUSABLE_TICKS:
            self.nodes[:] = self.best_nodes
        scale = factor * max(energy - self.bound, 1)
        hot, cold = self.params.hot * scale, self.params.cold * scale
        if self.simple is None:
            moves = min(moves, MAX_CHUNK_MOVES)
            self._anneal_any(moves, GENERAL_HOT * hot, GENERAL_HOT * cold, min(softness, 3.0))
        else:
            moves = self._anneal_grid(moves, hot, cold, softness, is_over)
        self.moves_per_s = moves / max(time.perf_counter() - started, 1e-9)

    def refine(self, nodes: IntArray, moves: int, is_over: Callable[[], bool]) -> None:
        """Anneal from given hosts, coolly; all hosts, the grid first."""
        scale = REFINED_FACTOR * max(self._random_start() - self.bound, 1)
        self.nodes[:] = nodes
        self._anneal_grid(moves, self.params.hot * scale, self.params.cold * scale, REFINED_SOFTNESS, is_over)

    def _anneal_any(self, moves: int, hot: float, cold: float, softness: float) -> None:
        trial_nodes = self.nodes.copy()
        found = kernels.anneal_tuned(self.tables, self.nodes, trial_nodes, self.random, moves, hot, cold, softness)
        if found < self.best:
            self.best, self.best_nodes = int(found), trial_nodes

    def _anneal_grid(self, moves: int, hot: float, cold: float, softness: float, is_over: Callable[[], bool]) -> int:
        """In parts, so that it can be stopped; returns how many moves were made."""
        chunk = max(1, int(CHUNK_S * self.moves_per_s) // swaps.REBUILD) * swaps.REBUILD
        for begin in range(0, moves, chunk):
            if begin and is_over():
                return begin
            end = min(begin + chunk, moves)
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
        return moves

    def proceed(self, moves: int) -> None:
        """Some more moves of Pipette's annealing."""
        if self.best == UNUSABLE_TICKS:
            self.energy = self._random_start()
            self.best = self.energy
            self.best_nodes = self.nodes.copy()
        self.temperature, self.energy, self.best = kernels.anneal_pipette(
            self.tables, self.nodes, self.best_nodes, self.random, moves, self.temperature, self.energy, self.best
        )

    def cells(self) -> IntArray:
        """Hosts of the best placement, in the grid's shape."""
        return self.best_nodes[: int(np.prod(self.grid))].reshape(self.grid)

    def _random_start(self) -> int:
        kernels.random_start(self.tables, self.nodes, self.random)
        return self._value(self.nodes)

    def _value(self, nodes: IntArray) -> int:
        return int(evaluate(self.tables, nodes, self.finish, self.ring, self.times))


class _Budget:
    """Moves and seconds left."""

    def __init__(self, params: AnnealingParams, stop: threading.Event | None) -> None:
        self.started = time.perf_counter()
        self.stop = stop
        self.moves_left = params.max_moves
        self.ends = None if params.time_limit_s is None else self.started + params.time_limit_s

    @property
    def is_over(self) -> bool:
        """Whether nothing may be started any more."""
        if self.stop is not None and self.stop.is_set():
            return True
        if self.moves_left is not None and self.moves_left <= 0:
            return True
        return self.ends is not None and time.perf_counter() >= self.ends

    def long_restart(self, search: _Search) -> int:
        """Moves of a restart that takes its share of the time left, on many hosts; else 0."""
        if self.ends is None or np.prod(search.grid) < LONG_CELLS:
            return 0
        return int(LONG_SHARE * max(0.0, self.ends - time.perf_counter()) * search.moves_per_s)

    def take(self, moves: int, moves_per_s: float = np.inf) -> int:
        """As many of ``moves`` as are left, at this speed."""
        taken = moves
        if self.ends is not None:
            seconds = max(self.ends - time.perf_counter(), 0.0)
            taken = int(min(taken, max(seconds * moves_per_s, 1_000)))
        if self.moves_left is not None:
            taken = min(taken, self.moves_left)
            self.moves_left -= taken
        return taken


def anneal(
    data: ProblemData,
    params: AnnealingParams,
    candidates: Sequence[int] | None = None,
    stop: threading.Event | None = None,
    *,
    start: Sequence[Solution] = (),
    offer: Callable[[Solution], None] | None = None,
) -> Result:
    """
    Place the promising candidates by simulated annealing.

    The tuned variant gives the candidates whose optimistic time is below the best found restarts of doubling length,
    the better half of them in every round; Pipette's gives every candidate an equal part of the budget.

    Parameters
    ----------
    candidates
        Indices of the candidates to try; all by default.
    start
        Placements known already, for the tuned variant.
    offer
        Told each improvement of the tuned variant at once.

    Returns
    -------
    Result
        The pool has the best placement of every candidate tried. The lower bound is the optimistic one.
    """
    budget = _Budget(params, stop)
    bounds = [optimistic_ticks(data, candidate) for candidate in data.candidates]
    chosen = range(len(data.candidates)) if candidates is None else candidates
    order = sorted((index for index in chosen if bounds[index] < UNUSABLE_TICKS), key=lambda index: bounds[index])
    if params.variant == "tuned":
        searches = _run_tuned(data, params, order, bounds, budget, _Shapes(data, start, offer))
    else:
        searches = _run_pipette(data, params, order, bounds, budget)
    solutions: list[Solution] = []
    for search in searches:
        if search.best < UNUSABLE_TICKS:
            solution = checked_solution(data, search.index, search.cells())
            if solution is not None:
                solutions.append(solution)
    return result_of(solutions, bounds, budget.started)


def refine(
    data: ProblemData, solution: Solution, *, moves: int, seed: int = 0, stop: threading.Event | None = None
) -> Solution | None:
    """The best placement near a given one; ``None`` if it breaks a rule, or the fast kernel does not know the form."""
    index = solution.candidate
    search = _Search(data, index, optimistic_ticks(data, data.candidates[index]), AnnealingParams(seed=seed))
    rest = np.setdiff1d(np.arange(data.num_nodes), solution.nodes)
    nodes = np.concatenate([solution.nodes.ravel(), rest])
    if search.simple is None or len(nodes) != data.num_nodes or not kernels.fits(search.tables, nodes):
        return None
    search.refine(nodes, moves, lambda: stop is not None and stop.is_set())
    return checked_solution(data, index, search.cells())


def _run_tuned(
    data: ProblemData,
    params: AnnealingParams,
    order: list[int],
    bounds: list[int],
    budget: _Budget,
    shapes: "_Shapes",
) -> list[_Search]:
    """Restarts of doubling length; each round goes on with the better half of the candidates still open."""
    searches: list[_Search] = []
    best = UNUSABLE_TICKS
    pool_share = _Share(budget, 3)
    num_promising = 0
    for index in order:
        promising = bounds[index] < best
        num_promising += promising
        over = budget.is_over if promising else pool_share.is_over or len(searches) - num_promising >= params.pool_size
        if searches and (over or bounds[index] > best * (1 + params.pool_gap)):
            break
        search = _Search(data, index, bounds[index], params)
        searches.append(search)
        shapes.join(search)
        search.restart(budget.take(params.first_moves), lambda: budget.is_over)
        shapes.share(search, archive=False)
        best = min(best, *(one.best for one in shapes.searches[search.grid]))
    moves, active = params.first_moves, searches
    while active and not budget.is_over:
        moves *= 2
        active = sorted((s for s in active if s.bound < best), key=lambda s: (s.best, s.index))
        active = active[: max(3, len(active) // 2)]
        if len(active) == 1:
            moves = max(moves, budget.long_restart(active[0]))
        for search in active:
            if budget.is_over:
                break
            search.restart(budget.take(moves, search.moves_per_s), lambda: budget.is_over)
            shapes.share(search, archive=moves >= SHARED_MOVES)
            best = min(best, *(one.best for one in shapes.searches[search.grid]))
    return searches


def _run_pipette(
    data: ProblemData, params: AnnealingParams, order: list[int], bounds: list[int], budget: _Budget
) -> list[_Search]:
    """Every candidate in turn, with an equal share of what is left."""
    searches: list[_Search] = []
    chunk = min(params.first_moves, 5_000)
    for position, index in enumerate(order):
        if searches and budget.is_over:
            break
        search = _Search(data, index, bounds[index], params)
        searches.append(search)
        share = _Share(budget, len(order) - position)
        search.proceed(budget.take(chunk))
        while not share.is_over and search.best > search.bound:
            search.proceed(budget.take(chunk))
    return searches


class _Share:
    """An equal part of what is left of a budget."""

    def __init__(self, budget: _Budget, parts: int) -> None:
        self.budget = budget
        now = time.perf_counter()
        self.ends = None if budget.ends is None else now + (budget.ends - now) / parts
        self.moves_floor = None if budget.moves_left is None else budget.moves_left * (parts - 1) // parts

    @property
    def is_over(self) -> bool:
        """Whether it is used up."""
        if self.budget.is_over or (self.ends is not None and time.perf_counter() >= self.ends):
            return True
        left = self.budget.moves_left
        return left is not None and self.moves_floor is not None and left <= self.moves_floor

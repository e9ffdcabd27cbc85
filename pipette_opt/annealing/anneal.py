"""Simulated annealing over the placements of promising candidates (configurations with a host tile)."""

import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from pipette_opt.annealing.candidate_search import CandidateSearch
from pipette_opt.annealing.coarse import coarse_starts
from pipette_opt.base.types import IntArray
from pipette_opt.plans.clock import Clock
from pipette_opt.plans.watcher import Watcher
from pipette_opt.problem.best_links import optimistic_ticks
from pipette_opt.problem.data import UNUSABLE_TICKS, ProblemData
from pipette_opt.problem.solution import Result, Solution, checked_solution, result_of

SHARED_MOVES = 100_000
"""A restart of at least this many moves offers all its archived placements to candidates of equal grid. Chosen."""

TEMPERED_MOVES, MAX_TEMPERED_MOVES = 200_000, 2_000_000
"""Restart length at which replica exchange takes over on small grids, and largest length of one turn, moves. Chosen."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AnnealingParams:
    """
    Length and temperatures of annealing.

    Parameters
    ----------
    variant
        ``tuned``, or ``pipette``: the five moves and the schedule of Pipette's annealer on this objective (temperature
        1, times 0.999 per move, worsenings scaled to [0.1, 1)).
    time_limit_s
        Wall time, seconds. The order of restarts depends only on the seed; their number depends on the time.
    max_moves
        Total number of moves; with it and without a time limit, the result depends only on the seed.
    first_moves
        Number of moves in the first restart of each candidate configuration; it doubles from restart to restart.
    hot, cold
        First and last temperature of a restart, as a fraction of the start's distance to the lower bound.
    pool_gap, pool_size
        Candidates that cannot beat the best placement get one restart for the pool, because another cost model may rank
        them first. ``pool_gap`` limits their optimistic time, as a fraction above the best; ``pool_size`` limits their
        number. Together they take at most a third of the budget.
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


LONG_SHARE, MIN_LONG_MOVES = 1 / 2, 100_000
"""
Length of a restart when one large grid is left: fraction of all moves it had before, and least number. Chosen.

One long restart finds placements that several short ones miss. Short restarts come first, so that an early stop has a
result.
"""


class _Shapes:
    """Known placements by grid shape, from any candidate configuration with that shape."""

    def __init__(self, data: ProblemData, start: Sequence[Solution]) -> None:
        self.data = data
        self.found: dict[tuple[int, int, int], list[IntArray]] = {}
        self.searches: dict[tuple[int, int, int], list[CandidateSearch]] = {}
        for known in start:
            if checked_solution(data, known.candidate, known.nodes) is not None:
                unused = np.setdiff1d(np.arange(data.num_nodes), known.nodes)
                grid = data.candidates[known.candidate].grid
                self.found.setdefault(grid, []).append(np.concatenate([known.nodes.ravel(), unused]))

    def join(self, search: CandidateSearch) -> None:
        """Offer a new candidate the known placements of its grid shape; large shapes get coarse starts."""
        if search.simple is not None and search.is_large and search.grid not in self.searches:
            search.starts = coarse_starts(self.data, self.data.candidates[search.index])
            self.found.setdefault(search.grid, []).extend(search.starts)
        for nodes in self.found.setdefault(search.grid, []):
            search.offer(nodes)
        self.searches.setdefault(search.grid, []).append(search)

    def share(self, search: CandidateSearch, *, archive: bool) -> None:
        """Offer a candidate's best placement, with ``archive`` also archived ones, to others of its grid shape."""
        placements = [search.best_nodes.copy(), *(search.archived_nodes() if archive else ())]
        known = self.found.setdefault(search.grid, [])
        known.append(placements[0])
        del known[:-32]
        for other in self.searches[search.grid]:
            if other is not search:
                for nodes in placements:
                    other.offer(nodes)


class _Budget:
    """Remaining moves and time."""

    def __init__(self, max_moves: int | None, clock: Clock) -> None:
        self.moves_left, self.clock = max_moves, clock

    @property
    def is_over(self) -> bool:
        """Return whether moves or time are used up, or the stop event is set."""
        return self.clock.is_over or (self.moves_left is not None and self.moves_left <= 0)

    def take(self, moves: int, moves_per_s: float = np.inf) -> int:
        """
        Take moves from the budget and return their number: at most ``moves``, fewer if they would exceed the deadline.

        ``moves_per_s`` is the expected speed.
        """
        taken = int(min(moves, max(self.clock.left_s * moves_per_s, 1_000)))
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
) -> Result:
    """
    Place the promising candidate configurations by simulated annealing.

    The tuned variant gives restarts of doubling length to the candidates whose optimistic time is below the best found.
    Long turns on small grids use replica exchange, and every round keeps the better half of the candidates. Pipette's
    variant gives every candidate an equal part of the budget.

    Parameters
    ----------
    candidates
        Indices of the candidates to place; all by default.
    start
        Known placements, for the tuned variant; placements that break a rule are ignored.

    Returns
    -------
    Result
        Its pool has the best placement of every candidate that was annealed. Its lower bound is the least optimistic
        time.
    """
    clock = Clock(watcher=Watcher() if stop is None else Watcher(stop=stop))
    clock = clock if params.time_limit_s is None else clock.after(params.time_limit_s)
    budget = _Budget(params.max_moves, clock)
    bounds = [optimistic_ticks(data, candidate) for candidate in data.candidates]
    chosen = range(len(data.candidates)) if candidates is None else candidates
    order = sorted((index for index in chosen if bounds[index] < UNUSABLE_TICKS), key=lambda index: bounds[index])
    if params.variant == "tuned":
        searches = _Tuned(data, params, bounds, order, _Shapes(data, start), budget).run()
    else:
        searches = _run_pipette(data, params, bounds, order, budget)
    begun = [search for search in searches if search.best < UNUSABLE_TICKS]
    found = [checked_solution(data, search.index, search.cells()) for search in begun]
    return result_of([solution for solution in found if solution is not None], bounds, clock.watcher.started)


class _Tuned:
    """
    Tuned annealing of the promising candidate configurations.

    Attributes
    ----------
    searches
        Searches of the candidates that have been started.
    """

    def __init__(
        self,
        data: ProblemData,
        params: AnnealingParams,
        bounds: Sequence[int],
        order: Sequence[int],
        shapes: _Shapes,
        budget: _Budget,
    ) -> None:
        self.data, self.params, self.bounds, self.order = data, params, bounds, order
        self.searches: list[CandidateSearch] = []
        self._shapes, self._budget = shapes, budget

    def run(self) -> list[CandidateSearch]:
        """Anneal until the budget is used up or no candidate can improve. The first candidate is always placed."""
        for _ in self._in_turns():
            if self._budget.is_over:
                break
        return self.searches

    @property
    def _best(self) -> int:
        """Objective of the best placement, integer ticks."""
        return min((search.best for search in self.searches), default=UNUSABLE_TICKS)

    def _in_turns(self) -> Iterator[None]:
        """
        Run restarts of doubling length; each round continues with the better half of the candidate configurations that
        may improve.

        Yields before each turn except the first, so that the caller can stop between turns.
        """
        params, budget = self.params, self._budget
        pool_share, num_promising = _Share(budget, 3), 0
        for index in self.order:
            promising = self.bounds[index] < self._best
            num_promising += promising
            if self.searches:
                in_pool = len(self.searches) - num_promising
                if not promising and (pool_share.is_over or in_pool >= params.pool_size):
                    break
                if self.bounds[index] > self._best * (1 + params.pool_gap):
                    break
                yield
            seed, hot, cold = params.seed, params.hot, params.cold
            search = CandidateSearch(self.data, index, self.bounds[index], seed=seed, hot=hot, cold=cold)
            self.searches.append(search)
            self._shapes.join(search)
            search.restart(budget.take(params.first_moves), lambda: budget.is_over)
            self._shapes.share(search, archive=False)
        moves, active = params.first_moves, self.searches
        while active:
            moves, best = 2 * moves, self._best
            active = sorted((s for s in active if s.bound < best), key=lambda s: (s.best, s.index))
            active = active[: max(3, len(active) // 2)]
            for search in active:
                yield
                _take_turn(search, moves, budget, alone=len(active) == 1)
                self._shapes.share(search, archive=moves >= SHARED_MOVES)


def load_replicas(data: ProblemData) -> None:
    """Load the kernels that annealing calls only after a few seconds; numba compiles them once per installation."""
    params = AnnealingParams()
    for index in range(len(data.candidates)):
        CandidateSearch(data, index, 0, seed=0, hot=params.hot, cold=params.cold).load_replicas()


def _take_turn(search: CandidateSearch, moves: int, budget: _Budget, *, alone: bool) -> None:
    """
    Run one restart or one turn of replica exchange.

    On a large grid, the first turn that is long enough compares all coarse starts.
    """
    if search.simple is None or search.is_large:
        if alone:
            moves = max(min(moves, MIN_LONG_MOVES), int(LONG_SHARE * search.moves))
        turn = budget.take(moves, search.moves_per_s)
        if search.starts and turn >= search.settling_moves:
            search.settle(turn, lambda: budget.is_over)
        else:
            search.restart(turn, lambda: budget.is_over)
    elif moves < TEMPERED_MOVES:
        search.restart(budget.take(moves, search.moves_per_s), lambda: budget.is_over)
    else:
        turn = budget.take(min(moves, MAX_TEMPERED_MOVES), search.moves_per_s)
        search.temper(turn, lambda: budget.is_over)


def _run_pipette(
    data: ProblemData,
    params: AnnealingParams,
    bounds: Sequence[int],
    order: Sequence[int],
    budget: _Budget,
) -> list[CandidateSearch]:
    """Anneal each candidate configuration with Pipette's variant, with an equal part of the remaining budget."""
    searches: list[CandidateSearch] = []
    chunk = min(params.first_moves, 5_000)
    for position, index in enumerate(order):
        if searches and budget.is_over:
            break
        search = CandidateSearch(data, index, bounds[index], seed=params.seed, hot=params.hot, cold=params.cold)
        searches.append(search)
        share = _Share(budget, len(order) - position)
        search.proceed(budget.take(chunk))
        while not share.is_over and search.best > search.bound:
            search.proceed(budget.take(chunk))
    return searches


class _Share:
    """Equal part (1 / ``parts``) of the budget that remains at creation."""

    def __init__(self, budget: _Budget, parts: int) -> None:
        self.budget = budget
        self.clock = budget.clock.slice(1 / parts)
        self.moves_floor = None if budget.moves_left is None else budget.moves_left * (parts - 1) // parts

    @property
    def is_over(self) -> bool:
        """Return whether this part of the budget is used up."""
        if self.budget.is_over or self.clock.is_over:
            return True
        left = self.budget.moves_left
        return left is not None and self.moves_floor is not None and left <= self.moves_floor

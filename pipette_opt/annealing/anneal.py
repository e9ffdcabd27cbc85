"""Simulated annealing over the placements of promising candidates (configurations with a host tile)."""

import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from pipette_opt.annealing.candidate_search import CandidateSearch
from pipette_opt.base.types import IntArray
from pipette_opt.plans.clock import Clock
from pipette_opt.plans.watcher import Watcher
from pipette_opt.problem.best_links import optimistic_ticks
from pipette_opt.problem.data import UNUSABLE_TICKS, ProblemData
from pipette_opt.problem.solution import Result, Solution, checked_solution, result_of


@dataclass(frozen=True, slots=True, kw_only=True)
class AnnealingParams:
    """
    Length and temperatures of annealing.

    Parameters
    ----------
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


MAX_ALONE_MOVES = 100_000
"""Largest number of moves of a restart once a single candidate configuration is left. Chosen."""


class _Shapes:
    """Known placements by grid shape, from any candidate configuration with that shape."""

    def __init__(self, data: ProblemData, start: Sequence[Solution]) -> None:
        self.found: dict[tuple[int, int, int], list[IntArray]] = {}
        self.searches: dict[tuple[int, int, int], list[CandidateSearch]] = {}
        for known in start:
            if checked_solution(data, known.candidate, known.nodes) is not None:
                unused = np.setdiff1d(np.arange(data.num_nodes), known.nodes)
                grid = data.candidates[known.candidate].grid
                self.found.setdefault(grid, []).append(np.concatenate([known.nodes.ravel(), unused]))

    def join(self, search: CandidateSearch) -> None:
        """Offer a new candidate the known placements of its grid shape."""
        for nodes in self.found.setdefault(search.grid, []):
            search.offer(nodes)
        self.searches.setdefault(search.grid, []).append(search)

    def share(self, search: CandidateSearch) -> None:
        """Offer a candidate's best placement to others of its grid shape."""
        best = search.best_nodes.copy()
        known = self.found.setdefault(search.grid, [])
        known.append(best)
        del known[:-32]
        for other in self.searches[search.grid]:
            if other is not search:
                other.offer(best)


class Budget:
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
    stop: threading.Event | None = None,
    *,
    start: Sequence[Solution] = (),
) -> Result:
    """
    Place the promising candidate configurations by simulated annealing.

    Candidates whose optimistic time is below the best found get restarts of doubling length; every round keeps the
    better half of them.

    Parameters
    ----------
    start
        Known placements; placements that break a rule are ignored.

    Returns
    -------
    Result
        Its pool has the best placement of every candidate that was annealed. Its lower bound is the least optimistic
        time.
    """
    clock = Clock(watcher=Watcher() if stop is None else Watcher(stop=stop))
    clock = clock if params.time_limit_s is None else clock.after(params.time_limit_s)
    budget = Budget(params.max_moves, clock)
    bounds = [optimistic_ticks(data, candidate) for candidate in data.candidates]
    order = sorted((index for index, bound in enumerate(bounds) if bound < UNUSABLE_TICKS), key=bounds.__getitem__)
    searches = _Turns(data, params, bounds, order, _Shapes(data, start), budget).run()
    begun = [search for search in searches if search.best < UNUSABLE_TICKS]
    found = [checked_solution(data, search.index, search.cells()) for search in begun]
    return result_of([solution for solution in found if solution is not None], bounds, clock.watcher.started)


class _Turns:
    """
    Annealing of the promising candidate configurations, in turns.

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
        budget: Budget,
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
        pool_share, num_promising = Share(budget, 3), 0
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
            search.restart(budget.take(params.first_moves))
            self._shapes.share(search)
        moves, active = params.first_moves, self.searches
        while active:
            moves, best = 2 * moves, self._best
            active = sorted((s for s in active if s.bound < best), key=lambda s: (s.best, s.index))
            active = active[: max(3, len(active) // 2)]
            for search in active:
                yield
                turn = min(moves, MAX_ALONE_MOVES) if len(active) == 1 else moves
                search.restart(budget.take(turn, search.moves_per_s))
                self._shapes.share(search)


class Share:
    """Equal part (1 / ``parts``) of the budget that remains at creation."""

    def __init__(self, budget: Budget, parts: int) -> None:
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

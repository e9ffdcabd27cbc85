"""
Baseline Pipette: its simulated annealing of hosts, on the solver's relaxations.

J. Yim, J. Song, Y. Choi, J. Lee, J. Jung, H. Jang, J. Lee, "Pipette: Automatic Fine-grained Large Language Model
Training Configurator for Real-World Clusters", DATE 2024, arXiv 2405.18093. Moves and temperatures as in its release
(github.com/yimjinkyu1/date2024_pipette).
"""

import threading
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial

import numpy as np

from pipette_opt.annealing.anneal import AnnealingParams, Budget, Share
from pipette_opt.annealing.candidate_search import CandidateSearch
from pipette_opt.annealing.compiled import NUM_TIMES, evaluate_paths, new_lengths
from pipette_opt.annealing.kernels import below, fits, uniform
from pipette_opt.base.jit import njit
from pipette_opt.plans.clock import Clock
from pipette_opt.plans.watcher import Watcher
from pipette_opt.problem.best_links import optimistic_ticks
from pipette_opt.problem.data import UNUSABLE_TICKS, ProblemData
from pipette_opt.problem.solution import Result, Solution, checked_solution, result_of

SEED_STEP = 1000
"""Difference between the seeds of two threads. Chosen."""

MOVES_AT_ONCE = 5_000
"""Number of moves between two checks of the time and the stop event. Chosen."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PipetteParams:
    """
    Limits of Pipette's annealing.

    Parameters
    ----------
    time_limit_s
        Wall time, seconds; each candidate gets an equal part of it.
    max_moves
        Number of moves of a thread; with it and without a time limit, the result depends only on the seed.
    workers
        Number of threads, which anneal all candidates with a seed each.
    """

    time_limit_s: float | None = 5.0
    max_moves: int | None = None
    workers: int = 1
    seed: int = 0


def pipette(data: ProblemData, params: PipetteParams, stop: threading.Event | None = None) -> Result:
    """
    Place every candidate by Pipette's annealing of its relaxation.

    Returns
    -------
    Result
        Its pool has the best placement of every other candidate that has one. Its lower bound is the least optimistic
        time.
    """
    watcher = Watcher() if stop is None else Watcher(stop=stop)
    bounds = [optimistic_ticks(data, candidate) for candidate in data.candidates]
    seeds = [params.seed + SEED_STEP * number for number in range(params.workers)]
    with ThreadPoolExecutor(params.workers) as pool:
        found = pool.map(partial(_on_a_thread, data, params, bounds, watcher), seeds)
        best = _best_of_each(solution for solutions in found for solution in solutions)
    return result_of(best, bounds, watcher.started)


def _best_of_each(found: Iterable[Solution]) -> list[Solution]:
    """Return the best of the solutions of each candidate."""
    best: dict[int, Solution] = {}
    for solution in found:
        known = best.get(solution.candidate)
        if known is None or solution.objective_ticks < known.objective_ticks:
            best[solution.candidate] = solution
    return list(best.values())


def _on_a_thread(
    data: ProblemData, params: PipetteParams, bounds: list[int], watcher: Watcher, seed: int
) -> list[Solution]:
    """Return the placement of each candidate, each annealed for an equal part of the remaining budget."""
    clock = Clock(watcher=watcher)
    budget = Budget(params.max_moves, clock if params.time_limit_s is None else clock.after(params.time_limit_s))
    order = sorted((index for index, bound in enumerate(bounds) if bound < UNUSABLE_TICKS), key=bounds.__getitem__)
    found: list[Solution | None] = []
    for position, index in enumerate(order):
        if found and budget.is_over:
            break
        search, share = _Annealing(data, index, bounds[index], seed), Share(budget, len(order) - position)
        search.proceed(budget.take(MOVES_AT_ONCE))
        while not share.is_over and search.best > bounds[index]:
            search.proceed(budget.take(MOVES_AT_ONCE))
        found.append(checked_solution(data, index, search.cells()))
    return [solution for solution in found if solution is not None]


class _Annealing(CandidateSearch):
    """Pipette's annealing of one candidate, which goes on where it ended."""

    def __init__(self, data: ProblemData, index: int, bound: int, seed: int) -> None:
        usual = AnnealingParams()
        super().__init__(data, index, bound, seed=seed, hot=usual.hot, cold=usual.cold)
        self.temperature, self.energy = 1.0, self.random_start()
        self.best, self.best_nodes = self.energy, self.nodes.copy()

    def proceed(self, moves: int) -> None:
        """Continue for ``moves`` moves."""
        self.temperature, self.energy, self.best = _anneal(
            self.tables, self.nodes, self.best_nodes, self.random, moves, self.temperature, self.energy, self.best
        )


@njit(cache=True, nogil=True)
def _move(order, choice, state):  # type: ignore[no-untyped-def]
    """Apply one of five moves to a sequence of hosts: reverse a part, move or swap hosts, move a part either way."""
    n = order.shape[0]
    low, high = below(state, n), below(state, n)
    low, high = min(low, high), max(low, high)
    if choice == 2:
        order[low], order[high] = order[high], order[low]
        return
    if choice == 0:
        order[low : high + 1] = order[low : high + 1][::-1].copy()
        return
    if choice == 1:
        high = low
    part = order[low : high + 1].copy()
    if choice == 4:
        part = part[::-1].copy()
    rest = np.concatenate((order[:low], order[high + 1 :]))
    at = below(state, rest.shape[0] + 1)
    order[:at] = rest[:at]
    order[at : at + part.shape[0]] = part
    order[at + part.shape[0] :] = rest[at:]


@njit(cache=True, nogil=True)
def _anneal(t, nodes, best_nodes, state, moves, temperature, energy, best):  # type: ignore[no-untyped-def]
    """
    Continue Pipette's annealing for ``moves`` moves. Return temperature, energy and best objective (ticks).

    The sequence of hosts runs through one replica after the other, spare hosts last. A worsening is divided by the
    power of ten above it. The temperature starts at 1 and is multiplied by 0.999 per move.
    """
    P, D, K = t.shape[0], t.shape[1], t.shape[2]
    cells = P * D * K
    times = np.zeros((NUM_TIMES, t.row.shape[0]), np.int64)
    finish = np.zeros((t.row.shape[0], D), np.int64)
    ring = np.zeros(t.row.shape[0], np.int64)
    lengths = new_lengths(t)
    order = nodes.copy()
    position = np.empty(cells, np.int64)
    for row in range(P):
        for column in range(D):
            for k in range(K):
                position[(row * D + column) * K + k] = (column * P + row) * K + k
    for cell in range(cells):
        order[position[cell]] = nodes[cell]
    trial_order = order.copy()
    trial_nodes = nodes.copy()
    for _ in range(moves):
        temperature *= 0.999
        trial_order[:] = order
        _move(trial_order, below(state, 5), state)
        for cell in range(cells):
            trial_nodes[cell] = trial_order[position[cell]]
        trial_nodes[cells:] = trial_order[cells:]
        if not fits(t, trial_nodes):
            continue
        trial = evaluate_paths(t, trial_nodes, finish, ring, times, lengths)
        worse = trial - energy
        accepted = worse <= 0
        if not accepted:
            scaled = worse / 10.0 ** (np.floor(np.log10(worse)) + 1.0)
            accepted = temperature > 0 and uniform(state) < np.exp(-scaled / temperature)
        if accepted:
            energy = trial
            order[:] = trial_order
            nodes[:] = trial_nodes
            if energy < best:
                best = energy
                best_nodes[:] = nodes
    return temperature, energy, best

"""
Annealing for hosts that already hold weights: the fastest placement for each number of hosts that must load weights.

Every move evaluates the integer objective from scratch, which is slower than :mod:`.annealing` but counts loads
exactly.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from pipette_opt.annealing.compiled import NUM_TIMES, evaluate, overwrite, tables
from pipette_opt.annealing.kernels import below, fits, uniform
from pipette_opt.base.jit import njit
from pipette_opt.base.types import IntArray
from pipette_opt.problem.best_links import optimistic_ticks
from pipette_opt.problem.data import UNUSABLE_TICKS, ProblemData
from pipette_opt.problem.solution import Solution, checked_solution

PENALTIES = (1.0, 0.2, 0.05, 0.01, 0.003, 0.001, 0.0)
"""Penalties per host that must load, as a fraction of the start's distance to the bound; few loads first. Chosen."""

PROBE = 500
"""Number of swaps in the first run, which measures their speed. Chosen."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Kept:
    """Placement, and the number of its hosts that must load weights that they do not hold."""

    num_loads: int
    solution: Solution


def anneal_keeping(
    data: ProblemData,
    index: int,
    start: IntArray,
    held: IntArray,
    *,
    seconds: float | None = None,
    num_moves: int = 40_000,
    seed: int = 0,
    stopped: Callable[[], bool] = lambda: False,
) -> list[Kept]:
    """
    Return the fastest placements found by number of hosts that must load; each is faster than all with fewer loads.

    Parameters
    ----------
    start
        Host of each cell, shape of the candidate's grid.
    held
        Model part that each host holds, shape ``(num_nodes,)``: ``row * K + part of the slot`` of the candidate's grid,
        or -1 if the host holds no usable part.
    seconds
        Time limit, seconds; the number of swaps then follows from the measured speed.
    num_moves
        Number of swaps tried for each penalty, without ``seconds``.
    stopped
        Called before each penalty; once it returns ``True``, the placements found so far are returned.
    """
    candidate = data.candidates[index]
    compiled = tables(data, candidate)
    num_cells = candidate.num_cells
    rows, columns, parts = candidate.grid
    wanted = np.arange(rows)[:, None, None] * parts + np.arange(parts)[None, None, :]
    wanted = np.broadcast_to(wanted, (rows, columns, parts)).reshape(-1).astype(np.int64)
    unused = np.setdiff1d(np.arange(data.num_nodes), start.ravel())
    nodes = np.concatenate([start.ravel(), unused]).astype(np.int64)
    best: IntArray = np.full(num_cells + 1, UNUSABLE_TICKS, dtype=np.int64)
    best_nodes = np.zeros((num_cells + 1, num_cells), dtype=np.int64)
    state = np.random.SeedSequence((seed, index)).generate_state(1, np.uint64) | np.uint64(1)
    finish = np.zeros((candidate.num_stages, columns), dtype=np.int64)
    ring = np.zeros(candidate.num_stages, dtype=np.int64)
    times = np.zeros((NUM_TIMES, candidate.num_stages), dtype=np.int64)
    start_ticks = int(evaluate(compiled, nodes, finish, ring, times))
    scale = max(start_ticks - optimistic_ticks(data, candidate), 1)

    def run(penalty: float, exchanges: int) -> None:
        trial = nodes.copy()
        _anneal(
            compiled, trial, wanted, held, best, best_nodes, state, exchanges, penalty * scale, 0.02 * scale,
            finish, ring, times,
        )  # fmt: skip

    if seconds is not None:
        num_moves = _affordable(run, seconds)
    for penalty in PENALTIES:
        run(penalty, 1 if stopped() else num_moves)
    found: list[Kept] = []
    least = UNUSABLE_TICKS
    for loads in range(num_cells + 1):
        if best[loads] < least:
            solution = checked_solution(data, index, best_nodes[loads].reshape(candidate.grid))
            if solution is not None:
                least = int(best[loads])
                found.append(Kept(num_loads=loads, solution=solution))
    return found


def _affordable(run: Callable[[float, int], None], seconds: float) -> int:
    """Return the number of swaps per penalty that take ``seconds`` in all, by the speed measured after compilation."""
    run(PENALTIES[0], 1)
    started = time.perf_counter()
    run(PENALTIES[0], PROBE)
    each = max((time.perf_counter() - started) / PROBE, 1e-8)
    return max(PROBE, int(seconds / len(PENALTIES) / each))


def num_loads(held: IntArray, nodes: IntArray) -> int:
    """Return the number of hosts of a placement that must load weights; ``held`` as in :func:`anneal_keeping`."""
    rows, _, parts = nodes.shape
    wanted = np.arange(rows)[:, None, None] * parts + np.arange(parts)[None, None, :]
    return int((held[nodes] != wanted).sum())


@njit(cache=True, nogil=True)
def _anneal(  # type: ignore[no-untyped-def]
    t, nodes, wanted, held, best, best_nodes, state, moves, penalty, hot, finish, ring, times
):
    """Swap hosts, and keep the best placement for each number of loads; the temperature falls to a hundredth."""
    cells, M = wanted.shape[0], nodes.shape[0]
    loads = (held[nodes[:cells]] != wanted).sum()
    energy = np.float64(evaluate(t, nodes, finish, ring, times)) + penalty * loads
    if fits(t, nodes) and np.int64(energy - penalty * loads) < best[loads]:
        best[loads] = evaluate(t, nodes, finish, ring, times)
        overwrite(best_nodes[loads], nodes[:cells])
    if M < 2:
        return
    for move in range(moves):
        temperature = hot * 0.01 ** (move / moves)
        a = below(state, cells)
        b = below(state, M - 1)
        b += b >= a
        before = np.int64(held[nodes[a]] != wanted[a])
        if b < cells:
            before += held[nodes[b]] != wanted[b]
        nodes[a], nodes[b] = nodes[b], nodes[a]
        after = np.int64(held[nodes[a]] != wanted[a])
        if b < cells:
            after += held[nodes[b]] != wanted[b]
        new_loads = loads + after - before
        good = fits(t, nodes)
        ticks = evaluate(t, nodes, finish, ring, times)
        new_energy = np.float64(ticks) + penalty * new_loads
        accept = good and (
            new_energy <= energy or uniform(state) < np.exp((energy - new_energy) / max(temperature, 1e-9))
        )
        if accept:
            energy, loads = new_energy, new_loads
            if ticks < best[loads]:
                best[loads] = ticks
                overwrite(best_nodes[loads], nodes[:cells])
        else:
            nodes[a], nodes[b] = nodes[b], nodes[a]

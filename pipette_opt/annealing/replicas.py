"""
Replica exchange (Swendsen and Wang, Phys. Rev. Lett. 57, 1986): annealing without an end.

Each replica of a grid has a temperature of its own. Hot ones cross from valley to valley; neighbours in temperature
exchange their placements as the Metropolis rule says, so that what looks good moves down to the cold ones. Now and then
the best is cooled to the end.
"""

import numpy as np

from pipette_opt.annealing.compiled import evaluate, overwrite
from pipette_opt.annealing.kernels import uniform
from pipette_opt.annealing.swaps import REBUILD, anneal_grid
from pipette_opt.base.jit import njit

QUENCH_EVERY = 10
"""Rounds between restarts from the best replica, each of as many moves as a round."""


@njit(cache=True, nogil=True)
def anneal_replicas(  # type: ignore[no-untyped-def]
    g, t, replicas, temperatures, done, rounds, best, best_nodes, state, hot, cold, softness, archive, archived
):
    """
    Some rounds of ``REBUILD`` moves of each replica, each with exchanges; returns the best objective so far.

    Parameters
    ----------
    g, t
        The grid, and the tables it is made of.
    replicas
        All hosts of each replica, the grid first, shape ``(K, M)``; changed in place.
    temperatures
        From hot to cold, ticks, shape ``(K,)``.
    done, rounds
        How many rounds there were before, and how many are to be done.
    hot, cold
        First and last temperature of the restarts from the best replica.
    best, best_nodes, state, softness, archive, archived
        As in :func:`~pipette_opt.annealing.swaps.anneal_grid`.
    """
    K, M = replicas.shape
    energy = np.zeros(K, np.int64)
    copy = np.zeros(M, np.int64)
    finish = np.zeros((t.watched.shape[0], g.sizes[1]), np.int64)
    ring = np.zeros(t.watched.shape[0], np.int64)
    times = np.zeros((6, t.row.shape[0]), np.int64)
    for number in range(done, done + rounds):
        for k in range(K + ((number + 1) % QUENCH_EVERY == 0)):
            if k < K:
                nodes, moves, first, last = replicas[k], REBUILD, temperatures[k], temperatures[k]
            else:
                overwrite(copy, replicas[np.argmin(energy)])
                nodes, moves, first, last = copy, K * REBUILD, hot, cold
            best = anneal_grid(
                g, nodes, best, best_nodes, state, np.int64(0), moves, moves, first, last, softness, archive, archived
            )
            if k < K:
                energy[k] = evaluate(t, nodes, finish, ring, times)
        for k in range(number % 2, K - 1, 2):
            gain = np.float64(energy[k + 1] - energy[k]) * (1.0 / temperatures[k + 1] - 1.0 / temperatures[k])
            if gain >= 0 or uniform(state) < np.exp(gain):
                energy[k], energy[k + 1] = energy[k + 1], energy[k]
                overwrite(copy, replicas[k])
                overwrite(replicas[k], replicas[k + 1])
                overwrite(replicas[k + 1], copy)
    return best

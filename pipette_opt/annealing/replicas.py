"""
Replica exchange (Swendsen and Wang, Phys. Rev. Lett. 57, 1986): annealing without a fixed length.

Each replica of a placement has its own temperature. Hot replicas cross between valleys. Neighbours in temperature swap
their placements by the Metropolis rule, so that good placements move down to the cold ones. Every ``QUENCH_EVERY``
rounds, the best replica is annealed from hot to cold.
"""

import math

import numpy as np

from pipette_opt.annealing.compiled import Tables, evaluate
from pipette_opt.annealing.kernels import uniform
from pipette_opt.annealing.plain_grid import Grid
from pipette_opt.annealing.swaps import REBUILD, anneal_grid
from pipette_opt.base.types import FloatArray, IntArray

QUENCH_EVERY = 10
"""Number of rounds between two restarts from the best replica; a restart has as many moves as a round. Chosen."""


def anneal_replicas(
    g: Grid,
    t: Tables,
    replicas: IntArray,
    temperatures: FloatArray,
    done: int,
    rounds: int,
    best: int,
    best_nodes: IntArray,
    state: np.ndarray,
    hot: float,
    cold: float,
    softness: float,
    archive: IntArray,
    archived: IntArray,
) -> int:
    """
    Anneal each replica for ``REBUILD`` moves and exchange neighbours, ``rounds`` times. Return the best objective,
    ticks.

    Not compiled: a call of the kernel takes milliseconds, and a kernel around it would compile all of it again.

    Parameters
    ----------
    g, t
        Arrays of the plain grid, and the tables from which they are made.
    replicas
        All hosts of each replica, the grid first, shape ``(K, M)``; changed in place.
    temperatures
        Temperatures from hot to cold, integer ticks, shape ``(K,)``.
    done, rounds
        Number of rounds done before, and number of rounds to do.
    hot, cold
        First and last temperature of the restarts from the best replica, ticks.
    best, best_nodes, state, softness, archive, archived
        See :func:`~pipette_opt.annealing.swaps.anneal_grid`.
    """
    K = len(replicas)
    energy = [0] * K
    finish = np.zeros((len(t.watched), int(g.sizes[1])), dtype=np.int64)
    ring, times = np.zeros(len(t.watched), dtype=np.int64), np.zeros((6, len(t.row)), dtype=np.int64)

    def anneal(nodes: IntArray, moves: int, first: float, last: float) -> None:
        nonlocal best
        best = anneal_grid(g, nodes, best, best_nodes, state, 0, moves, moves, first, last, softness, archive, archived)

    for number in range(done, done + rounds):
        for k in range(K):
            anneal(replicas[k], REBUILD, temperatures[k], temperatures[k])
            energy[k] = evaluate(t, replicas[k], finish, ring, times)
        if (number + 1) % QUENCH_EVERY == 0:
            anneal(replicas[energy.index(min(energy))].copy(), K * REBUILD, hot, cold)
        for k in range(number % 2, K - 1, 2):
            gain = (energy[k + 1] - energy[k]) * (1.0 / temperatures[k + 1] - 1.0 / temperatures[k])
            if gain >= 0 or uniform(state) < math.exp(gain):
                energy[k], energy[k + 1] = energy[k + 1], energy[k]
                replicas[[k, k + 1]] = replicas[[k + 1, k]]
    return best

"""
Placement by a swap local search with the simulator alone, many placements at a time.

It is for times that integer relaxations do not express; :mod:`~pipette_opt.simulate.host_tree` bounds them.
"""

from math import perm

import numpy as np

from pipette_opt.base.types import IntArray
from pipette_opt.parallel import tile_placement
from pipette_opt.plans.clock import Clock
from pipette_opt.problem.data import CandidateData, ProblemData
from pipette_opt.simulate.many import estimate_many
from pipette_opt.specs import Instance

ORDERS_AT_ONCE = 128
"""Number of placements simulated together. Chosen."""


def num_orders(data: ProblemData, candidate: CandidateData) -> int:
    """Return the number of placements of a candidate configuration, including those that do not fit."""
    return perm(data.num_nodes, candidate.num_cells)


def improve_by_swaps(
    instance: Instance,
    data: ProblemData,
    candidate: CandidateData,
    nodes: IntArray,
    clock: Clock,
    seed: int = 0,
) -> IntArray:
    """Swap two hosts, used or spare, as long as a swap makes the plan faster. Return the last placement."""
    rng = np.random.default_rng(seed)
    spare = sorted(set(range(data.num_nodes)) - set(nodes.ravel().tolist()))
    seats = np.array([*nodes.ravel().tolist(), *spare], dtype=np.int64)
    fastest = float(_times_s(instance, candidate, [nodes])[0])
    pairs = [(first, second) for first in range(nodes.size) for second in range(first + 1, len(seats))]
    since = 0  # swaps tried since the last improvement
    while since < len(pairs):
        order = rng.permutation(len(pairs)).tolist()
        since = 0
        for first in range(0, len(order), ORDERS_AT_ONCE):
            if clock.is_over:
                return seats[: nodes.size].reshape(nodes.shape)
            chosen = order[first : first + ORDERS_AT_ONCE]
            swapped = [_swapped(seats, *pairs[index]) for index in chosen]
            placements = [after[: nodes.size].reshape(nodes.shape) for after in swapped]
            room = [has_room(data, candidate, placement) for placement in placements]
            times = np.where(room, _times_s(instance, candidate, placements), np.inf)
            if times.min() < fastest * (1 - 1e-9):
                seats, fastest, since = swapped[int(times.argmin())], float(times.min()), 0
            else:
                since += len(chosen)
    return seats[: nodes.size].reshape(nodes.shape)


def has_room(data: ProblemData, candidate: CandidateData, nodes: IntArray) -> bool:
    """Return whether every host has the memory that its grid row needs."""
    allowed = data.allowed(candidate)
    rows = np.arange(nodes.shape[0])[:, None, None]
    return bool(allowed[rows, nodes].all())


def _swapped(seats: IntArray, first: int, second: int) -> IntArray:
    after = seats.copy()
    after[[first, second]] = seats[[second, first]]
    return after


def _times_s(instance: Instance, candidate: CandidateData, placements: list[IntArray]) -> np.ndarray:
    placed = [(candidate.config, tile_placement(candidate.config, candidate.tile, nodes)) for nodes in placements]
    return estimate_many(instance, placed)

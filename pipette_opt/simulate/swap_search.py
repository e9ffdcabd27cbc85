"""
Placement by the simulator alone: every placement of a candidate configuration, or a swap local search.

If expert-parallel groups span hosts, their all-to-alls depend on all links of a group together, which the integer
relaxations do not express. So the simulator places these candidates, many placements at a time.
"""

from collections.abc import Iterator
from itertools import islice, permutations
from math import perm

import numpy as np

from pipette_opt.base.types import IntArray
from pipette_opt.parallel import tile_placement
from pipette_opt.plans.clock import Clock
from pipette_opt.problem.data import CandidateData, ProblemData
from pipette_opt.simulate.many import estimate_many
from pipette_opt.specs import Instance

MAX_ORDERS = 5040
"""Candidates with at most this many placements are simulated on all of them: 7 hosts in any order. Chosen."""

ORDERS_AT_ONCE = 128
"""Number of placements simulated together. Chosen."""


def num_orders(data: ProblemData, candidate: CandidateData) -> int:
    """Return the number of placements of a candidate configuration, including those that do not fit."""
    return perm(data.num_nodes, candidate.num_cells)


def best_of_all(
    instance: Instance, data: ProblemData, candidate: CandidateData, clock: Clock
) -> tuple[IntArray | None, float] | None:
    """
    Return the fastest of all placements and its time in seconds; ``(None, inf)`` if none has memory and links.

    Return ``None`` if the time is over before all are simulated.
    """
    best: IntArray | None = None
    fastest = float("inf")
    orders = _with_room(data, candidate, permutations(range(data.num_nodes), candidate.num_cells))
    while batch := list(islice(orders, ORDERS_AT_ONCE)):
        if clock.is_over:
            return None
        times = _times_s(instance, candidate, batch)
        if times.min() < fastest:
            best, fastest = batch[int(times.argmin())], float(times.min())
    return best, fastest


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


def _with_room(data: ProblemData, candidate: CandidateData, orders: Iterator[tuple[int, ...]]) -> Iterator[IntArray]:
    for order in orders:
        nodes = np.array(order, dtype=np.int64).reshape(candidate.grid)
        if has_room(data, candidate, nodes):
            yield nodes


def _times_s(instance: Instance, candidate: CandidateData, placements: list[IntArray]) -> np.ndarray:
    placed = [(candidate.config, tile_placement(candidate.config, candidate.tile, nodes)) for nodes in placements]
    return estimate_many(instance, placed)

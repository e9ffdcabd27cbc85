"""
Placements that only the simulator can rank: every one of them, or exchanges of two hosts while that makes a plan
faster.

Where expert-parallel groups span hosts, what their all-to-alls take hangs on all links of a group together, and where
collectives run beside compute, waits for parameters hang on the schedule: no integer form here says either. So these
candidates are placed by the simulator, many placements at a time.
"""

import threading
import time
from collections.abc import Iterator
from itertools import islice, permutations
from math import perm

import numpy as np

from pipette_opt.base.types import IntArray
from pipette_opt.parallel import block_placement
from pipette_opt.problem.data import CandidateData, ProblemData
from pipette_opt.simulate.many import estimate_many
from pipette_opt.specs import Instance

MAX_ORDERS = 5040
"""Placements of a candidate up to which all are simulated: 7 hosts in any order. Chosen."""

ORDERS_AT_ONCE = 128
"""Placements that are simulated together."""


def num_orders(data: ProblemData, candidate: CandidateData) -> int:
    """Placements of a candidate, whether they have room or not."""
    return perm(data.num_nodes, candidate.num_cells)


def best_of_all(
    instance: Instance, data: ProblemData, candidate: CandidateData, ends: float, stop: threading.Event
) -> tuple[IntArray | None, float] | None:
    """
    The fastest of all placements and its time in seconds, ``(None, inf)`` if none has room and links.

    ``None`` if that is not known at the time ``ends`` of :func:`time.perf_counter`.
    """
    best: IntArray | None = None
    fastest = float("inf")
    orders = _with_room(data, candidate, permutations(range(data.num_nodes), candidate.num_cells))
    while some := list(islice(orders, ORDERS_AT_ONCE)):
        if time.perf_counter() >= ends or stop.is_set():
            return None
        times = _times_s(instance, candidate, some)
        if times.min() < fastest:
            best, fastest = some[int(times.argmin())], float(times.min())
    return best, fastest


def climb(
    instance: Instance,
    data: ProblemData,
    candidate: CandidateData,
    nodes: IntArray,
    ends: float,
    stop: threading.Event,
    seed: int = 0,
) -> IntArray:
    """Exchange two hosts, used or not, as long as that makes the plan faster; the last placement."""
    rng = np.random.default_rng(seed)
    spare = sorted(set(range(data.num_nodes)) - set(nodes.ravel().tolist()))
    seats = np.array([*nodes.ravel().tolist(), *spare], dtype=np.int64)
    fastest = float(_times_s(instance, candidate, [nodes])[0])
    pairs = [(one, other) for one in range(nodes.size) for other in range(one + 1, len(seats))]
    since = 0  # exchanges looked at since the last that helped
    while since < len(pairs):
        order = rng.permutation(len(pairs)).tolist()
        since = 0
        for first in range(0, len(order), ORDERS_AT_ONCE):
            if time.perf_counter() >= ends or stop.is_set():
                return seats[: nodes.size].reshape(nodes.shape)
            chosen = order[first : first + ORDERS_AT_ONCE]
            exchanged = [_exchanged(seats, *pairs[index]) for index in chosen]
            placements = [one[: nodes.size].reshape(nodes.shape) for one in exchanged]
            room = [has_room(data, candidate, one) for one in placements]
            times = np.where(room, _times_s(instance, candidate, placements), np.inf)
            if times.min() < fastest * (1 - 1e-9):
                seats, fastest, since = exchanged[int(times.argmin())], float(times.min()), 0
            else:
                since += len(chosen)
    return seats[: nodes.size].reshape(nodes.shape)


def has_room(data: ProblemData, candidate: CandidateData, nodes: IntArray) -> bool:
    """Whether every host has the memory for its row."""
    allowed = data.allowed(candidate)
    rows = np.arange(nodes.shape[0])[:, None, None]
    return bool(allowed[rows, nodes].all())


def _exchanged(seats: IntArray, one: int, other: int) -> IntArray:
    after = seats.copy()
    after[[one, other]] = seats[[other, one]]
    return after


def _with_room(data: ProblemData, candidate: CandidateData, orders: Iterator[tuple[int, ...]]) -> Iterator[IntArray]:
    for order in orders:
        nodes = np.array(order, dtype=np.int64).reshape(candidate.grid)
        if has_room(data, candidate, nodes):
            yield nodes


def _times_s(instance: Instance, candidate: CandidateData, placements: list[IntArray]) -> np.ndarray:
    placed = [(candidate.config, block_placement(candidate.config, candidate.block, one)) for one in placements]
    return estimate_many(instance, placed)

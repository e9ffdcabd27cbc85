"""
Bounds by searching the grid between two periods.

With a ceiling on the objective, a column's period and the slowest ring share what is left: the longer one, the
shorter the other must be. So the placements are split by their longest period. Between two periods each link of a
column has a limit from the upper and each ring hop one from the lower; few links keep both, and a depth-first search
over the cells soon ends. Each interval of periods has its own bound; the least is raised first, in steps, and an
interval that takes too long is split.
"""

import heapq
import itertools
from dataclasses import dataclass, field, replace

import numpy as np

from pipette_opt.base.types import BoolArray, IntArray
from pipette_opt.problem.data import CandidateData, ProblemData
from pipette_opt.solver.grid_kernel import Grid, Limits, State, explore
from pipette_opt.solver.host_costs import after_reductions, as_ints, ring_hops, transfers
from pipette_opt.solver.interval_search import Interval, IntervalSearch
from pipette_opt.solver.matching import bottleneck_level, matching_size
from pipette_opt.solver.rows.costs import NEVER, end_parts, mean_parts, watched_stages

FIRST_PARTS = 8
"""Intervals of periods at first."""

FIRST_BUDGET = 300_000
"""Hosts that are tried in an interval before it is split."""

WIDTH = 0.5
"""Of the next step of the bound, what the periods of an interval may differ by before it is split."""

PLAIN = 1000
"""Hosts tried, below which a refutation says nothing about which way to fill the rows."""

CHUNK = 300_000
"""Hosts that are tried before the clock is looked at."""


def searches(candidate: CandidateData) -> bool:
    """Whether a candidate can be searched: a closed form, tensor groups inside hosts, at least two hosts."""
    return candidate.exact and candidate.grid[2] == 1 and candidate.num_cells > 1


@dataclass(order=True, slots=True)
class _Interval(Interval):
    """
    Placements whose longest period is in ``[low, high]``.

    Parameters
    ----------
    step
        By how much the bound is to be raised next.
    """

    step: int = field(compare=False)


class GridSearch(IntervalSearch):
    """
    The search of one candidate of many cells.

    Parameters are those of :class:`~pipette_opt.solver.interval_search.IntervalSearch`.
    """

    def __init__(self, data: ProblemData, candidate: CandidateData, floor: int, ceiling: int) -> None:
        super().__init__(candidate, floor, ceiling)
        self.grid, self.room = grid_of(data, candidate), data.allowed(candidate)
        self._ways = ((self.grid, self.room), (grid_of(data, candidate, upwards=True), self.room[::-1]))
        self._successes = [1.0, 0.9]
        self._divide()

    def _divide(self) -> None:
        """The first intervals, from the least period there can be to the longest that the ceiling leaves."""
        g = self.grid
        rounds = int(g.scalars[3])
        least_end = self._least_end(0)
        spare = self.ceiling - least_end - g.least_hop - g.after
        if spare.min() < 0:
            return  # nothing is that good
        if rounds == 0:
            self._push(0, int(NEVER), self.floor, self.ceiling)
            return
        low, high = int(g.work.min(axis=1).max()), int(spare.min()) // rounds
        edges = np.unique(np.linspace(low, high + 1, FIRST_PARTS + 1).astype(np.int64)).tolist()
        for start, end in itertools.pairwise(edges):
            self._push(start, end - 1, self.floor, max(1, (self.ceiling + 1 - self.floor) // 4))

    def _least_end(self, period: int) -> IntArray:
        """Least end of each watched stage in a column of such a period, shape ``(W,)``."""
        g = self.grid
        path = np.where(self.room[0], g.node[:, 0] + g.rest[:, 0], NEVER).min(axis=1)
        least: IntArray = path + int(g.scalars[3]) * period
        return least

    def _push(self, low: int, high: int, known: int, step: int, budget: int = FIRST_BUDGET) -> None:
        least = int((self._least_end(low) + self.grid.least_hop + self.grid.after).max())
        heapq.heappush(self.heap, _Interval(max(known, least), low, high, budget, max(1, step)))

    def _raise(self, interval: Interval) -> list[Interval]:
        """Refute the next step, or split: what takes the interval's place."""
        assert isinstance(interval, _Interval)
        ceiling = min(self.ceiling, interval.bound + interval.step - 1)
        if ceiling < interval.bound:
            return []  # a placement has been found that is as good
        refuted = self._refutes(interval, ceiling)
        if refuted:
            return [replace(interval, bound=ceiling + 1, step=2 * interval.step)]
        if self._is_over:
            return [interval]
        step = max(1, interval.step // 2)
        wide = int(self.grid.scalars[3]) * (interval.high - interval.low) > WIDTH * step
        if not wide or interval.high == interval.low:
            return [replace(interval, step=step, budget=interval.budget * 3 // 2)]
        middle = (interval.low + interval.high) // 2
        parts: list[Interval] = []
        for low, high in ((interval.low, middle), (middle + 1, interval.high)):
            least = int((self._least_end(low) + self.grid.least_hop + self.grid.after).max())
            parts.append(replace(interval, bound=max(interval.bound, least), low=low, high=high, step=step))
        return parts

    def _refutes(self, interval: _Interval, ceiling: int) -> bool:
        """Whether no placement of the interval costs at most the ceiling."""
        with self._lock:
            upwards = int(np.argmax(self._successes))
        grid, room = self._ways[upwards]
        limits = _limits(grid, room, ceiling, interval.high, ceiling - grid.after - self._least_end(interval.low))
        if limits is None:
            return True
        state = self._start(interval)
        left = interval.budget
        while left > 0 and not self._is_over:
            before = int(state.depth[1])
            code = int(explore(grid, limits, state, min(left, CHUNK)))
            with self._lock:
                self.tried += int(state.depth[1]) - before
            left -= int(state.depth[1]) - before
            if code == 0:
                self._note(upwards, success=True, tried=interval.budget - left)
                return True
            if code == 1:
                if self._on_placement is None:
                    return False
                with self._lock:
                    self.ceiling = min(self.ceiling, self._on_placement(state.nodes[:: -1 if upwards else 1].copy()))
                    limits.values[0] = min(limits.values[0], self.ceiling)
        self._note(upwards, success=False, tried=interval.budget - left)
        return False

    def _note(self, upwards: int, *, success: bool, tried: int) -> None:
        """Which way succeeds more often, where it is not plain; the other has its turn after failures."""
        if tried >= PLAIN:
            with self._lock:
                self._successes[upwards] = 0.8 * self._successes[upwards] + 0.2 * success

    def _start(self, interval: _Interval) -> State:
        g = self.grid
        P, D = int(g.scalars[0]), int(g.scalars[1])
        watched, cells = len(g.row), P * D
        state = State(
            depth=np.zeros(2, dtype=np.int64),
            tried=np.zeros(cells + 1, dtype=np.int64),
            nodes=np.zeros((P, D), dtype=np.int64),
            used=np.zeros(g.wait.shape[0], dtype=np.bool_),
            period=np.zeros((P, D), dtype=np.int64),
            mean=np.zeros((P, D), dtype=np.int64),
            wait_in=np.zeros((P, D), dtype=np.int64),
            passed=np.zeros((len(g.work), D), dtype=np.int64),
            end=np.zeros((watched, P, D), dtype=np.int64),
            latest=np.zeros((cells + 1, watched), dtype=np.int64),
            ring=np.zeros((cells + 1, watched), dtype=np.int64),
        )
        state.latest[0] = self._least_end(interval.low)
        state.ring[0] = g.least_hop
        return state


def _limits(g: Grid, room: BoolArray, ceiling: int, high: int, left: IntArray) -> Limits | None:
    """
    What links may cost; ``None`` if some host or some row then has no place or no hosts.

    Parameters
    ----------
    high
        Longest period of a column.
    left
        Longest reduction of each watched stage.
    """
    P, D, N = int(g.scalars[0]), int(g.scalars[1]), len(g.wait)
    along = np.ones((P, N, N), dtype=np.bool_)
    if D > 1:
        for watched, row in enumerate(g.row.tolist()):
            along[row] &= g.hop[watched] <= left[watched]
    down = _down(g, high)
    for _ in range(4):
        kept = room & _has_neighbours(room, down, along, D)
        if (kept == room).all():
            break
        room = kept
    every = N == P * D
    if (room.sum(axis=1) < D).any() or (every and not room.any(axis=0).all()):
        return None
    if matching_size(np.repeat(room, D, axis=0)) < P * D:
        return None
    last = P - 1 - room[::-1].argmax(axis=0) if every else np.full(N, P)
    return Limits(
        values=np.array([ceiling, high], dtype=np.int64),
        room=np.ascontiguousarray(room),
        down=down,
        along=along,
        last=as_ints(last),
    )


def _down(g: Grid, high: int) -> BoolArray:
    """Whether a column of such a period may take a transfer, shape ``(P - 1, N, N)``."""
    P, N = int(g.scalars[0]), len(g.wait)
    down = np.broadcast_to(g.wait < NEVER, (P - 1, N, N)).copy()
    for row in range(P - 1):
        here, there = g.last_wait[row][:, None] + g.wait, g.first_wait[row + 1][None, :] + g.wait
        if g.scalars[4]:
            if g.scalars[2] == 1:
                here = here + (g.least_out[:, None] if row > 0 else 0)
                there = there + (g.least_out[None, :] if row + 1 < P - 1 else 0)
            down[row] &= (here <= high) & (there <= high)
        else:
            stages = int(g.scalars[2])
            pair = g.work[(row + 1) * stages - 1][:, None] + g.work[(row + 1) * stages][None, :] + g.wait
            down[row] &= -(-pair // 2) <= high
    return down


def _has_neighbours(room: BoolArray, down: BoolArray, along: BoolArray, num_columns: int) -> BoolArray:
    """Whether a host of a row has enough different hosts for its neighbours (Hall's condition), shape ``(P, N)``."""
    P, N = room.shape
    below, above = np.zeros((2, P, N, N), dtype=np.bool_)
    below[:-1] = down & room[1:, None, :]
    above[1:] = down.transpose(0, 2, 1) & room[:-1, None, :]
    needs_below, needs_above = np.zeros((2, P, 1), dtype=np.int64)
    needs_below[:-1], needs_above[1:] = 1, 1
    sides = [(below, needs_below), (above, needs_above)]
    if num_columns > 1:
        out, into = along & room[:, None, :], along.transpose(0, 2, 1) & room[:, None, :]
        one = np.ones((P, 1), dtype=np.int64)
        sides += [(out & into, one)] if num_columns == 2 else [(out, one), (into, one)]
    good = room.copy()
    for number in range(1, len(sides) + 1):
        for chosen in itertools.combinations(sides, number):
            union = np.logical_or.reduce([side for side, _ in chosen]).sum(axis=2)
            good &= union >= np.sum([np.where(need > 0, need, 0) for _, need in chosen], axis=0)
    return good


def grid_of(data: ProblemData, candidate: CandidateData, *, upwards: bool = False) -> Grid:
    """
    A candidate as arrays of the search.

    Parameters
    ----------
    upwards
        Whether the last row is the first that is filled; then "first", "below" and "out" are as seen from there.
    """
    P, D, _ = candidate.grid
    a, blocking = candidate.block.stages, data.p2p == "blocking"
    kinds, room = data.kind_of_node, data.allowed(candidate)
    there, both, wait = transfers(candidate, blocking=blocking)
    watched = watched_stages(candidate)
    turn = -1 if upwards else 1
    nodes, rests, arcs, hops = [], [], [], []
    for stage in watched.tolist():
        node, arc = end_parts(candidate, kinds, both, there, stage)
        arc = arc[::turn].transpose(0, 2, 1) if upwards else arc
        nodes.append(node[::turn])
        rests.append(_rest(node[::turn], arc, room[::turn]))
        arcs.append([(row + 1) * a - 1 >= stage for row in range(P - 1)][::turn])
        hops.append(ring_hops(candidate, stage))
    mean_node, mean_arc = mean_parts(data, candidate, kinds, wait)
    work = (candidate.forward_ticks + candidate.backward_ticks)[kinds].T[::turn]
    inside = candidate.intra_p2p_ticks if a > 1 else 0
    by_row = work.reshape(P, a, len(kinds))
    inner = by_row[:, 1:-1].max(axis=1, initial=0) + 2 * inside if a > 2 else np.zeros_like(by_row[:, 0])
    order = np.moveaxis(np.indices((P, D)), 0, 2)  # row by row: the first row's ring has least to spare
    turns = all((hop == hop.T).all() for hop in hops)
    rows = watched // a
    return Grid(
        scalars=as_ints([P, D, a, candidate.num_microbatches - 1, blocking, candidate.intra_p2p_ticks, turns]),
        order=as_ints(order.reshape(-1, 2)),
        wait=as_ints(wait),
        first_wait=as_ints(by_row[:, 0] + inside),
        last_wait=as_ints(by_row[:, -1] + inside),
        inner=as_ints(inner),
        work=as_ints(work),
        least_out=as_ints(wait.min(axis=1)),
        node=as_ints(nodes),
        arc=as_ints(arcs).reshape(len(watched), P - 1),
        transfer=as_ints([there.T, both] if upwards else [there, both]),
        rest=as_ints(rests),
        mean_node=as_ints(mean_node[::turn]),
        mean_rest=as_ints(_rest(mean_node[::turn], mean_arc[::turn].transpose(0, 2, 1), room[::turn])),
        hop=as_ints(hops),
        least_hop=as_ints([bottleneck_level(hop, D) if D > 1 else int(hop[0, 0]) for hop in hops]),
        after=after_reductions(candidate, watched),
        row=as_ints(P - 1 - rows if upwards else rows),
    )


def _rest(node: IntArray, arc: IntArray, room: BoolArray) -> IntArray:
    """Least that the rows below a host add, shape ``(P, N)``."""
    rest = np.zeros_like(node)
    for row in range(len(node) - 2, -1, -1):
        below = np.where(room[row + 1], node[row + 1] + rest[row + 1], NEVER)
        rest[row] = np.minimum((arc[row] + below[None, :]).min(axis=1), NEVER)
    return rest

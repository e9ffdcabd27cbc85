"""
Bounds by searching the grid between two ends of its latest column.

With a ceiling on the objective, the latest column and the slowest ring share what is left: the later the columns end,
the faster the rings must be. So the placements are split by the end of the latest column. Between two ends each column
has a limit from the upper and each ring hop one from the lower; few hosts and links keep both, and a depth-first
search over the cells soon ends. Each interval of ends has its own bound; the least is raised first, at best to the
ceiling, and an interval that takes too long is split, or raised by less.
"""

import heapq
import itertools
from dataclasses import dataclass, field, replace

import numpy as np

from pipette_opt.problem import CandidateData, ProblemData
from pipette_opt.solver.cells.data import grid_of
from pipette_opt.solver.cells.kernel import explore
from pipette_opt.solver.cells.limits import Part, least_path, part_of
from pipette_opt.solver.interval_search import Interval, IntervalSearch

FIRST_PARTS = 8
"""Intervals of ends at first."""

FIRST_BUDGET, MORE_BUDGET = 20_000, 3
"""Hosts that are tried in an interval of 16 cells and hosts before it is split, and how many times more at its next."""

FIRST_HALVINGS = 2
"""How often what lacks to the ceiling is halved for the first step."""

WIDTH = 0.5
"""Of the next step of the bound, what the ends of an interval may differ by before it is split."""

CHUNK = 4000
"""Hosts that are tried, of 16 cells and hosts, before the clock is looked at."""


@dataclass(slots=True)
class _Begun:
    """A part of the search that time may interrupt, and how many hosts may still be tried."""

    part: Part
    ceiling: int
    left: int


@dataclass(order=True, slots=True)
class _Interval(Interval):
    """
    Placements whose latest column ends in ``[low, high]``.

    Parameters
    ----------
    halvings
        How often what lacks to the ceiling is halved for the next step of the bound.
    begun
        The step that time has interrupted.
    """

    halvings: int = field(compare=False)
    begun: _Begun | None = field(compare=False, default=None)


class CellSearch(IntervalSearch):
    """
    The search of one candidate of few cells.

    Parameters are those of :class:`~pipette_opt.solver.interval_search.IntervalSearch`.
    """

    def __init__(self, data: ProblemData, candidate: CandidateData, floor: int, ceiling: int) -> None:
        super().__init__(candidate, floor, ceiling)
        self.grid, self.room = grid_of(data, candidate), data.allowed(candidate)
        self._size = max(1, candidate.num_cells * data.num_nodes // 256)
        self._divide()

    def _divide(self) -> None:
        """The first intervals, from the least end there can be to the latest that the ceiling leaves."""
        g = self.grid
        ends = least_path(g, self.room) + int(g.scalars[3]) * int(g.work.min(axis=1).max())
        left = self.ceiling - g.least_hop - g.after
        if (left < ends).any():
            return  # nothing is that good
        budget = max(1, FIRST_BUDGET // self._size)
        edges = np.unique(np.linspace(ends[0], left[0] + 1, FIRST_PARTS + 1).astype(np.int64)).tolist()
        for low, high in itertools.pairwise(edges):
            heapq.heappush(self.heap, _Interval(self._least(low), low, high - 1, budget, FIRST_HALVINGS))

    def _least(self, end: int) -> int:
        """Least objective with such an end."""
        return max(self.floor, end + int(self.grid.least_hop[0] + self.grid.after[0]))

    def _raise(self, interval: Interval) -> list[Interval]:
        """Refute the next step, or split: what takes the interval's place."""
        assert isinstance(interval, _Interval)
        lacks = self.ceiling + 1 - interval.bound
        if lacks <= 0:
            return []  # a placement has been found that is as good
        step = -(-lacks // 2**interval.halvings)
        begun = interval.begun or self._begin(interval, interval.bound + step - 1)
        if begun is None or self._refutes(begun):
            bound = interval.bound + step if begun is None else begun.ceiling + 1
            return [replace(interval, bound=bound, halvings=max(0, interval.halvings - 1), begun=None)]
        if begun.left > 0:
            return [replace(interval, begun=begun)]
        wide = interval.high - interval.low > WIDTH * step
        if not wide or interval.high == interval.low:
            budget = MORE_BUDGET * interval.budget
            return [replace(interval, halvings=interval.halvings + 1, budget=budget, begun=None)]
        middle = (interval.low + interval.high) // 2
        return [
            replace(interval, bound=max(interval.bound, self._least(low)), low=low, high=high, begun=None)
            for low, high in ((interval.low, middle), (middle + 1, interval.high))
        ]

    def _begin(self, interval: _Interval, ceiling: int) -> _Begun | None:
        """The search of an interval; ``None`` if it is refuted without."""
        part = part_of(self.grid, self.room, ceiling, interval.low, interval.high)
        return None if part is None else _Begun(part, ceiling, interval.budget)

    def _refutes(self, begun: _Begun) -> bool:
        """Whether no placement costs at most the ceiling; if time is not over, nothing of the budget is left else."""
        limits, work, state = begun.part
        limits.values[0] = min(limits.values[0], self.ceiling)
        while begun.left > 0 and not self._is_over:
            before = int(state.depth[1])
            code = int(explore(self.grid, limits, work, state, min(begun.left, max(1, CHUNK // self._size))))
            tried = int(state.depth[1]) - before
            begun.left -= tried
            with self._lock:
                self.tried += tried
            if code == 0:
                return True
            if code == 1 and self._on_placement is None:
                begun.left = 0
            elif code == 1 and self._on_placement is not None:
                with self._lock:
                    nodes = state.nodes.reshape(self.candidate.grid[:2]).copy()
                    self.ceiling = min(self.ceiling, self._on_placement(nodes))
                    limits.values[0] = min(limits.values[0], self.ceiling)
        return False

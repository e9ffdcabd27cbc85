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

from pipette_opt.base.types import IntArray
from pipette_opt.problem.data import CandidateData, ProblemData
from pipette_opt.problem.objective import objective_ticks
from pipette_opt.solver.cells.data import grid_of
from pipette_opt.solver.cells.kernel import explore, share_done
from pipette_opt.solver.cells.limits import Part, give_away, least_path, part_of
from pipette_opt.solver.interval_search import Interval, IntervalSearch

FIRST_PARTS = 8
"""Intervals of ends at first."""

FIRST_BUDGET, MORE_BUDGET = 60_000, 3
"""Hosts that are tried for a ceiling in an interval of 16 cells and hosts at first, and how many times more next."""

LEAST_SHARE = 0.1
"""Of what is left of a search, how much a budget must end, or the interval is split."""

WIDTH = 0.5
"""Of what lacks to the ceiling, what the ends of an interval must differ by to be split."""

CHUNK = 4000
"""Hosts that are tried, of 16 cells and hosts, before the clock is looked at."""


@dataclass(slots=True)
class _Begun:
    """
    The search for placements that cost at most a ceiling, which goes on where it was.

    Parameters
    ----------
    budget, left
        Hosts that may be tried before other things are, and how many still.
    done
        Share of the search that was behind when the last budget was used up.
    """

    part: Part
    ceiling: int
    budget: int
    left: int
    done: float = 0.0


@dataclass(order=True, slots=True)
class _Interval(Interval):
    """
    Placements whose latest column ends in ``[low, high]``.

    Parameters
    ----------
    begun
        Searches that have not ended, each for a lower ceiling than the one before.
    """

    begun: list[_Begun] = field(compare=False, default_factory=list)


class CellSearch(IntervalSearch):
    """
    The search of one candidate of few cells.

    Parameters are those of :class:`~pipette_opt.solver.interval_search.IntervalSearch`.
    """

    def __init__(self, data: ProblemData, candidate: CandidateData, floor: int, ceiling: int) -> None:
        super().__init__(candidate, floor, ceiling)
        self.data = data
        self.grid, self.room = grid_of(data, candidate), data.allowed(candidate)
        self._size = max(1, candidate.num_cells * data.num_nodes // 256)
        self._divide()

    def _divide(self) -> None:
        """The first intervals, from the least end there can be to the latest that the ceiling leaves."""
        g = self.grid
        ends = least_path(g, self.room) + int(g.scalars[3]) * int(g.work.min(axis=1).max())
        if (self.ceiling - g.least_hop - g.after < ends).any():
            return  # nothing is that good
        budget = max(1, FIRST_BUDGET // self._size**2)
        parts = FIRST_PARTS if self._splits else 1
        edges = np.unique(np.linspace(ends[0], self._latest + 1, parts + 1).astype(np.int64)).tolist()
        for low, high in itertools.pairwise(edges):
            heapq.heappush(self.heap, _Interval(self._least(low), low, high - 1, budget))

    @property
    def _splits(self) -> bool:
        """Whether intervals are worth splitting; of a single column the end is the objective already."""
        return self.candidate.grid[1] > 1

    @property
    def _latest(self) -> int:
        """The latest end that the ceiling leaves."""
        return self.ceiling - int(self.grid.least_hop[0] + self.grid.after[0])

    def _least(self, end: int) -> int:
        """Least objective with such an end."""
        return max(self.floor, end + int(self.grid.least_hop[0] + self.grid.after[0]))

    def _raise(self, interval: Interval) -> list[Interval]:
        """Refute the lowest ceiling begun with; if that takes too long, try a lower one next, or split the interval."""
        assert isinstance(interval, _Interval)
        if interval.bound > self.ceiling:
            return []  # a placement has been found that is as good
        if not interval.begun and not self._begin(interval, self.ceiling):
            return []
        begun = interval.begun[-1]
        if self._refutes(begun):
            interval.begun.pop()
            return [replace(interval, bound=begun.ceiling + 1)]
        if self._has_idle() and len(interval.begun) == 1 and (given := give_away(begun.part)) is not None:
            begun.left = begun.budget
            other = replace(interval, begun=[_Begun(given, begun.ceiling, begun.budget, begun.budget)])
            return [interval, other]
        if begun.left > 0:
            return [interval]
        before, begun.done = begun.done, share_done(begun.part.state)
        is_slow = begun.done - before < LEAST_SHARE * (1 - before)
        lacks = min(begun.ceiling, self.ceiling) + 1 - interval.bound
        if is_slow and self._splits and min(interval.high, self._latest) - interval.low > WIDTH * lacks:
            return self._halves(interval)
        begun.budget = begun.left = MORE_BUDGET * begun.budget
        between = interval.bound + lacks // 2 - 1
        if lacks > 1 and not self._begin(interval, between):
            return [replace(interval, bound=between + 1)]
        return [interval]

    def _begin(self, interval: _Interval, ceiling: int) -> bool:
        """Begin with a ceiling; False if it is refuted at once."""
        part = part_of(self.grid, self.room, ceiling, interval.low, interval.high)
        if part is not None:
            interval.begun.append(_Begun(part, ceiling, interval.budget, interval.budget))
        return part is not None

    def _halves(self, interval: _Interval) -> list[Interval]:
        """Split an interval in the middle; the ends for which the ceiling leaves nothing are left out."""
        high = min(interval.high, self._latest)
        middle = (interval.low + high) // 2
        return [
            _Interval(max(interval.bound, self._least(low)), low, high, interval.budget)
            for low, high in ((interval.low, middle), (middle + 1, high))
        ]

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
            if code == 1:
                self._offer(state.nodes.reshape(self.candidate.grid[:2]).copy())
                limits.values[0] = min(limits.values[0], self.ceiling)
            if self._has_idle():
                break
        return False

    def _offer(self, nodes: IntArray) -> None:
        """Hand over a placement; only better ones are of interest from now on."""
        with self._lock:
            self.ceiling = min(self.ceiling, objective_ticks(self.data, self.candidate, nodes[:, :, None]) - 1)
            if self._on_placement is not None:
                self.ceiling = min(self.ceiling, self._on_placement(nodes))

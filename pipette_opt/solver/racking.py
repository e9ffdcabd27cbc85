"""
Searches by racks and kinds of hosts, one for each candidate, that go on where they were.

Those that leave the order of columns open come first; where they end, the order is told.
"""

from collections.abc import Callable
from functools import partial

from pipette_opt.problem import CandidateData, ProblemData
from pipette_opt.solver.courses.ordering import OrderRefuter
from pipette_opt.solver.courses.refuting import CourseRefuter
from pipette_opt.solver.known import Known
from pipette_opt.solver.racks.model import MOST_IN_ORDER
from pipette_opt.solver.racks.refuting import CellRefuter, OnPlacement, Refuter
from pipette_opt.solver.racks.search import RackSearch, has_racks
from pipette_opt.solver.racks.structure import Racks, find_racks
from pipette_opt.solver.refining import Refining

FEWEST_CELLS, MOST_TOLD_CELLS, MOST_ORDERED_CELLS = 41, 80, 160
"""Cells below which patterns of classes tell more in the same time, above which courses of columns do, and above which
the order of columns is not told."""

SHARE = 0.95
"""Of the time left, what a search takes before others have a turn."""

MakeRefuter = Callable[[ProblemData, CandidateData, Racks, OnPlacement], Refuter]
"""Makes what refutes ceilings of a candidate."""


class Racking:
    """
    The searches begun so far.

    Attributes
    ----------
    begun
        By candidate; ``None`` where racks and kinds tell too little.
    """

    def __init__(self, known: Known, refining: Refining) -> None:
        self.known, self.refining = known, refining
        self.begun: dict[int, RackSearch | None] = {}
        self._in_order: set[int] = set()

    def suits(self, index: int) -> bool:
        """Whether a large candidate has racks that are not yet searched to their end."""
        known, candidate = self.known, self.known.data.candidates[index]
        if not known.params.decomposes or candidate.num_cells < FEWEST_CELLS:
            return False
        if index not in self.begun:
            racks = find_racks(known.data, candidate) if has_racks(candidate) else None
            kind: MakeRefuter = CellRefuter if candidate.num_cells <= MOST_TOLD_CELLS else CourseRefuter
            self.begun[index] = None if racks is None else self._begin(index, kind, racks)
        search = self.begun[index]
        return search is not None and not search.ended

    def search(self, index: int, number: int = 1) -> None:
        """Go on with one candidate, of so many that share the time."""
        search = self.begun[index]
        assert search is not None
        self._run(index, search, number)
        if search.ended and self._may_be_ordered(index):
            self._in_order.add(index)
            self.begun[index] = ordered = self._begin(index, OrderRefuter, search.racks)
            self._run(index, ordered, number)

    def _may_be_ordered(self, index: int) -> bool:
        """Whether the order of columns has not been told and may tell more."""
        known, candidate = self.known, self.known.data.candidates[index]
        if known.is_over or not known.is_open(index) or index in self._in_order:
            return False
        told = candidate.num_cells <= MOST_TOLD_CELLS and candidate.grid[1] <= MOST_IN_ORDER
        return candidate.num_cells <= MOST_ORDERED_CELLS and not told

    def _begin(self, index: int, kind: MakeRefuter, racks: Racks) -> RackSearch:
        known, candidate = self.known, self.known.data.candidates[index]
        refuter = kind(known.data, candidate, racks, partial(self.refining.take, index))
        return RackSearch(candidate, racks, refuter, int(known.bounds[index]), known.ceiling_of(index))

    def _run(self, index: int, search: RackSearch, number: int) -> None:
        known = self.known
        search.narrow(int(known.bounds[index]), known.ceiling_of(index))
        known.searched.add(index)
        bound = search.run(
            SHARE * known.seconds_left / number,
            workers=known.workers,
            seed=known.params.seed,
            stop=known.stop,
            on_bound=lambda bound: known.prove(index, bound),
            ceiling_now=lambda: known.ceiling_of(index),
        )
        known.prove(index, bound)

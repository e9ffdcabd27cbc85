"""Searches by racks and kinds of hosts, one for each candidate, that go on where they were."""

from functools import partial

from pipette_opt.solver.courses.refuting import CourseRefuter
from pipette_opt.solver.known import Known
from pipette_opt.solver.racks.search import CellRefuter, RackSearch, Refuter, has_racks
from pipette_opt.solver.racks.structure import find_racks
from pipette_opt.solver.refining import Refining

FEWEST_CELLS, MOST_TOLD_CELLS = 41, 80
"""Cells below which patterns of classes tell more in the same time, and above which courses of columns do."""

SHARE = 0.95
"""Of the time left, what a search takes before others have a turn."""


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

    def suits(self, index: int) -> bool:
        """Whether a large candidate has racks that are not yet searched to their end."""
        known, candidate = self.known, self.known.data.candidates[index]
        if not known.params.decomposes or candidate.num_cells < FEWEST_CELLS:
            return False
        if index not in self.begun:
            self.begun[index] = self._begin(index)
        search = self.begun[index]
        return search is not None and not search.ended

    def _begin(self, index: int) -> RackSearch | None:
        known, candidate = self.known, self.known.data.candidates[index]
        racks = find_racks(known.data, candidate) if has_racks(candidate) else None
        if racks is None:
            return None
        kind = CellRefuter if candidate.num_cells <= MOST_TOLD_CELLS else CourseRefuter
        refuter: Refuter = kind(known.data, candidate, racks, partial(self.refining.take, index))
        return RackSearch(candidate, racks, refuter, int(known.bounds[index]), known.ceiling_of(index))

    def search(self, index: int, number: int = 1) -> None:
        """Go on with one candidate, of so many that share the time."""
        known, search = self.known, self.begun[index]
        assert search is not None
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

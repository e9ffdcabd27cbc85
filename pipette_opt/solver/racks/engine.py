"""
Rack assignment, column types and column order as engines: which rack and kind of host each cell or column has.

The order of columns is left open by the first two, and told where they end.
"""

from abc import abstractmethod
from functools import partial

from pipette_opt.problem.data import CandidateData, ProblemData
from pipette_opt.solver.courses.ordering import OrderRefuter
from pipette_opt.solver.courses.refuting import CourseRefuter
from pipette_opt.solver.engine import Engine, Take
from pipette_opt.solver.incumbent import Incumbent
from pipette_opt.solver.racks.refuting import CellRefuter, OnPlacement, Refuter
from pipette_opt.solver.racks.search import RackSearch, has_racks
from pipette_opt.solver.racks.structure import Racks, find_racks
from pipette_opt.solver.stoppable import TimeSlice


class RackEngine(Engine):
    """
    Searches of one candidate each, by racks and kinds of hosts.

    Attributes
    ----------
    begun
        By candidate; ``None`` where racks and kinds tell too little.
    """

    def __init__(self, incumbent: Incumbent, take: Take) -> None:
        super().__init__(incumbent, take)
        self.begun: dict[int, RackSearch | None] = {}

    def suits(self, index: int) -> bool:
        """Whether a candidate has racks that are not yet searched to their end."""
        incumbent, candidate = self.incumbent, self.incumbent.data.candidates[index]
        if index not in self.begun:
            racks = find_racks(incumbent.data, candidate) if has_racks(candidate) else None
            self.begun[index] = None if racks is None else self._begin(index, candidate, racks)
        search = self.begun[index]
        return search is not None and not search.ended

    def _begin(self, index: int, candidate: CandidateData, racks: Racks) -> RackSearch:
        incumbent = self.incumbent
        refuter = self._refuter(incumbent.data, candidate, racks, partial(self.take, index))
        return RackSearch(candidate, racks, refuter, int(incumbent.bounds[index]), incumbent.ceiling_of(index))

    @abstractmethod
    def _refuter(self, data: ProblemData, candidate: CandidateData, racks: Racks, on_placement: OnPlacement) -> Refuter:
        """What refutes ceilings of a candidate."""

    def _go_on(self, index: int, given: TimeSlice) -> int:
        incumbent, search = self.incumbent, self.begun[index]
        assert search is not None
        search.narrow(int(incumbent.bounds[index]), incumbent.ceiling_of(index))
        return search.run(
            given.seconds_left,
            workers=given.workers,
            seed=given.seed,
            stop=given.stop,
            on_bound=lambda bound: incumbent.prove(index, bound),
            ceiling_now=lambda: incumbent.ceiling_of(index),
        )


class RackAssignment(RackEngine):
    """The rack and the kind of each cell."""

    name = "rack-assignment"

    def _refuter(self, data: ProblemData, candidate: CandidateData, racks: Racks, on_placement: OnPlacement) -> Refuter:
        return CellRefuter(data, candidate, racks, on_placement)


class ColumnTypes(RackEngine):
    """How many columns run through which kinds of hosts, first without and then with the racks that these are in."""

    name = "column-types"

    def _refuter(self, data: ProblemData, candidate: CandidateData, racks: Racks, on_placement: OnPlacement) -> Refuter:
        return CourseRefuter(data, candidate, racks, on_placement)


class ColumnOrder(RackEngine):
    """The rack and the kind of each cell of columns of few types, with the same neighbours in all rings."""

    name = "column-order"

    def _refuter(self, data: ProblemData, candidate: CandidateData, racks: Racks, on_placement: OnPlacement) -> Refuter:
        return OrderRefuter(data, candidate, racks, on_placement)

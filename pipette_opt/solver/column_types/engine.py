"""Column types as an engine: how many columns run through which kinds of hosts."""

from functools import partial

from pipette_opt.solver.classes.racks import find_racks
from pipette_opt.solver.column_types.refuting import CourseRefuter
from pipette_opt.solver.column_types.search import RackSearch, has_racks
from pipette_opt.solver.engine import Engine
from pipette_opt.solver.incumbent import Incumbent
from pipette_opt.solver.stoppable import TimeSlice


class ColumnTypes(Engine):
    """
    How many columns run through which kinds of hosts, first without and then with the racks that these are in.

    Attributes
    ----------
    begun
        By candidate; ``None`` where racks and kinds tell too little.
    """

    name = "column-types"

    def __init__(self, incumbent: Incumbent) -> None:
        super().__init__(incumbent)
        self.begun: dict[int, RackSearch | None] = {}

    def suits(self, index: int) -> bool:
        """Whether a candidate has racks that are not yet searched to their end."""
        if index not in self.begun:
            self.begun[index] = self._begin(index)
        search = self.begun[index]
        return search is not None and not search.ended

    def _begin(self, index: int) -> RackSearch | None:
        incumbent, candidate = self.incumbent, self.incumbent.data.candidates[index]
        racks = find_racks(incumbent.data, candidate) if has_racks(candidate) else None
        if racks is None:
            return None
        refuter = CourseRefuter(incumbent.data, candidate, racks, partial(self.take, index))
        return RackSearch(candidate, racks, refuter, int(incumbent.bounds[index]), incumbent.ceiling_of(index))

    def _go_on(self, index: int, given: TimeSlice) -> int:
        incumbent, search = self.incumbent, self.begun[index]
        assert search is not None
        search.narrow(int(incumbent.bounds[index]), incumbent.ceiling_of(index))
        return search.run(
            given.seconds_left,
            workers=given.workers,
            seed=given.seed,
            stop=given.stop,
            on_bound=lambda bound: self.prove(index, bound),
            ceiling_now=lambda: incumbent.ceiling_of(index),
        )

"""Tree search as an engine."""

from pipette_opt.base.types import IntArray
from pipette_opt.solver.engine import Engine
from pipette_opt.solver.incumbent import Incumbent
from pipette_opt.solver.stoppable import TimeSlice
from pipette_opt.solver.tree_search.costs import is_grid
from pipette_opt.solver.tree_search.search import CellSearch


class TreeSearch(Engine):
    """
    Tree search with propagation: the cell or the host with the fewest choices is next. It ends with the optimum.

    Attributes
    ----------
    begun
        By candidate.
    """

    name = "tree-search"

    def __init__(self, incumbent: Incumbent) -> None:
        super().__init__(incumbent)
        self.begun: dict[int, CellSearch] = {}

    def suits(self, index: int) -> bool:
        """Whether the candidate has a closed form, with tensor groups inside its hosts, of which there are several."""
        return is_grid(self.incumbent.data.candidates[index])

    def _go_on(self, index: int, given: TimeSlice) -> int:
        incumbent = self.incumbent
        if index not in self.begun:
            candidate, bound = incumbent.data.candidates[index], int(incumbent.bounds[index])
            self.begun[index] = CellSearch(incumbent.data, candidate, bound, incumbent.ceiling_of(index))
        search = self.begun[index]
        search.narrow(int(incumbent.bounds[index]), incumbent.ceiling_of(index))

        def on_placement(nodes: IntArray) -> int:
            incumbent.offer_hosts(index, nodes)
            return incumbent.ceiling_of(index)

        return search.run(
            given.seconds_left,
            workers=given.workers,
            stop=given.stop,
            on_bound=lambda bound: self.prove(index, bound),
            on_placement=on_placement,
        )

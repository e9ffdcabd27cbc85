"""Tree search as an engine."""

from pipette_opt.solver.classes.costs import has_class_costs
from pipette_opt.solver.engine import Search, SearchEngine
from pipette_opt.solver.tree_search.search import CellSearch


class TreeSearch(SearchEngine):
    """Tree search with propagation: the cell or the host with the fewest choices is next."""

    name = "tree-search"

    def suits(self, index: int) -> bool:
        """Whether the candidate has a closed form, with tensor groups inside its hosts, of which there are several."""
        return has_class_costs(self.incumbent.data.candidates[index])

    def _begin(self, index: int) -> Search:
        incumbent = self.incumbent
        candidate, bound = incumbent.data.candidates[index], int(incumbent.bounds[index])
        return CellSearch(incumbent.data, candidate, bound, incumbent.ceiling_of(index))

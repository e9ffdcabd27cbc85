"""Tree search as an engine: cells with the fewest choices first, or row by row."""

from pipette_opt.problem.data import CandidateData, ProblemData
from pipette_opt.solver.cells.search import CellSearch
from pipette_opt.solver.engine import Search, SearchEngine
from pipette_opt.solver.grid_search import GridSearch
from pipette_opt.solver.rows.bound import applies


class TreeSearch(SearchEngine):
    """Tree search with propagation: the cell or the host with the fewest choices is next."""

    name = "tree-search"

    def suits(self, index: int) -> bool:
        """Whether the candidate has a closed form, with tensor groups inside its hosts, of which there are several."""
        return applies(self.incumbent.data.candidates[index])

    def _begin(self, index: int) -> Search:
        incumbent = self.incumbent
        candidate, bound = incumbent.data.candidates[index], int(incumbent.bounds[index])
        return CellSearch(incumbent.data, candidate, bound, incumbent.ceiling_of(index))


class RowTreeSearch(TreeSearch):
    """Tree search that fills the rows in turn."""

    name = "row-tree-search"

    def _begin(self, index: int) -> Search:
        incumbent = self.incumbent
        candidate, bound = incumbent.data.candidates[index], int(incumbent.bounds[index])
        return GridSearch(incumbent.data, candidate, bound, incumbent.ceiling_of(index))


def compile_searches(data: ProblemData, candidate: CandidateData, ceiling: int) -> None:
    """Load what a candidate may be searched with, which once per installation has to be compiled."""
    from pipette_opt.solver.chains.search import ChainSearch, searches_chain

    if searches_chain(data, candidate):
        ChainSearch(data, candidate, 0, ceiling).run(0.01)
    elif applies(candidate):
        CellSearch(data, candidate, 0, ceiling).run(0.01)
        GridSearch(data, candidate, 0, ceiling).run(0.01)

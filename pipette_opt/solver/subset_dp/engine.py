"""Subset dynamic programming as an engine."""

from pipette_opt.solver.engine import Search, SearchEngine
from pipette_opt.solver.subset_dp.search import ChainSearch, searches_chain


class SubsetDp(SearchEngine):
    """Dynamic programming over sets of hosts (Held and Karp), for a single column."""

    name = "subset-dp"

    def suits(self, index: int) -> bool:
        """Whether the candidate is a single column out of few hosts."""
        return searches_chain(self.incumbent.data, self.incumbent.data.candidates[index])

    def _begin(self, index: int) -> Search:
        incumbent = self.incumbent
        candidate, bound = incumbent.data.candidates[index], int(incumbent.bounds[index])
        return ChainSearch(incumbent.data, candidate, bound, incumbent.ceiling_of(index))

"""Searches of one candidate each that go on where they were: of a chain of hosts, or of a grid."""

import threading

from pipette_opt.problem import CandidateData, ProblemData
from pipette_opt.solution import Solution
from pipette_opt.solver.cells.search import CellSearch
from pipette_opt.solver.chains.search import ChainSearch, searches_chain
from pipette_opt.solver.counting import LARGE_CELLS
from pipette_opt.solver.grid_search import GridSearch, searches
from pipette_opt.solver.known import Known
from pipette_opt.solver.rows.classes import host_classes
from pipette_opt.types import IntArray

COLUMN_VISITS, FEW_CELLS_VISITS = 4, 2
"""Slices that the search of a single column has before models get their turns, too, and that of a few cells."""

FEW_CELLS_SHARE = 0.6
"""Of the time left, what a slice for few cells takes at most: patterns of classes end what it may not."""

MOST_CLASSES, MOST_CHOSEN_HOSTS = 8, 64
"""Classes that hosts with racks and slow ones fall into; hosts up to which choices are counted on large grids."""

MOST_SEARCHED_HOSTS = 256
"""Hosts listed, above which a search of the grid costs more than it says."""


MOST_QUICK_CELLS = 40
"""Cells above which a first slice of the search seldom ends a grid."""


class Searching:
    """
    The searches begun so far.

    Attributes
    ----------
    visits
        Slices of time that each candidate has had; each is twice as long as the one before.
    """

    def __init__(self, known: Known) -> None:
        self.known = known
        self.begun: dict[int, CellSearch | GridSearch | ChainSearch] = {}
        self.visits: dict[int, int] = {}

    def is_chain(self, index: int) -> bool:
        """Whether a candidate is left to the search of a chain."""
        return searches_chain(self.known.data, self.known.data.candidates[index])

    def suits(self, index: int) -> bool:
        """Whether there is a search for a candidate."""
        known = self.known
        few = known.params.decomposes and known.data.num_nodes <= MOST_SEARCHED_HOSTS
        return few and (self.is_chain(index) or searches(known.data.candidates[index]))

    def is_alone(self, index: int) -> bool:
        """Whether no model is tried yet beside the search."""
        candidate = self.known.data.candidates[index]
        visits = COLUMN_VISITS if is_column(candidate) else FEW_CELLS_VISITS
        return not is_large(candidate) and self.visits.get(index, 0) < visits

    def is_quick(self, index: int) -> bool:
        """Whether a first slice may already end a large grid."""
        few = self.known.data.candidates[index].num_cells <= MOST_QUICK_CELLS
        return few and self.suits(index) and index not in self.visits and self._has_few_choices(index)

    def _has_few_choices(self, index: int) -> bool:
        """Whether the cells with the fewest choices tell more than those of the next row."""
        data, candidate = self.known.data, self.known.data.candidates[index]
        return not is_large(candidate) or (
            data.num_nodes <= MOST_CHOSEN_HOSTS and host_classes(data, candidate, MOST_CLASSES) is not None
        )

    def search(
        self, index: int, number: int = 1, *, workers: int | None = None, stop: threading.Event | None = None
    ) -> None:
        """The next slice of one candidate, of so many that share it; with all threads, until stopped, by default."""
        known, candidate = self.known, self.known.data.candidates[index]
        bound, ceiling = int(known.bounds[index]), known.ceiling_of(index)
        chain = self.is_chain(index)
        if index not in self.begun:
            kind = ChainSearch if chain else CellSearch if self._has_few_choices(index) else GridSearch
            self.begun[index] = kind(known.data, candidate, bound, ceiling)
        one = self.begun[index]
        one.narrow(bound, ceiling)

        def on_placement(nodes: IntArray) -> int:
            known.offer(Solution(candidate=index, nodes=nodes.reshape(candidate.grid), objective_ticks=0))
            return known.ceiling_of(index)

        visit = self.visits.get(index, 0)
        self.visits[index] = visit + 1
        known.searched.add(index)
        left_s = (1.0 if is_column(candidate) or is_large(candidate) else FEW_CELLS_SHARE) * known.seconds_left
        found = one.run(
            min(known.params.first_slice_s * 2**visit / number, left_s),
            workers=known.workers if workers is None else workers,
            stop=known.stop if stop is None else stop,
            on_bound=lambda bound: known.prove(index, bound),
            on_placement=on_placement,
        )
        known.prove(index, found)


def is_column(candidate: CandidateData) -> bool:
    """Whether there is nothing but a pipeline, which a model that names the hosts seldom closes."""
    return candidate.grid[1:] == (1, 1)


def is_large(candidate: CandidateData) -> bool:
    """Whether a model that names the hosts is seldom closed."""
    return candidate.num_cells > LARGE_CELLS


def compile_searches(data: ProblemData, candidate: CandidateData, ceiling: int) -> None:
    """Load what a candidate may be searched with, which once per installation has to be compiled."""
    if searches_chain(data, candidate):
        ChainSearch(data, candidate, 0, ceiling).run(0.01)
    elif searches(candidate):
        CellSearch(data, candidate, 0, ceiling).run(0.01)
        GridSearch(data, candidate, 0, ceiling).run(0.01)

"""Class-assignment searches of a solve's candidates, which take turns."""

from collections import Counter
from collections.abc import Sequence

from pipette_opt.base.types import IntArray
from pipette_opt.problem.solution import Solution
from pipette_opt.solver.class_assignment.search import MergedSearch, first_classes
from pipette_opt.solver.incumbent import Incumbent

MIN_CELLS, MAX_CELLS = 9, 160
"""Grids with fewer or more cells have no search: the CP-SAT model names their hosts, or no model is solved in time."""

CALLS = 3
"""Least number of CP-SAT calls for which a turn has time. Chosen."""


class ClassAssignment:
    """
    Class-assignment searches of the candidates of a solve.

    Attributes
    ----------
    begun
        Search of each candidate that had a turn; ``None`` if its hosts do not form a few classes.
    """

    name = "class-assignment"
    """Name of these bounds in the certificate."""

    def __init__(self, incumbent: Incumbent) -> None:
        self.incumbent = incumbent
        self.begun: dict[int, MergedSearch | None] = {}
        self.visits: Counter[int] = Counter()

    def take_turns(self, batch: Sequence[int]) -> bool:
        """Search each open candidate of a batch for a time slice. Return whether any was searched."""
        worked, incumbent = False, self.incumbent
        for index in batch:
            search = self._search_of(index)
            if search is None or search.ended or incumbent.is_over or not incumbent.is_open(index):
                continue
            worked = True
            slice_s = incumbent.params.first_slice_s * 2 ** self.visits[index]
            self._run(index, search, max(slice_s, CALLS * search.slice_s) / len(batch))
        return worked

    def _search_of(self, index: int) -> MergedSearch | None:
        if index not in self.begun:
            incumbent, candidate = self.incumbent, self.incumbent.data.candidates[index]
            suits = MIN_CELLS <= candidate.num_cells <= MAX_CELLS
            classes = first_classes(incumbent.data, candidate) if suits else None
            bound, ceiling, seed = int(incumbent.bounds[index]), incumbent.ceiling_of(index), incumbent.params.seed
            self.begun[index] = (
                None if classes is None else MergedSearch(incumbent.data, candidate, bound, ceiling, classes, seed)
            )
        return self.begun[index]

    def _run(self, index: int, search: MergedSearch, seconds: float) -> None:
        """Go on with a search; each better bound and each placement goes to the incumbent at once."""
        incumbent, best = self.incumbent, self.incumbent.found.get(index)
        self.visits[index] += 1
        incumbent.searched.add(index)
        search.narrow(int(incumbent.bounds[index]), incumbent.ceiling_of(index), None if best is None else best.nodes)

        def on_bound(bound: int) -> None:
            incumbent.prove(index, bound, self.name)

        def on_pattern(nodes: IntArray) -> int:
            incumbent.offer(Solution(candidate=index, nodes=nodes, objective_ticks=0))
            return incumbent.ceiling_of(index)

        clock = incumbent.clock.after(min(seconds, incumbent.clock.left_s))
        on_bound(search.run(clock, incumbent.params.num_workers, on_bound=on_bound, on_pattern=on_pattern))

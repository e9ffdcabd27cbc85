"""Searches by racks and kinds of hosts, one for each candidate, that go on where they were."""

from pipette_opt.solver.known import Known
from pipette_opt.solver.racks.search import RackSearch, has_racks
from pipette_opt.solver.racks.structure import find_racks

FEWEST_CELLS, MOST_CELLS = 41, 80
"""Cells below which patterns of classes, and above which rows, tell more in the same time."""

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

    def __init__(self, known: Known) -> None:
        self.known = known
        self.begun: dict[int, RackSearch | None] = {}

    def suits(self, index: int) -> bool:
        """Whether a large candidate has racks that are not yet searched to their end."""
        known, candidate = self.known, self.known.data.candidates[index]
        if not known.params.decomposes or not FEWEST_CELLS <= candidate.num_cells <= MOST_CELLS:
            return False
        if index not in self.begun:
            racks = find_racks(known.data, candidate) if has_racks(candidate) else None
            bound, ceiling = int(known.bounds[index]), known.ceiling_of(index)
            self.begun[index] = None if racks is None else RackSearch(known.data, candidate, racks, bound, ceiling)
        search = self.begun[index]
        return search is not None and not search.ended

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
        )
        known.prove(index, bound)

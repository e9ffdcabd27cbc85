"""Searches of patterns of classes of hosts, one for each candidate, that go on where they were."""

import threading

from pipette_opt.solver.counting import LARGE_CELLS
from pipette_opt.solver.known import Known
from pipette_opt.solver.merged.search import MergedSearch, alike_classes, first_classes
from pipette_opt.solver.refining import Refining
from pipette_opt.types import IntArray

MOST_CELLS = 160
"""Cells above which a model of patterns takes too long."""

FEWEST_CELLS = 9
"""Cells below which a model that names the hosts is as soon solved."""

LARGE_SLICE, SMALL_SHARE = 3, 0.25
"""How many models a slice has time for on a large grid; part of a slice on a small one, which is searched next."""


class Merging:
    """
    The searches begun so far.

    Attributes
    ----------
    begun
        By candidate; ``None`` where the hosts do not fall into a few classes.
    visits
        Slices of time that each candidate has had; each is twice as long as the one before.
    """

    def __init__(self, known: Known, refining: Refining) -> None:
        self.known, self.refining = known, refining
        self.begun: dict[int, MergedSearch | None] = {}
        self.visits: dict[int, int] = {}

    def suits(self, index: int) -> bool:
        """Whether a candidate has patterns of a few classes that are not yet searched to their end."""
        known, candidate = self.known, self.known.data.candidates[index]
        if not known.params.decomposes or not FEWEST_CELLS <= candidate.num_cells <= MOST_CELLS:
            return False
        if index not in self.begun:
            classes = first_classes(known.data, candidate)
            bound, ceiling, seed = int(known.bounds[index]), known.ceiling_of(index), known.params.seed
            self.begun[index] = (
                None if classes is None else MergedSearch(known.data, candidate, bound, ceiling, classes, seed)
            )
        search = self.begun[index]
        return search is not None and not search.ended

    def is_alike(self, index: int) -> bool:
        """Whether a candidate's hosts fall into more classes than elsewhere, but almost without a difference."""
        known = self.known
        return self.suits(index) and alike_classes(known.data, known.data.candidates[index]) is not None

    def search(
        self, index: int, number: int = 1, *, workers: int | None = None, stop: threading.Event | None = None
    ) -> bool:
        """
        The next slice of one candidate, of so many that share it; whether its bound has risen.

        With all threads, and until the whole search is stopped, by default.
        """
        known, search = self.known, self.begun[index]
        assert search is not None
        before = int(known.bounds[index])
        best = known.found.get(index)
        search.narrow(before, known.ceiling_of(index), None if best is None else best.nodes)

        def on_pattern(nodes: IntArray) -> int:
            self.refining.take(index, nodes)
            return known.ceiling_of(index)

        visit = self.visits.get(index, 0)
        self.visits[index] = visit + 1
        known.searched.add(index)
        slice_s = known.params.first_slice_s * 2**visit
        large = known.data.candidates[index].num_cells > LARGE_CELLS
        slice_s = max(slice_s, LARGE_SLICE * search.slice_s) if large else SMALL_SHARE * slice_s
        bound = search.run(
            min(slice_s / number, known.seconds_left),
            workers=known.workers if workers is None else workers,
            stop=known.stop if stop is None else stop,
            on_bound=lambda bound: known.prove(index, bound),
            on_pattern=on_pattern,
        )
        known.prove(index, bound)
        return bound > before

"""Bounds from counts of classes of hosts, and the placements that such counts promise."""

from pipette_opt.solver.known import Known
from pipette_opt.solver.refining import Refining
from pipette_opt.solver.rows.bound import MOST_CLASSES, applies, has_ranges, probe_rows, row_bound
from pipette_opt.types import IntArray

LARGE_CELLS, SMALL_CELLS = 20, 9
"""Cells above which a model that names the hosts is seldom closed, and below which it needs no other bound."""

ROWS_SHARE, ROWS_SHARE_LARGE, ROWS_SHARE_ALL = 0.25, 0.6, 0.95
"""Parts of the time left that bounds by rows may take: where CP-SAT may close the candidate, where it will not, and
where nothing else applies."""

MANY_HOSTS = 256
"""Hosts above which nothing else applies."""

PROMISING = (0.5, 0.3, 0.15)
"""Between bound and incumbent, where counts are looked for in turn when the search of a large grid is stuck."""


class Counting:
    """Rows of classes of each candidate that has more than a few cells."""

    def __init__(self, known: Known, refining: Refining) -> None:
        self.known, self.refining = known, refining

    def suits(self, index: int) -> bool:
        """Whether there are rows of classes for a candidate."""
        candidate = self.known.data.candidates[index]
        return applies(candidate) and candidate.num_cells >= SMALL_CELLS

    def has_ranges(self, index: int) -> bool:
        """Whether rows tell more of a large candidate, range of periods by range, than patterns of classes do."""
        return has_ranges(self.known.data, self.known.data.candidates[index])

    def refines(self, index: int) -> bool:
        """Whether counts of a candidate can be made better placements."""
        return self.refining.refine is not None and self.suits(index)

    def bound(self, index: int, number: int, *, alone: bool) -> None:
        """
        One candidate, of so many that wait.

        Parameters
        ----------
        alone
            Whether no other bound is likely to tell as much about large grids.
        """
        known, candidate = self.known, self.known.data.candidates[index]
        large = candidate.num_cells > LARGE_CELLS and alone
        share = ROWS_SHARE_LARGE if large else ROWS_SHARE
        if large and known.data.num_nodes > MANY_HOSTS:
            share = ROWS_SHARE_ALL
        promising: list[IntArray] = []
        found = row_bound(
            known.data,
            candidate,
            int(known.bounds[index]),
            known.ceiling_of(index),
            most_classes=MOST_CLASSES if large else MOST_CLASSES[:1],
            hopeless=number > 1,
            seconds=share * known.seconds_left / min(number, 4),
            workers=known.workers,
            seed=known.params.seed,
            stop=known.stop,
            on_bound=lambda bound: known.prove(index, bound),
            on_placement=promising.append,
        )
        known.prove(index, found)
        if promising and not known.is_over:  # the last counts are the nearest to the bound
            self.refining.take(index, promising[-1])

    def look_for_promising(self, index: int, visit: int) -> None:
        """Counts between bound and incumbent, at each visit others."""
        known, bound = self.known, int(self.known.bounds[index])
        ceiling = bound + int((known.upper - 1 - bound) * PROMISING[visit % len(PROMISING)])
        refuted = probe_rows(
            known.data,
            known.data.candidates[index],
            ceiling,
            seconds=min(known.params.first_slice_s * 2**visit, known.seconds_left),
            workers=known.workers,
            seed=known.params.seed + visit,
            stop=known.stop,
            on_placement=lambda nodes: self.refining.take(index, nodes),
        )
        if refuted:
            known.prove(index, ceiling + 1)

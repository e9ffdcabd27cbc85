"""Row counts as engines: bounds, and the placements that counts promise."""

from pipette_opt.base.types import IntArray
from pipette_opt.solver.engine import Engine
from pipette_opt.solver.rows.bound import MOST_CLASSES, applies, probe_rows, row_bound
from pipette_opt.solver.stoppable import TimeSlice

REACH_OF_PROBES = (0.5, 0.3, 0.15)
"""Shares of the way from the bound to the incumbent at which counts are looked for, in turn. Chosen."""


class RowCounts(Engine):
    """How many hosts of each class are in each row (an aggregated relaxation)."""

    name = "row-counts"
    searches = False

    def suits(self, index: int) -> bool:
        """Whether the candidate has a closed form, with tensor groups inside its hosts, of which there are several."""
        return applies(self.incumbent.data.candidates[index])

    def _go_on(self, index: int, given: TimeSlice) -> int:
        incumbent, candidate = self.incumbent, self.incumbent.data.candidates[index]
        promising: list[IntArray] = []
        found = row_bound(
            incumbent.data,
            candidate,
            int(incumbent.bounds[index]),
            incumbent.ceiling_of(index),
            most_classes=MOST_CLASSES if given.thorough else MOST_CLASSES[:1],
            hopeless=given.shared_by > 1,
            seconds=given.seconds_left,
            workers=given.workers,
            seed=given.seed,
            stop=given.stop,
            on_bound=lambda bound: incumbent.prove(index, bound),
            on_placement=promising.append,
        )
        incumbent.prove(index, found)
        if promising and not incumbent.is_over:  # the last counts are the nearest to the bound
            self.take(index, promising[-1])
        return found


class PromisingCounts(RowCounts):
    """Row counts that cost less than the incumbent, made placements and annealed, where searches are stuck."""

    name = "promising-counts"

    def _go_on(self, index: int, given: TimeSlice) -> int:
        incumbent, bound, visit = self.incumbent, int(self.incumbent.bounds[index]), self.visits[index]
        ceiling = bound + int((incumbent.upper - 1 - bound) * REACH_OF_PROBES[visit % len(REACH_OF_PROBES)])
        refuted = probe_rows(
            incumbent.data,
            incumbent.data.candidates[index],
            ceiling,
            seconds=given.seconds_left,
            workers=given.workers,
            seed=given.seed + visit,
            stop=given.stop,
            on_placement=lambda nodes: self.take(index, nodes),
        )
        return ceiling + 1 if refuted else bound

"""Class assignment as an engine: which class of hosts each cell has, finer classes in turn."""

from pipette_opt.base.types import IntArray
from pipette_opt.solver.class_assignment.search import MergedSearch, first_classes
from pipette_opt.solver.engine import Engine
from pipette_opt.solver.incumbent import Incumbent
from pipette_opt.solver.stoppable import TimeSlice


class ClassAssignment(Engine):
    """
    The CP-SAT model with classes of like hosts in place of hosts; classes are split until, on few hosts, it is exact.

    Attributes
    ----------
    begun
        By candidate; ``None`` where the hosts do not fall into a few classes.
    """

    name = "class-assignment"

    def __init__(self, incumbent: Incumbent) -> None:
        super().__init__(incumbent)
        self.begun: dict[int, MergedSearch | None] = {}

    def suits(self, index: int) -> bool:
        """Whether a candidate's hosts fall into a few classes, and these are not yet searched to their end."""
        incumbent, candidate = self.incumbent, self.incumbent.data.candidates[index]
        if index not in self.begun:
            classes = first_classes(incumbent.data, candidate)
            bound, ceiling, seed = int(incumbent.bounds[index]), incumbent.ceiling_of(index), incumbent.params.seed
            self.begun[index] = (
                None if classes is None else MergedSearch(incumbent.data, candidate, bound, ceiling, classes, seed)
            )
        search = self.begun[index]
        return search is not None and not search.ended

    def call_s(self, index: int) -> float:
        """Seconds that a CP-SAT call has now; it doubles when a call was too short."""
        search = self.begun[index]
        assert search is not None
        return search.slice_s

    def _go_on(self, index: int, given: TimeSlice) -> int:
        incumbent, search = self.incumbent, self.begun[index]
        assert search is not None
        best = incumbent.found.get(index)
        search.narrow(int(incumbent.bounds[index]), incumbent.ceiling_of(index), None if best is None else best.nodes)

        def on_pattern(nodes: IntArray) -> int:
            self.incumbent.offer_hosts(index, nodes)
            return incumbent.ceiling_of(index)

        return search.run(
            given.seconds_left,
            workers=given.workers,
            stop=given.stop,
            on_bound=lambda bound: self.prove(index, bound),
            on_pattern=on_pattern,
        )

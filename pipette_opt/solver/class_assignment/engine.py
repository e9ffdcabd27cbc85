"""Engine that assigns a class of similar hosts to each grid cell and refines the classes step by step."""

from pipette_opt.base.types import IntArray
from pipette_opt.solver.class_assignment.search import MergedSearch, first_classes
from pipette_opt.solver.engine import Engine
from pipette_opt.solver.incumbent import Incumbent
from pipette_opt.solver.stoppable import TimeSlice


class ClassAssignment(Engine):
    """
    CP-SAT placement model with classes of similar hosts in place of hosts.

    On few hosts, classes are split until the model is exact.

    Attributes
    ----------
    begun
        Search of each candidate configuration; ``None`` if its hosts do not form a few classes.
    """

    name = "class-assignment"

    def __init__(self, incumbent: Incumbent) -> None:
        super().__init__(incumbent)
        self.begun: dict[int, MergedSearch | None] = {}

    def suits(self, index: int) -> bool:
        """Return whether the hosts of a candidate configuration form a few classes and their search has not ended."""
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
        """Return the time limit of the next CP-SAT call, seconds; it doubles when a call was too short."""
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
            given,
            on_bound=lambda bound: self.prove(index, bound),
            on_pattern=on_pattern,
        )

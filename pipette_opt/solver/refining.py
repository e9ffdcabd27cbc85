"""Placements that a proof promises to be good, annealed."""

from collections.abc import Callable

from pipette_opt.solution import Solution
from pipette_opt.solver.known import Known
from pipette_opt.types import IntArray

Refine = Callable[[Solution], Solution | None]
"""Anneals a placement; ``None`` if nothing comes of it."""


class Refining:
    """Offers placements as they are, and what annealing makes of them."""

    def __init__(self, known: Known, refine: Refine | None) -> None:
        self.known, self.refine = known, refine

    def take(self, index: int, nodes: IntArray) -> None:
        """The hosts of each cell of a candidate, in the order of its grid."""
        grid = self.known.data.candidates[index].grid
        solution = Solution(candidate=index, nodes=nodes.reshape(grid), objective_ticks=0)
        self.known.offer(solution)
        if self.refine is not None and (better := self.refine(solution)) is not None:
            self.known.offer(better)

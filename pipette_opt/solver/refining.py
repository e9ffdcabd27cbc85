"""Placements that a proof promises to be good, annealed."""

from collections.abc import Callable

from pipette_opt.base.types import IntArray
from pipette_opt.problem.solution import Solution
from pipette_opt.solver.incumbent import Incumbent

Refine = Callable[[Solution], Solution | None]
"""Anneals a placement; ``None`` if nothing comes of it."""


class Refining:
    """Offers placements as they are, and what annealing makes of them."""

    def __init__(self, incumbent: Incumbent, refine: Refine | None) -> None:
        self.incumbent, self.refine = incumbent, refine

    def take(self, index: int, nodes: IntArray) -> None:
        """The hosts of each cell of a candidate, in the order of its grid."""
        grid = self.incumbent.data.candidates[index].grid
        solution = Solution(candidate=index, nodes=nodes.reshape(grid), objective_ticks=0)
        self.incumbent.offer(solution)
        if self.refine is not None and (better := self.refine(solution)) is not None:
            self.incumbent.offer(better)

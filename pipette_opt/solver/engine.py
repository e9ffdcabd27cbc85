"""Interface of an engine: proves bounds of candidate configurations and finds placements, in time slices."""

from abc import ABC, abstractmethod
from collections import Counter
from typing import ClassVar

from pipette_opt.solver.incumbent import Incumbent
from pipette_opt.solver.stoppable import TimeSlice


class Engine(ABC):
    """
    Engine of the portfolio; :mod:`~pipette_opt.solver.portfolio` assigns engines to grids.

    The life of an engine:

    1. ``solve`` makes each engine that :attr:`SolverParams.engines` names, before the search starts.
    2. Before each turn, :meth:`suits` tells whether the engine can still improve a candidate configuration. Once a
       search has ended, it stays ``False``.
    3. :meth:`run` gives the engine a time slice for one candidate. The engine continues its earlier search, and first
       takes new bounds and plans from the incumbent. Calls may come from different threads, but never from two at once.
    4. During the slice, each better bound goes to :meth:`Incumbent.prove` and each placement to
       :meth:`Incumbent.offer` at once. So an engine may be stopped at any moment. A bound holds for every placement of
       the candidate that costs less than the incumbent, and is never withdrawn.
    5. :meth:`run` returns soon after its slice is over or stopped. No resources have to be closed.

    A new engine should also inherit the tests of ``tests/conformance.py``.

    Attributes
    ----------
    visits
        Number of time slices that each candidate had.
    """

    name: ClassVar[str]
    """Name of the engine in :attr:`SolverParams.engines` and in :data:`~pipette_opt.solver.portfolio.TABLE`."""

    def __init__(self, incumbent: Incumbent) -> None:
        self.incumbent = incumbent
        self.visits: Counter[int] = Counter()

    @abstractmethod
    def suits(self, index: int) -> bool:
        """Return whether the engine can still improve the bound or the placement of a candidate configuration."""

    def run(self, index: int, given: TimeSlice) -> bool:
        """Search one candidate configuration for one time slice. Return whether its lower bound rose."""
        before = int(self.incumbent.bounds[index])
        self.visits[index] += 1
        self.incumbent.searched.add(index)
        self.prove(index, self._go_on(index, given))
        return bool(self.incumbent.bounds[index] > before)

    @abstractmethod
    def _go_on(self, index: int, given: TimeSlice) -> int:
        """Search a candidate for a time slice. Return a lower bound on its objective, ticks."""

    def prove(self, index: int, bound: int) -> None:
        """Record a lower bound on a candidate configuration's objective, integer ticks."""
        self.incumbent.prove(index, bound, self.name)

    def call_s(self, index: int) -> float:
        """Return the seconds that one call of the underlying solver needs now; 0 if a slice of any length is enough."""
        return 0.0

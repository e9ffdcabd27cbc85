"""Interface of an engine: it proves bounds of candidates and finds placements, one time slice after the other."""

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
    2. :meth:`suits` is asked before each turn: can the engine still do something for a candidate? Once a search has
       ended, the answer stays no. The table says whether the engine may work.
    3. :meth:`run` gives it a time slice for one candidate. It continues its earlier work, and first takes new bounds
       and plans from the incumbent. Calls may come from different threads, but never from two at once.
    4. During the slice, each better bound goes to :meth:`Incumbent.prove` and each placement to
       :meth:`Incumbent.offer` at once, so that an engine may be stopped at any moment. A bound holds for every
       placement of the candidate that costs less than the incumbent, and is never withdrawn.
    5. It returns soon after its slice is over or stopped. No resources have to be closed.

    A new engine should also inherit the tests of ``tests/conformance.py``.

    Attributes
    ----------
    visits
        Number of time slices of each candidate so far.
    """

    name: ClassVar[str]
    """Name of the engine in :attr:`SolverParams.engines` and the table."""

    def __init__(self, incumbent: Incumbent) -> None:
        self.incumbent = incumbent
        self.visits: Counter[int] = Counter()

    @abstractmethod
    def suits(self, index: int) -> bool:
        """Return whether the engine can still do something for a candidate."""

    def run(self, index: int, given: TimeSlice) -> bool:
        """Work on a candidate for one time slice. Return whether its bound rose."""
        before = int(self.incumbent.bounds[index])
        self.visits[index] += 1
        self.incumbent.searched.add(index)
        self.prove(index, self._go_on(index, given))
        return bool(self.incumbent.bounds[index] > before)

    @abstractmethod
    def _go_on(self, index: int, given: TimeSlice) -> int:
        """Work on a candidate for one time slice. Return a lower bound on it, ticks."""

    def prove(self, index: int, bound: int) -> None:
        """Record a lower bound on a candidate, ticks."""
        self.incumbent.prove(index, bound, self.name)

    def call_s(self, index: int) -> float:
        """
        Return the seconds that a single call of the underlying solver takes at present; 0 if any slice is long
        enough.
        """
        return 0.0

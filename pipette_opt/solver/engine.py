"""What every engine is: something that proves bounds of candidates and finds placements, a slice of time at a time."""

from abc import ABC, abstractmethod
from collections import Counter
from typing import ClassVar

from pipette_opt.solver.incumbent import Incumbent
from pipette_opt.solver.stoppable import TimeSlice


class Engine(ABC):
    """
    An engine of the portfolio (:mod:`~pipette_opt.solver.portfolio` says which grid gets which).

    The life of an engine:

    1. ``solve`` makes one of each engine that :attr:`SolverParams.engines` names, before anything is searched.
    2. :meth:`suits` is asked before each turn. It says whether the engine can do anything (more) for a candidate; the
       answer is no for ever once a search has ended. The table says whether it may.
    3. :meth:`run` gives it a slice of time for one candidate. It goes on where it was; what became known elsewhere
       meanwhile is taken from the incumbent first. It may be called from another thread than before, but never from
       two at once.
    4. Meanwhile each better bound goes to :meth:`Incumbent.prove` and each placement to :meth:`Incumbent.offer`, at
       once, so that an engine may be stopped at any moment. A bound holds for every placement of the candidate that
       costs less than the incumbent; no engine takes one back.
    5. It ends soon after its slice is over or stopped. Nothing has to be closed.

    An engine that inherits this should inherit the tests of ``tests/conformance.py``, too.

    Attributes
    ----------
    visits
        Slices of time that each candidate has had.
    """

    name: ClassVar[str]
    """In the words of the field; what :attr:`SolverParams.engines` and the table call it."""

    def __init__(self, incumbent: Incumbent) -> None:
        self.incumbent = incumbent
        self.visits: Counter[int] = Counter()

    @abstractmethod
    def suits(self, index: int) -> bool:
        """Whether it can do anything more for a candidate."""

    def run(self, index: int, given: TimeSlice) -> bool:
        """Go on with a candidate for a slice of time; whether its bound has risen."""
        before = int(self.incumbent.bounds[index])
        self.visits[index] += 1
        self.incumbent.searched.add(index)
        self.prove(index, self._go_on(index, given))
        return bool(self.incumbent.bounds[index] > before)

    @abstractmethod
    def _go_on(self, index: int, given: TimeSlice) -> int:
        """The same; gives back a bound of the candidate."""

    def prove(self, index: int, bound: int) -> None:
        """A bound of a candidate."""
        self.incumbent.prove(index, bound, self.name)

    def call_s(self, index: int) -> float:
        """Seconds that a single call of the solver below takes at present; 0 where slices of any length do."""
        return 0.0

"""
Which engine gets which grid, when, and for how long: the one table of it, and the turns that follow from it.

Read :data:`TABLE` from top to bottom. For a candidate, the rows that its grid fits are its engines, in that order.
Until nothing is open, the few candidates with the least bounds get a turn: each row once, in slices that double from
turn to turn, and then the model that names the hosts with all of them together. Most plans are proven before any engine
has its turn. Two things stand with their engine: which candidates a turn has, and how long a call of that model takes
(:mod:`~pipette_opt.solver.model`); and which hosts fall into classes
(:mod:`~pipette_opt.solver.class_assignment.search`).
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass

from pipette_opt.problem.data import CandidateData
from pipette_opt.solver.class_assignment.engine import ClassAssignment
from pipette_opt.solver.engine import Engine
from pipette_opt.solver.incumbent import Incumbent
from pipette_opt.solver.model import CpSatModel
from pipette_opt.solver.stoppable import TimeSlice

ENGINE_CLASSES: tuple[type[Engine], ...] = (
    ClassAssignment,
    CpSatModel,
)
"""All engines; :data:`~pipette_opt.solver.params.ENGINES` has their names."""

FEW_CELLS = 20
"""Cells up to which a grid is small: the CP-SAT model that names the hosts often closes it. Chosen by the placement
benchmark."""

NEXT_TO_NOTHING = 0.05
"""Share of the gap before it that a slice leaves at most for the next slice to follow at once. Chosen."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """
    One engine on one sort of grids.

    Parameters
    ----------
    cells
        Least and most cells of the grid.
    slices
        Length of a slice in ``first_slice_s``; it doubles with each visit, and the candidates of a turn divide it.
    calls
        CP-SAT calls that a slice has time for at least.
    repeats
        Whether the next slice follows at once as long as one leaves :data:`NEXT_TO_NOTHING`.
    ends_turn
        Whether the turn is over if it raises the bound.
    """

    engine: str
    cells: tuple[int, int]
    slices: float = 0.0
    calls: int = 0
    repeats: bool = False
    ends_turn: bool = False

    def admits(self, candidate: CandidateData) -> bool:
        """Whether a grid has such a number of cells."""
        least, most = self.cells
        return least <= candidate.num_cells <= most


TABLE: tuple[Row, ...] = (
    # Hosts that fall into classes: racks, slow hosts.
    Row(engine="class-assignment", cells=(9, FEW_CELLS), slices=0.25, repeats=True),
    Row(engine="class-assignment", cells=(FEW_CELLS + 1, 160), slices=1, calls=3, ends_turn=True),
)
"""
Who works on which grid. Numbers were chosen by the placement benchmark; what leaving an engine out costs is in
``benchmarks/results/engines.md``.
"""


class Portfolio:
    """
    The engines of one solve, and whose turn it is.

    Attributes
    ----------
    engines
        By name; only those that :attr:`SolverParams.engines` names.
    """

    def __init__(self, incumbent: Incumbent) -> None:
        self.incumbent = incumbent
        self.model = CpSatModel(incumbent)
        others = [kind(incumbent) for kind in ENGINE_CLASSES if kind is not CpSatModel]
        self.engines = {one.name: one for one in (*others, self.model) if one.name in incumbent.params.engines}

    def take_turns(self, batch: Sequence[int]) -> bool:
        """A turn of each candidate of a batch; whether any engine could do anything."""
        worked = False
        for index in batch:
            for row in self._rows(index):
                if not self._is_due(index):
                    break
                worked = True
                if self._run(row, index, len(batch)) and row.ends_turn:
                    break
        return worked

    def left_to_model(self, batch: Sequence[int]) -> list[int]:
        """Candidates of a batch that the model that names the hosts has its turn with, after the others."""
        able = self.model.name in self.engines
        return [index for index in batch if able and self.incumbent.is_open(index) and self.model.suits(index)]

    def _rows(self, index: int) -> list[Row]:
        """Rows of a candidate, in their order, whose engines can do anything more."""
        candidate = self.incumbent.data.candidates[index]
        return [
            row
            for row in TABLE
            if row.engine in self.engines and row.admits(candidate) and self.engines[row.engine].suits(index)
        ]

    def _is_due(self, index: int) -> bool:
        return self.incumbent.is_open(index) and not self.incumbent.is_over

    def _run(self, row: Row, index: int, number: int) -> bool:
        """A slice of a row for one candidate of so many, and those that follow at once; whether the last one helped."""
        incumbent, engine = self.incumbent, self.engines[row.engine]
        before = incumbent.ceiling_of(index) - int(incumbent.bounds[index])
        while True:
            has_risen = engine.run(index, self._slice(row, index, number))
            if not (self._is_due(index) and engine.suits(index)):
                return has_risen
            after = incumbent.ceiling_of(index) - int(incumbent.bounds[index])
            if not (row.repeats and has_risen and after <= NEXT_TO_NOTHING * before):
                return has_risen

    def _slice(self, row: Row, index: int, number: int) -> TimeSlice:
        incumbent, engine = self.incumbent, self.engines[row.engine]
        slice_s = row.slices * incumbent.params.first_slice_s * 2 ** engine.visits[index]
        seconds = min(max(slice_s, row.calls * engine.call_s(index)) / number, incumbent.seconds_left)
        return TimeSlice(
            ends=time.perf_counter() + seconds,
            stop=incumbent.stop,
            workers=incumbent.params.num_workers,
            seed=incumbent.params.seed,
        )

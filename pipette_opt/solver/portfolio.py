"""
Table that assigns engines to grids with their time, and the turns of the engines.

Read :data:`TABLE` from top to bottom. A candidate configuration's engines are the rows that admit its grid size, in
that order. The few candidates with the least bounds get a turn: each row once, in slices that double from turn to turn.
Then the exact model gets these candidates together. Turns repeat until no candidate is open. Most plans are proven
before any engine runs.

Two decisions are made by the engines themselves. :mod:`~pipette_opt.solver.model` chooses the candidates of a turn and
the time of a call of the exact model. :mod:`~pipette_opt.solver.class_assignment.search` chooses the classes of hosts.
"""

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
"""Classes of all engines; :data:`~pipette_opt.solver.params.ENGINES` has their names."""

FEW_CELLS = 20
"""Largest number of cells of a small grid, which the exact model often proves. Chosen by the placement benchmark."""

NEXT_TO_NOTHING = 0.05
"""A further slice follows at once if a slice leaves at most this fraction of the gap before the turn. Chosen."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """
    Engine for grids in a range of sizes.

    Parameters
    ----------
    cells
        Smallest and largest number of grid cells.
    slices
        Length of a slice in units of ``first_slice_s``; doubles with each visit, shared among the candidate
        configurations of a turn.
    calls
        Least number of CP-SAT calls for which a slice has time.
    repeats
        Whether a further slice follows at once while slices leave at most :data:`NEXT_TO_NOTHING` of the gap.
    ends_turn
        Whether the turn ends once the engine has raised the bound.
    """

    engine: str
    cells: tuple[int, int]
    slices: float = 0.0
    calls: int = 0
    repeats: bool = False
    ends_turn: bool = False

    def admits(self, candidate: CandidateData) -> bool:
        """Return whether the grid's number of cells is in the row's range."""
        least, most = self.cells
        return least <= candidate.num_cells <= most


TABLE: tuple[Row, ...] = (
    # Hosts that fall into classes: racks, slow hosts.
    Row(engine="class-assignment", cells=(9, FEW_CELLS), slices=0.25, repeats=True),
    Row(engine="class-assignment", cells=(FEW_CELLS + 1, 160), slices=1, calls=3, ends_turn=True),
)
"""
Engines by grid size, chosen by the placement benchmark.

``benchmarks/results/engines.md`` has the cost of leaving an engine out.
"""


class Portfolio:
    """
    Engines of one solve, which take turns on the candidate configurations.

    Attributes
    ----------
    engines
        Enabled engines (:attr:`SolverParams.engines`) by name.
    """

    def __init__(self, incumbent: Incumbent) -> None:
        self.incumbent = incumbent
        self.model = CpSatModel(incumbent)
        others = [kind(incumbent) for kind in ENGINE_CLASSES if kind is not CpSatModel]
        enabled = [engine for engine in (*others, self.model) if engine.name in incumbent.params.engines]
        self.engines = {engine.name: engine for engine in enabled}

    def take_turns(self, batch: Sequence[int]) -> bool:
        """Give each candidate configuration of a batch a turn. Return whether any engine ran."""
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
        """Return the candidates of the batch that the other engines leave open, for the exact model."""
        able = self.model.name in self.engines
        return [index for index in batch if able and self.incumbent.is_open(index) and self.model.suits(index)]

    def _rows(self, index: int) -> list[Row]:
        """Return the table rows for a candidate configuration, in their order, whose engines can still improve it."""
        candidate = self.incumbent.data.candidates[index]
        return [
            row
            for row in TABLE
            if row.engine in self.engines and row.admits(candidate) and self.engines[row.engine].suits(index)
        ]

    def _is_due(self, index: int) -> bool:
        return self.incumbent.is_open(index) and not self.incumbent.is_over

    def _run(self, row: Row, index: int, number: int) -> bool:
        """
        Run one engine on a candidate configuration for one time slice, again while its bound keeps rising.

        Return whether the last slice raised the bound. The turn's time is shared among ``number`` candidates.
        """
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
        seconds = min(max(slice_s, row.calls * engine.call_s(index)) / number, incumbent.clock.left_s)
        return TimeSlice(
            clock=incumbent.clock.after(seconds),
            workers=incumbent.params.num_workers,
            seed=incumbent.params.seed,
        )

"""
Which engine gets which grid, when, and for how long: the one table of it, and the turns that follow from it.

Read :data:`TABLE` from top to bottom. For a candidate, the rows that its grid fits are its engines, in that order.
Until nothing is open, the few candidates with the least bounds get a turn: each row of ``TURN`` once, in slices that
double from turn to turn, and then the row of ``MODEL`` with all of them together. Annealing works on all candidates at
once, before, beside and after all that, if any candidate fits its row.

A plan's search names only the provers as engines (``certify/proving.py``), so it has the last three rows; ``certify``
anneals itself, and most plans are proven before any engine has its turn. With annealing the table is that of benchmarks
of placements. Two things stand with their engine: which candidates a turn has, and how long a call of the model that
names the hosts takes (:mod:`~pipette_opt.solver.model`); and which hosts fall into classes
(:mod:`~pipette_opt.solver.class_assignment.search`).
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum

from pipette_opt.problem.data import CandidateData
from pipette_opt.solver.annealing import Annealing
from pipette_opt.solver.class_assignment.engine import ClassAssignment
from pipette_opt.solver.engine import Engine
from pipette_opt.solver.incumbent import Incumbent
from pipette_opt.solver.model import CpSatModel
from pipette_opt.solver.params import SolverParams
from pipette_opt.solver.stoppable import TimeSlice

ENGINE_CLASSES: tuple[type[Engine], ...] = (
    Annealing,
    ClassAssignment,
    CpSatModel,
)
"""All engines; :data:`~pipette_opt.solver.params.ENGINES` has their names."""

ANY = 1 << 30
"""No limit on a number of cells."""

FEW_CELLS = 20
"""Cells up to which a grid is small: the CP-SAT model that names the hosts often closes it. Chosen by the placement
benchmark."""

NEXT_TO_NOTHING = 0.05
"""Share of the gap before it that a slice leaves at most for the next slice to follow at once. Chosen."""


class When(Enum):
    """When a row of the table has its turn."""

    FIRST = "on all threads, before anything is proven"
    BESIDE = "in a thread of its own, from the beginning to the end"
    TURN = "in turns"
    MODEL = "after the others of a turn"
    AFTER = "on all threads, when no more can be proven"
    LAST = "on the incumbent, for a moment at the very end"


def in_any_run(params: SolverParams) -> bool:
    """Whatever the settings."""
    return True


def with_threads(params: SolverParams) -> bool:
    """Two threads or more, time to use them, and no need to repeat the run."""
    return params.num_workers > 1 and params.time_limit_s > 0 and not params.deterministic


def unrepeatable(params: SolverParams) -> bool:
    """No need to repeat the run."""
    return not params.deterministic


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """
    One engine on one sort of grids.

    Parameters
    ----------
    cells
        Least and most cells of the grid.
    runs
        Settings that the row asks for.
    slices
        Length of a slice in ``first_slice_s``; it doubles with each visit, and the candidates of a turn divide it. Of
        rows of ``TURN`` only, as ``calls``, ``repeats`` and ``ends_turn``.
    calls
        CP-SAT calls that a slice has time for at least.
    repeats
        Whether the next slice follows at once as long as one leaves :data:`NEXT_TO_NOTHING`.
    ends_turn
        Whether the turn is over if it raises the bound.
    """

    engine: str
    when: When = When.TURN
    cells: tuple[int, int] = (1, ANY)
    runs: Callable[[SolverParams], bool] = in_any_run
    slices: float = 0.0
    calls: int = 0
    repeats: bool = False
    ends_turn: bool = False

    def admits(self, candidate: CandidateData) -> bool:
        """Whether a grid has such a number of cells."""
        least, most = self.cells
        return least <= candidate.num_cells <= most


LARGE = (FEW_CELLS + 1, ANY)
"""Least and most cells of large grids."""

TABLE: tuple[Row, ...] = (
    # Placements for all candidates: where the proof has next to nothing to do, it has all threads.
    Row(engine="annealing", when=When.FIRST),
    Row(engine="annealing", when=When.BESIDE, cells=LARGE, runs=with_threads),
    Row(engine="annealing", when=When.AFTER, cells=LARGE, runs=with_threads),
    Row(engine="annealing", when=When.LAST, runs=unrepeatable),
    # Hosts that fall into classes: racks, slow hosts.
    Row(engine="class-assignment", cells=(9, FEW_CELLS), slices=0.25, repeats=True),
    Row(engine="class-assignment", cells=(FEW_CELLS + 1, 160), slices=1, calls=3, ends_turn=True),
    # The model that names the hosts, of several candidates at once.
    Row(engine="cp-sat-model", when=When.MODEL),
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
        self.model, self.annealing = CpSatModel(incumbent), Annealing(incumbent)
        working = incumbent.params.working
        others = [kind(incumbent) for kind in ENGINE_CLASSES if kind not in (CpSatModel, Annealing)]
        self.engines = {one.name: one for one in (self.annealing, *others, self.model) if one.name in working}

    def anneals(self, when: When) -> bool:
        """Whether annealing has its turn."""
        indices = range(len(self.incumbent.data.candidates))
        return any(row.engine == "annealing" for index in indices for row in self._rows(when, index))

    def take_turns(self, batch: Sequence[int]) -> bool:
        """A turn of each candidate of a batch; whether any engine could do anything."""
        worked = False
        for index in batch:
            for row in self._rows(When.TURN, index):
                if not self._is_due(index):
                    break
                worked = True
                if self._run(row, index, len(batch)) and row.ends_turn:
                    break
        return worked

    def left_to_model(self, batch: Sequence[int]) -> list[int]:
        """Candidates of a batch that the model that names the hosts has its turn with, after the others."""
        return [index for index in batch if self.incumbent.is_open(index) and self._rows(When.MODEL, index)]

    def _rows(self, when: When, index: int) -> list[Row]:
        """Rows of a candidate, in their order, whose engines can do anything more."""
        candidate, params = self.incumbent.data.candidates[index], self.incumbent.params
        return [
            row
            for row in TABLE
            if row.when is when
            and row.engine in self.engines
            and row.admits(candidate)
            and row.runs(params)
            and self.engines[row.engine].suits(index)
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
            workers=incumbent.workers,
            seed=incumbent.params.seed,
        )

"""
Which engine gets which grid, when, and for how long: the one table of it, and the turns that follow from it.

Read :data:`TABLE` from top to bottom. For a candidate, the rows that it fits (cells of the grid, hosts listed, and the
structure named) are its engines, in that order. Until nothing is open, the few candidates with the least bounds get a
turn: each row of ``TURN`` once, in slices that double from turn to turn. Rows of ``MODEL`` follow, or work in half of
the threads meanwhile (:meth:`Portfolio.races`). Annealing works on all candidates at once, before, beside and after all
that, if any candidate fits its row.
"""

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum

from pipette_opt.problem.data import CandidateData, ProblemData
from pipette_opt.solver.annealing import Annealing
from pipette_opt.solver.class_assignment.engine import ClassAssignment
from pipette_opt.solver.class_assignment.twins import host_classes
from pipette_opt.solver.engine import Engine
from pipette_opt.solver.incumbent import Incumbent
from pipette_opt.solver.model import CpSatModel
from pipette_opt.solver.stoppable import TimeSlice
from pipette_opt.solver.tree_search.costs import is_grid
from pipette_opt.solver.tree_search.engine import TreeSearch
from pipette_opt.solver.tree_search.search import CellSearch

ENGINE_CLASSES: tuple[type[Engine], ...] = (
    Annealing,
    TreeSearch,
    ClassAssignment,
    CpSatModel,
)
"""All engines; :data:`~pipette_opt.solver.params.ENGINES` has their names."""

ANY = 1 << 30
"""No limit on a number of cells or hosts."""

FEW_CELLS = 20
"""Cells up to which a grid is small: the CP-SAT model that names the hosts often closes it, and the tree search nearly
always. Chosen by the placement benchmark."""

MOST_SEARCHED_HOSTS = 256
"""Hosts listed above which a search costs more than it tells. Chosen."""

CLASSES_OF_STRUCTURE = 8
"""Classes into which hosts with racks and some slow hosts fall at most; more say that there is no structure. Chosen."""

NEXT_TO_NOTHING = 0.05
"""Share of the gap before it that a slice leaves at most for the next slice to follow at once. Chosen."""


class When(Enum):
    """When a row of the table has its turn."""

    FIRST = "on all threads, before anything is proven"
    BESIDE = "in a thread of its own, from the beginning to the end"
    TURN = "in turns"
    MODEL = "after the others of a turn, or beside them"
    AFTER = "on all threads, when no more can be proven"
    LAST = "on the incumbent, for a moment at the very end"


Structure = Callable[["Portfolio", int], bool]
"""Whether a candidate has what a row asks for."""


def any_structure(portfolio: "Portfolio", index: int) -> bool:
    """Any grid."""
    return True


def is_classed(portfolio: "Portfolio", index: int) -> bool:
    """Hosts fall into a few classes of near twins."""
    data = portfolio.incumbent.data
    return host_classes(data, data.candidates[index], CLASSES_OF_STRUCTURE) is not None


def is_unsearched(portfolio: "Portfolio", index: int) -> bool:
    """No search is possible."""
    return not portfolio.is_searched(index)


def is_threaded(portfolio: "Portfolio", index: int) -> bool:
    """Two threads or more, time to use them, and no need to repeat the run."""
    incumbent = portfolio.incumbent
    return incumbent.params.num_workers > 1 and incumbent.seconds_left > 0 and not incumbent.params.deterministic


def is_unrepeatable(portfolio: "Portfolio", index: int) -> bool:
    """No need to repeat the run."""
    return not portfolio.incumbent.params.deterministic


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """
    One engine on one sort of grids.

    Parameters
    ----------
    cells, hosts
        Least and most cells of the grid, and hosts listed.
    slices
        Length of a slice in ``first_slice_s``; it doubles with each visit, and the candidates of a turn divide it.
    share
        Share of the time left that a slice may take at most.
    calls
        CP-SAT calls that a slice has time for at least.
    most_visits
        Visits after which the row is over.
    repeats
        Whether the next slice follows at once as long as one leaves :data:`NEXT_TO_NOTHING`.
    ends_turn
        Whether the turn is over if it raises the bound.
    before_model
        Visits that it has before the model has its turn, unless they race.
    """

    engine: str
    when: When = When.TURN
    cells: tuple[int, int] = (1, ANY)
    hosts: tuple[int, int] = (1, ANY)
    structure: Structure = any_structure
    slices: float = 0.0
    share: float = 1.0
    calls: int = 0
    most_visits: int = ANY
    repeats: bool = False
    ends_turn: bool = False
    before_model: int = 0

    def admits(self, candidate: CandidateData, num_hosts: int) -> bool:
        """Whether a grid has such numbers of cells and hosts."""
        numbers, limits = (candidate.num_cells, num_hosts), (self.cells, self.hosts)
        return all(least <= number <= most for number, (least, most) in zip(numbers, limits, strict=True))


SMALL = (1, FEW_CELLS)
"""Least and most cells of small grids."""

LARGE = (FEW_CELLS + 1, ANY)
"""Least and most cells of large grids."""

TABLE: tuple[Row, ...] = (
    # Placements for all candidates: where the proof has next to nothing to do, it has all threads.
    Row(engine="annealing", when=When.FIRST),
    Row(engine="annealing", when=When.BESIDE, cells=LARGE, structure=is_threaded),
    Row(engine="annealing", when=When.AFTER, cells=LARGE, structure=is_threaded),
    Row(engine="annealing", when=When.LAST, structure=is_unrepeatable),
    # Small grids: the search closes nearly all; classes close what is symmetric. Without the tree search, grids of 16
    # hosts stay open that it closes in seconds: those with spare hosts, and those without structure.
    Row(engine="tree-search", cells=SMALL, hosts=(1, MOST_SEARCHED_HOSTS), slices=1, share=0.6, before_model=2),
    Row(engine="class-assignment", cells=(9, FEW_CELLS), slices=0.25, repeats=True),
    # Large grids: a first look by search, then what tells classes, then the search.
    Row(engine="tree-search", cells=(FEW_CELLS + 1, 40), structure=is_classed, slices=1, most_visits=1),
    Row(engine="class-assignment", cells=(FEW_CELLS + 1, 160), slices=1, calls=3, ends_turn=True),
    Row(engine="tree-search", cells=LARGE, hosts=(1, MOST_SEARCHED_HOSTS), slices=1),
    # The model that names the hosts, of several candidates at once.
    Row(engine="cp-sat-model", when=When.MODEL, cells=SMALL),
    Row(engine="cp-sat-model", when=When.MODEL, cells=LARGE, structure=is_unsearched),
)
"""
Who works on which grid. Numbers were chosen by the placement benchmark; what leaving an engine out costs is in
``benchmarks/results/engines.md``.
"""


def is_admitted(engine: str, candidate: CandidateData, num_hosts: int) -> bool:
    """Whether the table lets an engine work on a candidate beside the model, whatever the structure."""
    return any(
        row.engine == engine and row.when is not When.MODEL and row.admits(candidate, num_hosts) for row in TABLE
    )


def compile_searches(data: ProblemData, candidate: CandidateData, ceiling: int) -> None:
    """Load what a candidate may be searched with, which once per installation has to be compiled."""
    if is_grid(candidate) and is_admitted("tree-search", candidate, data.num_nodes):
        CellSearch(data, candidate, 0, ceiling).run(0.01)


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

    # What structures ask for.

    def cells(self, index: int) -> int:
        """Cells of a candidate's grid."""
        return self.incumbent.data.candidates[index].num_cells

    def may_work(self, name: str, index: int) -> bool:
        """Whether the table lets an engine work on a candidate, whatever the structure, and it can do more."""
        data = self.incumbent.data
        admitted = is_admitted(name, data.candidates[index], data.num_nodes)
        return admitted and name in self.engines and self.engines[name].suits(index)

    def is_searched(self, index: int) -> bool:
        """Whether the search that names the hosts works on a candidate."""
        return self.may_work("tree-search", index)

    def anneals(self, when: When) -> bool:
        """Whether annealing has its turn."""
        indices = range(len(self.incumbent.data.candidates))
        return any(row.engine == "annealing" for index in indices for row in self._rows(when, index))

    # Turns.

    def take_turns(self, batch: Sequence[int], workers: int | None = None, stop: threading.Event | None = None) -> bool:
        """A turn of each candidate of a batch; whether any engine could do anything."""
        worked = False
        for index in batch:
            for row in self._rows(When.TURN, index, lazily=True):
                if not self._is_due(index):
                    break
                if not self._may_run(row, index):
                    continue
                worked = True
                if self._run(row, index, len(batch), workers, stop) and row.ends_turn:
                    break
        return worked

    def races(self, batch: Sequence[int]) -> bool:
        """
        Whether a batch is searched in half of the threads while it is modelled in the others.

        Either may close a few cells in a second where the other takes a minute.
        """
        few = all(self.cells(index) <= FEW_CELLS and self.is_searched(index) for index in batch)
        return few and self.incumbent.workers > 1

    def left_to_model(self, batch: Sequence[int]) -> list[int]:
        """Candidates of a batch that the model that names the hosts has its turn with, after the others."""
        left = [index for index in batch if self.incumbent.is_open(index) and self._rows(When.MODEL, index)]
        return [index for index in left if not self._is_searched_first(index)]

    def _is_searched_first(self, index: int) -> bool:
        """Whether a search has had fewer slices than it has before the model."""
        rows = [row for row in self._rows(When.TURN, index) if row.before_model]
        return any(self.engines[row.engine].visits[index] < row.before_model for row in rows)

    def _admits(self, row: Row, index: int) -> bool:
        data = self.incumbent.data
        return row.admits(data.candidates[index], data.num_nodes)

    def _rows(self, when: When, index: int, *, lazily: bool = False) -> list[Row]:
        """Rows of a candidate, in their order; lazily, those that may be its rows when their turn comes."""
        rows = [row for row in TABLE if row.when is when and row.engine in self.engines and self._admits(row, index)]
        return rows if lazily else [row for row in rows if self._may_run(row, index)]

    def _may_run(self, row: Row, index: int) -> bool:
        engine = self.engines[row.engine]
        return engine.visits[index] < row.most_visits and row.structure(self, index) and engine.suits(index)

    def _is_due(self, index: int) -> bool:
        return self.incumbent.is_open(index) and not self.incumbent.is_over

    def _run(
        self,
        row: Row,
        index: int,
        number: int,
        workers: int | None = None,
        stop: threading.Event | None = None,
    ) -> bool:
        """A slice of a row for one candidate of so many, and those that follow at once; whether the last one helped."""
        incumbent, engine = self.incumbent, self.engines[row.engine]
        before = incumbent.ceiling_of(index) - int(incumbent.bounds[index])
        while True:
            has_risen = engine.run(index, self._slice(row, index, number, workers, stop))
            if not (self._is_due(index) and engine.suits(index)):
                return has_risen
            after = incumbent.ceiling_of(index) - int(incumbent.bounds[index])
            if not (row.repeats and has_risen and after <= NEXT_TO_NOTHING * before):
                return has_risen

    def _slice(self, row: Row, index: int, number: int, workers: int | None, stop: threading.Event | None) -> TimeSlice:
        incumbent, engine = self.incumbent, self.engines[row.engine]
        left_s = row.share * incumbent.seconds_left
        slice_s = row.slices * incumbent.params.first_slice_s * 2 ** engine.visits[index]
        seconds = min(max(slice_s, row.calls * engine.call_s(index)) / number, left_s)
        return TimeSlice(
            ends=time.perf_counter() + seconds,
            stop=incumbent.stop if stop is None else stop,
            workers=incumbent.workers if workers is None else workers,
            seed=incumbent.params.seed,
        )

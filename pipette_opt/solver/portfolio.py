"""
Which engine gets which grid, when, and for how long: the one table of it, and the turns that follow from it.

Read :data:`TABLE` from top to bottom. For a candidate, the rows that it fits (cells of the grid, hosts listed, columns
of the grid, and the structure named) are its engines, in that order. Rows of ``BOUND`` are for candidates one by one,
least bound first, before anything else. Then, until nothing is open, the few candidates with the least bounds get a
turn: each row of ``TURN`` once, in slices that double from turn to turn. Rows of ``MODEL`` follow, or work in half of
the threads meanwhile (:meth:`Portfolio.races`).
"""

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum

from pipette_opt.problem.data import CandidateData
from pipette_opt.solver.cells.engine import RowTreeSearch, TreeSearch
from pipette_opt.solver.chains.engine import SubsetDp
from pipette_opt.solver.engine import Engine, Take
from pipette_opt.solver.incumbent import Incumbent
from pipette_opt.solver.merged.engine import ClassAssignment
from pipette_opt.solver.merged.search import alike_classes
from pipette_opt.solver.model import CpSatModel
from pipette_opt.solver.params import SEARCHES
from pipette_opt.solver.racks.engine import ColumnOrder, ColumnTypes, RackAssignment
from pipette_opt.solver.rows.bound import has_ranges
from pipette_opt.solver.rows.classes import host_classes
from pipette_opt.solver.rows.engine import PromisingCounts, RowCounts
from pipette_opt.solver.stoppable import TimeSlice

ENGINE_CLASSES: tuple[type[Engine], ...] = (
    SubsetDp,
    TreeSearch,
    RowTreeSearch,
    RowCounts,
    PromisingCounts,
    RackAssignment,
    ColumnTypes,
    ColumnOrder,
    ClassAssignment,
    CpSatModel,
)
"""All engines; :data:`~pipette_opt.solver.params.ENGINES` has their names."""

ANY = 1 << 30
"""No limit on a number of cells, hosts or columns."""

FEW_CELLS = 20
"""Cells up to which a grid is small: the CP-SAT model that names the hosts often closes it, and the tree search nearly
always. Chosen by the placement benchmark."""

MOST_HOSTS_IN_CLASSES = 64
"""Hosts listed up to which the tree search counts the choices of each cell on a large grid; above, rows are filled in
turn. Chosen."""

MOST_SEARCHED_HOSTS = 256
"""Hosts listed above which a search costs more than it tells. Chosen."""

CLASSES_OF_STRUCTURE = 8
"""Classes into which hosts with racks and some slow hosts fall at most; more say that there is no structure. Chosen."""

NEXT_TO_NOTHING = 0.05
"""Share of the gap before it that a slice leaves at most for the next slice to follow at once. Chosen."""

MOST_SHARING = 4
"""Candidates among which a share of the time is divided at most: the first few decide. Chosen."""


class When(Enum):
    """When a row of the table has its turn."""

    BOUND = "first, candidate by candidate"
    TURN = "in turns"
    MODEL = "after the others of a turn, or beside them"


Structure = Callable[["Portfolio", int], bool]
"""Whether a candidate has what a row asks for."""


def any_structure(portfolio: "Portfolio", index: int) -> bool:
    """Any grid."""
    return True


def is_classed(portfolio: "Portfolio", index: int) -> bool:
    """Few hosts, which fall into a few classes of near twins; or the tree search row by row does not work."""
    data = portfolio.incumbent.data
    few = data.num_nodes <= MOST_HOSTS_IN_CLASSES
    if not portfolio.may_work("row-tree-search", index):
        return data.num_nodes <= MOST_SEARCHED_HOSTS
    return few and host_classes(data, data.candidates[index], CLASSES_OF_STRUCTURE) is not None


def is_unclassed(portfolio: "Portfolio", index: int) -> bool:
    """Many hosts, or hosts without structure."""
    return not is_classed(portfolio, index)


def is_not_alike(portfolio: "Portfolio", index: int) -> bool:
    """Not hosts of many classes that differ by little, as long as the class assignment has not ended."""
    return not portfolio.is_alike(index)


def is_one_of_several(portfolio: "Portfolio", index: int) -> bool:
    """Several candidates are to be bounded; or one, large, whose racks and classes no other engine looks at first."""
    if not portfolio.is_alone:
        return True
    large = portfolio.cells(index) > FEW_CELLS
    return large and not (portfolio.has_racks(index) or portfolio.is_alike(index))


def counts_tell_most(portfolio: "Portfolio", index: int) -> bool:
    """The same, and long periods are refuted range by range, or the class assignment does not work."""
    data = portfolio.incumbent.data
    by_ranges = has_ranges(data, data.candidates[index])
    tell = by_ranges or not portfolio.may_work("class-assignment", index)
    return tell and is_one_of_several(portfolio, index)


def is_stuck(portfolio: "Portfolio", index: int) -> bool:
    """The search before it has not raised the bound."""
    return not portfolio.has_risen


def is_counted(portfolio: "Portfolio", index: int) -> bool:
    """Rack assignment and column types have ended, and have not told the order of the columns."""
    return not portfolio.has_racks(index)


def is_unsearched(portfolio: "Portfolio", index: int) -> bool:
    """No search is possible."""
    return not portfolio.is_searched(index)


def is_no_chain(portfolio: "Portfolio", index: int) -> bool:
    """The dynamic programme over sets of hosts does not work."""
    return not portfolio.may_work("subset-dp", index)


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """
    One engine on one sort of grids.

    Parameters
    ----------
    cells, hosts, columns
        Least and most cells of the grid, hosts listed, columns of the grid.
    slices
        Length of a slice in ``first_slice_s``; it doubles with each visit, and the candidates of a turn divide it. With
        0 the slice is the share of the time left, which they divide.
    share
        Share of the time left that a slice may take at most.
    calls
        CP-SAT calls that a slice has time for at least.
    most_visits
        Visits after which the row is over.
    until
        The slices of this row follow one another until this share of the time is used.
    repeats
        Whether the next slice follows at once as long as one leaves :data:`NEXT_TO_NOTHING`.
    ends_turn
        Whether the turn is over if it raises the bound.
    before_model
        Visits that it has before the model has its turn, unless they race.
    thorough
        See :class:`~pipette_opt.solver.stoppable.TimeSlice`.
    """

    engine: str
    when: When = When.TURN
    cells: tuple[int, int] = (1, ANY)
    hosts: tuple[int, int] = (1, ANY)
    columns: tuple[int, int] = (1, ANY)
    structure: Structure = any_structure
    slices: float = 0.0
    share: float = 1.0
    calls: int = 0
    most_visits: int = ANY
    until: float = 0.0
    repeats: bool = False
    ends_turn: bool = False
    before_model: int = 0
    thorough: bool = True

    def admits(self, candidate: CandidateData, num_hosts: int) -> bool:
        """Whether a grid has such numbers of cells, hosts and columns."""
        numbers = (candidate.num_cells, num_hosts, candidate.grid[1] * candidate.grid[2])
        limits = (self.cells, self.hosts, self.columns)
        return all(least <= number <= most for number, (least, most) in zip(numbers, limits, strict=True))


SMALL, LARGE = (1, FEW_CELLS), (FEW_CELLS + 1, ANY)
"""Cells of small and of large grids."""

TABLE: tuple[Row, ...] = (
    # Candidates one by one: most of those of a joint choice end here.
    Row(engine="subset-dp", when=When.BOUND, slices=1, until=0.25),
    Row(
        engine="row-counts",
        when=When.BOUND,
        cells=LARGE,
        hosts=(MOST_SEARCHED_HOSTS + 1, ANY),
        structure=counts_tell_most,
        share=0.95,
    ),
    Row(engine="row-counts", when=When.BOUND, cells=LARGE, structure=counts_tell_most, share=0.6),
    Row(
        engine="row-counts",
        when=When.BOUND,
        cells=(9, ANY),
        structure=is_one_of_several,
        share=0.25,
        thorough=False,
    ),
    # Small grids: a search closes nearly all; classes close what is symmetric.
    Row(engine="subset-dp", cells=SMALL, hosts=(1, MOST_SEARCHED_HOSTS), slices=1, before_model=4),
    Row(
        engine="tree-search",
        cells=SMALL,
        hosts=(1, MOST_SEARCHED_HOSTS),
        columns=(1, 1),
        structure=is_no_chain,
        slices=1,
        before_model=4,
    ),
    Row(
        engine="tree-search",
        cells=SMALL,
        hosts=(1, MOST_SEARCHED_HOSTS),
        columns=(2, ANY),
        slices=1,
        share=0.6,
        before_model=2,
    ),
    Row(engine="class-assignment", cells=(9, FEW_CELLS), slices=0.25, repeats=True),
    # Large grids: a first look by search, then what tells racks and classes, then the search.
    Row(engine="tree-search", cells=(FEW_CELLS + 1, 40), structure=is_classed, slices=1, most_visits=1),
    Row(engine="rack-assignment", cells=(41, 80), structure=is_not_alike, share=0.95),
    Row(engine="column-types", cells=(81, ANY), structure=is_not_alike, share=0.95),
    Row(engine="column-order", cells=(41, 80), columns=(5, ANY), structure=is_counted, share=0.95),
    Row(engine="column-order", cells=(81, 160), structure=is_counted, share=0.95),
    Row(engine="class-assignment", cells=(FEW_CELLS + 1, 160), slices=1, calls=3, ends_turn=True),
    Row(engine="tree-search", cells=LARGE, structure=is_classed, slices=1),
    Row(engine="row-tree-search", cells=LARGE, hosts=(1, MOST_SEARCHED_HOSTS), structure=is_unclassed, slices=1),
    Row(engine="promising-counts", cells=LARGE, hosts=(1, MOST_SEARCHED_HOSTS), structure=is_stuck, slices=2),
    # The model that names the hosts, of several candidates at once.
    Row(engine="cp-sat-model", when=When.MODEL, cells=SMALL),
    Row(engine="cp-sat-model", when=When.MODEL, cells=LARGE, structure=is_unsearched),
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
    is_alone
        Whether only one candidate is left to be bounded before the turns.
    has_risen
        Whether the last slice raised the bound of its candidate.
    """

    def __init__(self, incumbent: Incumbent, take: Take) -> None:
        self.incumbent = incumbent
        self.model = CpSatModel(incumbent, take)
        working = {"cp-sat-model", *incumbent.params.working}
        made = [self.model if kind is CpSatModel else kind(incumbent, take) for kind in ENGINE_CLASSES]
        self.engines = {engine.name: engine for engine in made if engine.name in working}
        self.is_alone = self.has_risen = False

    # What structures ask for.

    def cells(self, index: int) -> int:
        """Cells of a candidate's grid."""
        return self.incumbent.data.candidates[index].num_cells

    def may_work(self, name: str, index: int) -> bool:
        """Whether the table lets an engine work on a candidate, whatever the structure, and it can do more."""
        admitted = any(row.engine == name and self._admits(row, index) for row in TABLE if row.when is not When.MODEL)
        return admitted and name in self.engines and self.engines[name].suits(index)

    def has_racks(self, index: int) -> bool:
        """Whether rack assignment or column types have not yet ended."""
        return self.may_work("rack-assignment", index) or self.may_work("column-types", index)

    def is_alike(self, index: int) -> bool:
        """Whether hosts fall into many classes that differ by little, and the class assignment has not ended."""
        data = self.incumbent.data
        works = self.may_work("class-assignment", index)
        return works and alike_classes(data, data.candidates[index]) is not None

    def is_searched(self, index: int) -> bool:
        """Whether a search that names the hosts works on a candidate."""
        return any(self.may_work(name, index) for name in SEARCHES)

    # Turns.

    def bound(self) -> None:
        """
        Rows of ``BOUND`` for candidates one by one, least bounds first.

        Only the least bound matters, so this ends with a candidate that stays where it is.
        """
        incumbent, tried = self.incumbent, set[int]()
        while not incumbent.is_over:
            ranked = incumbent.open_candidates()
            self.is_alone = False
            able = [index for index in ranked if self._rows(When.BOUND, index)]
            self.is_alone = len(able) == 1
            left = [index for index in able if index not in tried]
            if not left or left[0] != ranked[0]:
                return
            rows = self._rows(When.BOUND, left[0])
            if not rows:
                return  # others tell more of a single candidate
            self._run(rows[0], left[0], len(left))
            tried.add(left[0])

    def take_turns(self, batch: Sequence[int], workers: int | None = None, stop: threading.Event | None = None) -> bool:
        """A turn of each candidate of a batch; whether any engine could do anything."""
        worked = False
        for index in batch:
            self.has_risen = False
            for row in self._rows(When.TURN, index, lazily=True):
                if not self._is_due(index):
                    break
                if not self._may_run(row, index):
                    continue
                worked = True
                self._run(row, index, len(batch), workers, stop)
                if row.ends_turn and self.has_risen:
                    break
        return worked

    def races(self, batch: Sequence[int]) -> bool:
        """
        Whether a batch is searched in half of the threads while it is modelled in the others.

        Either may close a few cells in a second where the other takes a minute, but models seldom close one column.
        """
        few = all(
            self.cells(index) <= FEW_CELLS and self.is_searched(index) and not self._is_column(index) for index in batch
        )
        return few and self.incumbent.workers > 1

    def left_to_model(self, batch: Sequence[int]) -> list[int]:
        """Candidates of a batch that the model that names the hosts has its turn with, after the others."""
        left = [index for index in batch if self.incumbent.is_open(index) and self._rows(When.MODEL, index)]
        return [index for index in left if not self._is_searched_first(index)]

    def _is_searched_first(self, index: int) -> bool:
        """Whether a search has had fewer slices than it has before the model."""
        rows = [row for row in self._rows(When.TURN, index) if row.before_model]
        return any(self.engines[row.engine].visits[index] < row.before_model for row in rows)

    def _is_column(self, index: int) -> bool:
        return self.incumbent.data.candidates[index].grid[1:] == (1, 1)

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
    ) -> None:
        """A slice of a row for one candidate of so many, and those that follow at once."""
        incumbent, engine = self.incumbent, self.engines[row.engine]
        least_s = (1 - row.until) * incumbent.seconds_left
        while True:
            before = incumbent.ceiling_of(index) - int(incumbent.bounds[index])
            self.has_risen = engine.run(index, self._slice(row, index, number, workers, stop))
            if not (self._is_due(index) and engine.suits(index)):
                return
            after = incumbent.ceiling_of(index) - int(incumbent.bounds[index])
            near = row.repeats and self.has_risen and after <= NEXT_TO_NOTHING * before
            if not near and not (row.until and incumbent.seconds_left > least_s):
                return

    def _slice(self, row: Row, index: int, number: int, workers: int | None, stop: threading.Event | None) -> TimeSlice:
        incumbent, engine = self.incumbent, self.engines[row.engine]
        left_s = row.share * incumbent.seconds_left
        if row.slices:
            slice_s = row.slices * incumbent.params.first_slice_s * 2 ** engine.visits[index]
            seconds = min(max(slice_s, row.calls * engine.call_s(index)) / number, left_s)
        else:
            seconds = left_s / min(number, MOST_SHARING)
        return TimeSlice(
            ends=time.perf_counter() + seconds,
            stop=incumbent.stop if stop is None else stop,
            workers=incumbent.workers if workers is None else workers,
            seed=incumbent.params.seed,
            shared_by=number,
            thorough=row.thorough,
        )

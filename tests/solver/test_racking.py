"""Racks and kinds of one candidate: where they are looked at, and what becomes known."""

import threading

import numpy as np
import pytest
from instances import one_candidate_cluster
from rack_cases import in_racks

from pipette_opt.heuristics.annealing import AnnealingParams, anneal
from pipette_opt.problem import ProblemData
from pipette_opt.solution import Solution
from pipette_opt.solver.bounds import lower_bounds
from pipette_opt.solver.courses.ordering import OrderRefuter
from pipette_opt.solver.courses.refuting import CourseRefuter
from pipette_opt.solver.known import Known
from pipette_opt.solver.params import SolverParams
from pipette_opt.solver.racking import FEWEST_CELLS, MOST_TOLD_CELLS, Racking
from pipette_opt.solver.racks.refuting import CellRefuter
from pipette_opt.solver.refining import Refining


def known_of(data: ProblemData) -> Known:
    """Nothing but bounds that need no search; what raises them ends the search."""
    stop = threading.Event()
    bounds = lower_bounds(data)

    def told(elapsed_s: float, incumbent: int | None, bound: int) -> None:
        if bound > bounds.min():
            stop.set()

    known = Known(data, SolverParams(time_limit_s=60.0, workers=1), told, stop)
    known.bounds = bounds.copy()
    return known


def racking_of(data: ProblemData) -> Racking:
    """Nothing is refined."""
    known = known_of(data)
    return Racking(known, Refining(known, None))


def test_where_it_applies() -> None:
    """Not with few cells, and only with hosts in racks; many cells are told by courses."""
    rng = np.random.default_rng(0)
    suits = []
    for kind, shape in (("tree", (4, 4)), ("tree", (12, 8)), ("unif", (8, 6)), ("tree", (8, 6))):
        racking = racking_of(one_candidate_cluster(rng, kind, (*shape, 1)))
        suits.append(racking.suits(0))
        search = racking.begun.get(0)
        assert search is None or isinstance(search.refutes, CourseRefuter) == (shape == (12, 8))
    assert 4 * 4 < FEWEST_CELLS <= 8 * 6 <= MOST_TOLD_CELLS < 12 * 8
    assert suits == [False, True, False, True]


@pytest.mark.parametrize(("shape", "anneals"), [((8, 6, 1), False), ((12, 8, 1), True)])
def test_it_raises_the_bound(shape: tuple[int, int, int], anneals: bool) -> None:
    """Without any other engine, some placement being known."""
    racking = racking_of(one_candidate_cluster(np.random.default_rng(1), "tree", shape, compute=2_000))
    known = racking.known
    some: Solution | None = Solution(
        candidate=0, nodes=np.arange(shape[0] * shape[1]).reshape(shape), objective_ticks=0
    )
    if anneals:
        some = anneal(known.data, AnnealingParams(time_limit_s=None, max_moves=500_000)).solution
    assert some is not None
    known.offer(some)
    before = int(known.bounds[0])
    assert racking.suits(0)
    racking.search(0)
    assert known.bounds[0] > before
    assert 0 in known.searched


def test_the_order_of_columns_is_told_where_counts_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """Racks without noise, on few cells: counts soon have a pattern that no order of the columns keeps."""
    monkeypatch.setattr("pipette_opt.solver.racking.FEWEST_CELLS", 1)
    data = in_racks("async", (4, 5), 4, 0, 3)
    known = Known(data, SolverParams(time_limit_s=60.0, workers=1), None, threading.Event())
    known.bounds = lower_bounds(data).copy()
    known.offer(Solution(candidate=0, nodes=np.arange(20).reshape(4, 5, 1), objective_ticks=0))
    racking = Racking(known, Refining(known, None))
    assert racking.suits(0)
    counts = racking.begun[0]
    assert counts is not None
    racking.search(0)
    ordered = racking.begun[0]
    assert ordered is not None
    assert isinstance(counts.refutes, CellRefuter)
    assert isinstance(ordered.refutes, OrderRefuter)
    assert ordered.bound > counts.possible > counts.bound
    assert known.bounds[0] >= ordered.bound
    assert not racking.suits(0)

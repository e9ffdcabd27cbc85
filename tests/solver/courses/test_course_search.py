"""Bounds from courses are below every enumerated optimum, and it where racks and kinds say everything."""

import math
import threading
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
from instances import Variant, best_by_enumeration, one_candidate_cluster, random_problem
from ortools.sat.python.cp_model import UNKNOWN, CpModel, CpSolver
from rack_cases import (
    VARIANTS,
    check_below_the_optimum,
    check_bounds_a_tree,
    check_closes,
    check_no_placement_is_refuted,
    check_stops,
    in_racks,
    search_by,
)

from pipette_opt.base.types import IntArray, P2PMode
from pipette_opt.problem.data import UNUSABLE_TICKS
from pipette_opt.problem.objective import largest_ticks, objective_ticks
from pipette_opt.solver.bounds import candidate_bound
from pipette_opt.solver.courses import refuting
from pipette_opt.solver.courses.refuting import CourseRefuter
from pipette_opt.solver.racks import structure
from pipette_opt.solver.racks.refuting import CellRefuter
from pipette_opt.solver.racks.structure import find_racks
from pipette_opt.solver.stoppable import TimeSlice

searched = partial(search_by, CourseRefuter)
"""The search of the only candidate."""


@pytest.mark.parametrize("limits", [(250_000, 1_000), (250_000, 0), (1, 0)], ids=["by rack", "courses", "rows"])
@pytest.mark.parametrize("variant", VARIANTS, ids=str)
def test_bound_is_below_the_optimum(variant: Variant, limits: tuple[int, int], monkeypatch: pytest.MonkeyPatch) -> None:
    """Compared with enumeration; each of the three models by itself."""
    monkeypatch.setattr(refuting, "MOST_COURSES", limits[0])
    monkeypatch.setattr(refuting, "MOST_BY_RACK", limits[1])
    monkeypatch.setattr(refuting, "FEW", min(refuting.FEW, limits[1]))
    check_below_the_optimum(searched, variant, 12 if limits[1] else 6)


@pytest.mark.parametrize("p2p", ["blocking", "async"])
@pytest.mark.parametrize(("shape", "slow", "spare"), [((2, 2), 0, 0), ((2, 2), 1, 1), ((3, 2), 2, 0)])
def test_it_closes_what_racks_decide(p2p: P2PMode, shape: tuple[int, int], slow: int, spare: int) -> None:
    """Racks without noise, two columns: any order of them is the same ring."""
    check_closes(searched, in_racks(p2p, shape, slow, spare))


@pytest.mark.parametrize("p2p", ["blocking", "async"])
@pytest.mark.parametrize(("shape", "slow", "racks"), [((3, 2), 3, 3), ((2, 4), 4, 4)])
def test_equal_racks_may_change_places_and_nothing_else(
    p2p: P2PMode, shape: tuple[int, int], slow: int, racks: int
) -> None:
    """Racks of two hosts each, alike or in two sorts: telling them apart does not lose the optimum."""
    data = in_racks(p2p, shape, slow, 0, racks)
    optimum = best_by_enumeration(data, data.candidates[0])
    assert searched(data, 0, optimum, 0.0).run(60.0) <= optimum


@pytest.mark.parametrize("ceiling", [0, 50, 500, 5_000])
def test_hosts_may_be_slower_than_their_kinds_tell(ceiling: int) -> None:
    """
    Directed links, one kind, two micro-batches: the fastest period is of a link whose ends are late.

    The optimum has a period that kinds and racks alone do not tell, and no column as fast as they do ends in time.
    """
    links = np.full((4, 4), 10_150)
    links[[0, 1, 0, 1], [2, 3, 3, 2]] = 6_000
    links[[0, 1], [1, 0]] = 10_000
    rings = 10 + np.add.outer(np.arange(4), np.arange(4))  # so that no host is as another
    for ticks in (links, rings):
        np.fill_diagonal(ticks, UNUSABLE_TICKS)
    data = random_problem(np.random.default_rng(0), [(2, 2, 1)], 4, Variant(), max_block=1)
    candidate = replace(
        data.candidates[0],
        num_microbatches=2,
        forward_ticks=np.array([[5, 5]]),
        backward_ticks=np.array([[5, 5]]),
        p2p_ticks=links,
        ring_class=np.array([0, 0]),
        ring_ticks=rings[None],
        ring_floor_ticks=np.array([0, 0]),
        optimizer_ticks=0,
        embedding_ticks=np.zeros((0, 0)),
        memory_need_mib=np.array([1, 1]),
    )
    data = replace(data, candidates=(candidate,))
    optimum = best_by_enumeration(data, candidate)
    assert optimum == 26_341
    assert searched(data, 0, optimum + ceiling, 0.05).run(60.0) <= optimum


@pytest.mark.parametrize("p2p", ["blocking", "async"])
def test_what_it_promises_is_a_placement(p2p: P2PMode) -> None:
    """Hosts of a tree, each used once; without noise, and with the ring left out, they cost what was asked for."""
    data = in_racks(p2p, (4, 3), 3, 2, 3)
    candidate = data.candidates[0]
    found: list[IntArray] = []
    ceiling = int(1.3 * candidate_bound(data, candidate))
    search = searched(data, 0, ceiling, 0.0, found.append)
    search.run(60.0)
    assert search.possible <= ceiling
    assert found
    for nodes in found:
        assert nodes.shape == (4, 3)
        assert len(np.unique(nodes)) == 12
        assert nodes.min() >= 0
        assert nodes.max() < data.num_nodes
        assert objective_ticks(data, candidate, nodes[:, :, None]) <= ceiling


def test_it_bounds_a_tree_far_above_single_links() -> None:
    """Slow hosts have to be somewhere."""
    check_bounds_a_tree(searched, (12, 8, 1), 6.0)


def test_it_stops() -> None:
    """When told to."""
    check_stops(searched, (12, 8, 1))


@pytest.mark.parametrize("limits", [(250_000, 1_000), (250_000, 0), (1, 0)], ids=["by rack", "courses", "rows"])
@pytest.mark.parametrize("p2p", ["blocking", "async"])
def test_no_placement_is_refuted_for_what_it_costs(
    p2p: P2PMode, limits: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Links of a sort cost at least the least: a slowest period may be longer than any told."""
    monkeypatch.setattr(refuting, "MOST_COURSES", limits[0])
    monkeypatch.setattr(refuting, "MOST_BY_RACK", limits[1])
    monkeypatch.setattr(refuting, "FEW", min(refuting.FEW, limits[1]))
    check_no_placement_is_refuted(CourseRefuter, p2p, [(3, 3, 1), (4, 2, 1), (2, 4, 1)])
    monkeypatch.setattr(structure, "MOST_CLASSES", 0)
    check_no_placement_is_refuted(CourseRefuter, p2p, [(2, 4, 1), (4, 3, 1)], rails=True)


class _Recorder(CellRefuter):
    """Says that no cells are left, and how often it was asked."""

    says: bool | None = True
    asked = 0

    def __call__(
        self, ceiling: int, shortest: int, longest: int, time_slice: TimeSlice, *, thorough: bool = True
    ) -> bool | None:
        self.asked += 1
        return self.says


@pytest.mark.parametrize("p2p", ["blocking", "async"])
def test_cells_are_asked_where_courses_take_too_long(p2p: P2PMode, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only with blocking sends; first from then on, unless they do not refute."""
    data = one_candidate_cluster(np.random.default_rng(2), "tree", (3, 3, 1), p2p=p2p, compute=500)
    candidate = data.candidates[0]
    racks = find_racks(data, candidate, np.inf)
    assert racks is not None
    models = 0

    def gives_up(given: TimeSlice, model: CpModel, solver: CpSolver) -> int:
        nonlocal models
        models += 1
        return int(UNKNOWN)

    monkeypatch.setattr(TimeSlice, "solve", gives_up)
    given = TimeSlice(ends=math.inf, stop=threading.Event())
    refuter = CourseRefuter(data, candidate, racks)
    refuter.cells = cells = _Recorder(data, candidate, racks)
    ceiling, longest = 2 * largest_ticks(candidate), largest_ticks(candidate)
    asked = []
    for cells.says in (True, True, None):
        told = refuter(ceiling, 0, longest, given)
        asked.append((told, models, cells.asked))
    assert asked[0][1] >= 1
    if p2p == "async":
        assert [told for told, _, _ in asked] == [None, None, None]
        assert cells.asked == 0
        return
    assert [told for told, _, _ in asked] == [True, True, None]
    assert [by_cells for _, _, by_cells in asked] == [1, 2, 3]
    assert asked[1][1] - asked[0][1] < asked[0][1]  # not told by rack, since cells were first
    assert asked[2][1] - asked[1][1] == asked[0][1]

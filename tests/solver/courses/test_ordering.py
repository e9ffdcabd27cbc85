"""Bounds that tell the order of columns: below every enumerated optimum, above what counts tell, and kept by plans."""

from functools import partial

import numpy as np
import pytest
from instances import Variant, one_candidate_cluster
from rack_cases import (
    VARIANTS,
    check_below_the_optimum,
    check_closes,
    check_no_placement_is_refuted,
    check_stops,
    in_racks,
    search_by,
)

from pipette_opt.base.types import IntArray, P2PMode
from pipette_opt.problem.objective import objective_ticks
from pipette_opt.solver.bounds import candidate_bound
from pipette_opt.solver.courses import ordering
from pipette_opt.solver.courses.ordering import OrderRefuter
from pipette_opt.solver.racks.refuting import CellRefuter
from pipette_opt.solver.racks.search import RackSearch

searched = partial(search_by, OrderRefuter)
"""The search of the only candidate."""


@pytest.mark.parametrize("variant", VARIANTS, ids=str)
def test_bound_is_below_the_optimum(variant: Variant) -> None:
    """Compared with enumeration."""
    check_below_the_optimum(searched, variant, 6)


@pytest.mark.parametrize("p2p", ["blocking", "async"])
@pytest.mark.parametrize(("shape", "slow", "spare"), [((2, 2), 1, 1), ((3, 2), 2, 0), ((2, 4), 3, 0)])
def test_it_closes_what_racks_decide(p2p: P2PMode, shape: tuple[int, int], slow: int, spare: int) -> None:
    """Racks without noise: nothing is relaxed."""
    check_closes(searched, in_racks(p2p, shape, slow, spare))


@pytest.mark.parametrize("p2p", ["blocking", "async"])
def test_no_placement_is_refuted_for_what_it_costs(p2p: P2PMode) -> None:
    """In the order it has, with more columns than have their order told everywhere, too."""
    check_no_placement_is_refuted(OrderRefuter, p2p, [(3, 3, 1), (2, 4, 1), (3, 5, 1), (2, 6, 1)])


@pytest.mark.parametrize(("p2p", "shape", "slow"), [("async", (4, 5), 4), ("blocking", (3, 6), 5)])
def test_order_tells_more_than_counts(p2p: P2PMode, shape: tuple[int, int], slow: int) -> None:
    """Racks without noise: what has a pattern is a placement that costs no more, and racks alone promise less."""
    data = in_racks(p2p, shape, slow, 0, 3)
    candidate = data.candidates[0]
    ceiling = int(1.5 * candidate_bound(data, candidate))
    found: list[IntArray] = []
    search = searched(data, 0, ceiling, 0.0, found.append)
    search.run(60.0)
    assert search.ended
    assert min(objective_ticks(data, candidate, nodes[:, :, None]) for nodes in found) <= search.possible
    unordered = RackSearch(candidate, search.racks, CellRefuter(data, candidate, search.racks), 0, ceiling)
    unordered.run(60.0)
    assert unordered.possible < search.bound


def test_too_many_courses_end_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """What cannot be told is left as it is."""
    monkeypatch.setattr(ordering, "MOST_COURSES", 1)
    data = one_candidate_cluster(np.random.default_rng(2), "tree", (8, 5, 1), compute=2_000)
    before = candidate_bound(data, data.candidates[0])
    search = searched(data, before, int(before * 1.3))
    search.run(60.0)
    assert search.ended
    assert before <= search.bound <= search.possible <= int(before * 1.3)


def test_it_stops() -> None:
    """When told to."""
    check_stops(searched, (8, 5, 1))

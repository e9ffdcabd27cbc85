"""Bounds from racks and kinds are below every enumerated optimum, and it where racks and kinds say everything."""

import threading

import numpy as np
import pytest
from instances import Variant, best_by_enumeration, one_candidate_cluster, random_problem
from rack_cases import SHAPES, VARIANTS, in_racks

from pipette_opt.problem import UNUSABLE_TICKS, ProblemData, largest_ticks
from pipette_opt.solver.bounds import candidate_bound
from pipette_opt.solver.racks.search import CellRefuter, RackSearch, Solves, has_racks
from pipette_opt.solver.racks.structure import find_racks
from pipette_opt.solver.rows.costs import NEVER
from pipette_opt.solver.rows.levels import range_level
from pipette_opt.types import P2PMode


def searched(data: ProblemData, floor: int, ceiling: int, most_lost: float = np.inf) -> RackSearch:
    """The search of the only candidate, however little racks tell."""
    racks = find_racks(data, data.candidates[0], most_lost)
    assert racks is not None
    refuter = CellRefuter(data, data.candidates[0], racks)
    return RackSearch(data.candidates[0], racks, refuter, floor, ceiling)


@pytest.mark.parametrize("variant", VARIANTS, ids=str)
def test_bound_is_below_the_optimum(variant: Variant) -> None:
    """
    Enumeration of every placement, with as many hosts as cells or one more.

    The ceiling is anywhere: what is refuted is refuted, also a candidate that has no placement at all.
    """
    rng = np.random.default_rng(VARIANTS.index(variant))
    compared = 0
    for number in range(60):
        if number >= 12 and compared >= 2:
            break
        shape = SHAPES[number % len(SHAPES)]
        data = random_problem(rng, [shape], min(6, shape[0] * shape[1] + int(rng.integers(2))), variant)
        candidate = data.candidates[0]
        if not has_racks(candidate):
            continue
        optimum = best_by_enumeration(data, candidate)
        ceiling = largest_ticks(candidate)
        if optimum < UNUSABLE_TICKS and rng.random() < 0.6:
            ceiling = max(1, optimum + int(rng.integers(-2, 4)) * (1 + optimum // 20))
        search = searched(data, 0, ceiling)
        bound = search.run(60.0)
        assert search.ended
        assert bound <= optimum
        assert bound <= ceiling + 1
        compared += 1
    assert compared >= 2


@pytest.mark.parametrize("p2p", ["blocking", "async"])
@pytest.mark.parametrize(("shape", "slow", "spare"), [((2, 2), 0, 0), ((2, 2), 1, 1), ((2, 3), 1, 0), ((3, 2), 2, 0)])
def test_it_closes_what_racks_decide(p2p: P2PMode, shape: tuple[int, int], slow: int, spare: int) -> None:
    """Racks without noise, two columns or three: any order of them is the same ring, so nothing is relaxed."""
    data = in_racks(p2p, shape, slow, spare)
    optimum = best_by_enumeration(data, data.candidates[0])
    assert searched(data, 0, optimum - 1, 0.0).run(60.0) == optimum
    assert searched(data, 0, optimum, 0.0).run(60.0) <= optimum


@pytest.mark.parametrize("p2p", ["blocking", "async"])
@pytest.mark.parametrize(("shape", "slow", "racks"), [((3, 2), 3, 3), ((4, 2), 4, 4), ((2, 4), 4, 4)])
def test_equal_racks_may_change_places_and_nothing_else(
    p2p: P2PMode, shape: tuple[int, int], slow: int, racks: int
) -> None:
    """Racks of two hosts each, alike or in two sorts: telling them apart does not lose the optimum."""
    data = in_racks(p2p, shape, slow, 0, racks)
    optimum = best_by_enumeration(data, data.candidates[0])
    assert searched(data, 0, optimum, 0.0).run(60.0) <= optimum
    if shape[1] == 2:
        assert searched(data, 0, optimum - 1, 0.0).run(60.0) == optimum


def test_what_is_found_of_a_tree() -> None:
    """Four racks of eight hosts each, and two kinds: the slow hosts are few."""
    data = one_candidate_cluster(np.random.default_rng(2), "tree", (8, 4, 1), compute=2_000)
    racks = find_racks(data, data.candidates[0])
    assert racks is not None
    assert racks.sizes.sum() == 32
    assert racks.num_kinds == 2
    assert racks.sizes.sum(axis=0).max() > 20


def test_structureless_hosts_have_no_racks() -> None:
    """Hosts that all differ do not fall into a few classes."""
    data = one_candidate_cluster(np.random.default_rng(0), "unif", (4, 4, 1))
    assert find_racks(data, data.candidates[0]) is None


def test_it_bounds_a_tree_far_above_single_links() -> None:
    """Slow hosts have to be somewhere: the bound of 32 hosts in racks is near what annealing finds."""
    data = one_candidate_cluster(np.random.default_rng(2), "tree", (8, 4, 1), compute=2_000)
    before = candidate_bound(data, data.candidates[0])
    search = searched(data, before, int(before * 1.3))
    told: list[int] = []
    after = search.run(10.0, workers=2, on_bound=told.append)
    assert after > 1.03 * before
    assert told == sorted(told)
    search.narrow(after + 5, after + 4)
    assert search.bound == after + 5
    assert search.run(10.0) == after + 5


def test_it_stops() -> None:
    """When told to, with the bound it has."""
    data = one_candidate_cluster(np.random.default_rng(0), "tree", (8, 4, 1))
    stop = threading.Event()
    stop.set()
    assert searched(data, 17, 10**9).run(60.0, stop=stop) == 17
    assert searched(data, 17, 10**9).run(0.0) == 17


class _Unsteady(CellRefuter):
    """Knows of one placement, and runs out of time at random."""

    joins = 4
    lowers = False

    def __init__(self, data: ProblemData, period: int, cost: int, rng: np.random.Generator) -> None:
        self.data, self.period, self.cost, self.rng, self.looks = data, period, cost, rng, 0
        self.search: RackSearch | None = None

    def __call__(
        self, ceiling: int, shortest: int, longest: int, solves: Solves, *, thorough: bool = True
    ) -> bool | None:
        assert self.search is not None
        self.looks += 1
        self.search.ended = self.looks > 400
        if self.rng.random() < 0.3:
            return None
        return not (shortest <= self.period <= longest and self.cost <= ceiling)


@pytest.mark.parametrize("lowers", [False, True])
@pytest.mark.parametrize("p2p", ["blocking", "async"])
def test_periods_too_long_for_one_ceiling_come_back_at_the_next(p2p: P2PMode, lowers: bool) -> None:
    """One placement; models run out of time at random, so ranges are split at ceilings that are too low."""
    data = one_candidate_cluster(np.random.default_rng(2), "tree", (8, 4, 1), p2p=p2p, compute=2_000)
    candidate = data.candidates[0]
    racks = find_racks(data, candidate)
    assert racks is not None
    shortest, rounds = int(racks.costs.window.min()), candidate.num_microbatches - 1
    floor = next(
        one
        for one in range(0, 1 << 30, 20_000)
        if range_level(candidate, racks.costs, one, shortest, int(NEVER)) is not None
    )
    for seed in range(60):
        rng = np.random.default_rng(seed)
        ceiling = int(1.3 * floor)
        period = int(rng.integers(shortest, shortest + (ceiling - floor) // rounds))
        cost = next(
            one for one in range(floor, 2 * ceiling, 20_000) if range_level(candidate, racks.costs, one, period, period)
        )
        refuter = _Unsteady(data, period, cost, rng)
        refuter.lowers = lowers
        search = RackSearch(candidate, racks, refuter, floor, ceiling)
        refuter.search = search
        assert search.run(1e6) <= cost


class _TellsNothing(CellRefuter):
    """Cannot tell, whatever it is asked, and says so at once; stops when asked often."""

    slice_share = 2.0  # each slice is cut short by the end of the run

    def __init__(self, most: int) -> None:
        self.asked: list[tuple[int, int, int]] = []
        self.most, self.stop = most, threading.Event()

    def __call__(
        self, ceiling: int, shortest: int, longest: int, solves: Solves, *, thorough: bool = True
    ) -> bool | None:
        self.asked.append((ceiling, shortest, longest))
        if len(self.asked) == self.most:
            self.stop.set()
        return None


def test_what_was_told_in_time_is_not_asked_again() -> None:
    """Not even when a slice had less than its time: the range is split."""
    data = one_candidate_cluster(np.random.default_rng(2), "tree", (8, 4, 1), compute=2_000)
    racks = find_racks(data, data.candidates[0])
    assert racks is not None
    refuter = _TellsNothing(20)
    before = candidate_bound(data, data.candidates[0])
    RackSearch(data.candidates[0], racks, refuter, before, 2 * before).run(1e3, stop=refuter.stop)
    assert len(refuter.asked) > 3
    assert len(set(refuter.asked)) == len(refuter.asked)


@pytest.mark.parametrize("lowers", [False, True])
def test_what_takes_too_long_is_tried_with_a_lower_ceiling(lowers: bool) -> None:
    """At once, or only where no range can be split."""
    data = one_candidate_cluster(np.random.default_rng(2), "tree", (8, 4, 1), compute=2_000)
    racks = find_racks(data, data.candidates[0])
    assert racks is not None
    refuter = _TellsNothing(3)
    refuter.lowers = lowers
    before = candidate_bound(data, data.candidates[0])
    RackSearch(data.candidates[0], racks, refuter, before, 2 * before).run(1e3, stop=refuter.stop)
    ceilings = [ceiling for ceiling, _, _ in refuter.asked]
    assert len(set(ceilings)) == (3 if lowers else 1)
    assert ceilings == sorted(ceilings, reverse=True)

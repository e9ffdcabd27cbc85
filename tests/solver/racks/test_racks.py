"""Bounds from racks and kinds are below every enumerated optimum, and it where racks and kinds say everything."""

import threading
import time
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
from instances import Variant, best_by_enumeration, one_candidate_cluster
from rack_cases import (
    VARIANTS,
    check_below_the_optimum,
    check_bounds_a_tree,
    check_closes,
    check_no_placement_is_refuted,
    check_stops,
    in_racks,
    in_rails,
    search_by,
)

from pipette_opt.base.types import IntArray, P2PMode
from pipette_opt.problem.data import UNUSABLE_TICKS, ProblemData
from pipette_opt.problem.objective import objective_ticks
from pipette_opt.solver.bounds import candidate_bound
from pipette_opt.solver.racks import structure
from pipette_opt.solver.racks.refuting import CellRefuter
from pipette_opt.solver.racks.search import STEP, RackSearch
from pipette_opt.solver.racks.structure import find_racks
from pipette_opt.solver.rows.costs import NEVER
from pipette_opt.solver.rows.levels import range_level
from pipette_opt.solver.stoppable import OutOfTimeError, TimeSlice

searched = partial(search_by, CellRefuter)
"""The search of the only candidate."""


@pytest.mark.parametrize("variant", VARIANTS, ids=str)
def test_bound_is_below_the_optimum(variant: Variant) -> None:
    """Compared with enumeration."""
    check_below_the_optimum(searched, variant)


@pytest.mark.parametrize("p2p", ["blocking", "async"])
@pytest.mark.parametrize(
    ("shape", "slow", "spare"), [((2, 2), 0, 0), ((2, 2), 1, 1), ((2, 3), 1, 0), ((3, 2), 2, 0), ((2, 4), 3, 0)]
)
def test_it_closes_what_racks_decide(p2p: P2PMode, shape: tuple[int, int], slow: int, spare: int) -> None:
    """Racks without noise, up to four columns: the order of these is told, so nothing is relaxed."""
    check_closes(searched, in_racks(p2p, shape, slow, spare))


@pytest.mark.parametrize("p2p", ["blocking", "async"])
@pytest.mark.parametrize(("shape", "slow", "racks"), [((3, 2), 3, 3), ((4, 2), 4, 4), ((2, 4), 4, 4)])
def test_equal_racks_may_change_places_and_nothing_else(
    p2p: P2PMode, shape: tuple[int, int], slow: int, racks: int
) -> None:
    """Racks of two hosts each, alike or in two sorts: telling them apart does not lose the optimum."""
    data = in_racks(p2p, shape, slow, 0, racks)
    optimum = best_by_enumeration(data, data.candidates[0])
    assert searched(data, 0, optimum, 0.0).run(60.0) <= optimum
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


@pytest.mark.parametrize("p2p", ["blocking", "async"])
def test_hosts_that_all_differ_are_in_the_racks_of_their_neighbours(p2p: P2PMode) -> None:
    """Slow hosts of rails are no twins, but near the other hosts of their unit; those slower by far are a kind."""
    data = in_rails(np.random.default_rng(0), p2p, (8, 8), 4, 6)
    racks = find_racks(data, data.candidates[0])
    assert racks is not None
    assert racks.sizes.sum(axis=1).tolist() == [16] * 4
    assert racks.num_kinds == 2
    assert 0 < racks.sizes[:, 1].sum() <= 6
    unit = racks.rack[racks.classes.of_host].reshape(4, 16)
    assert (unit == unit[:, :1]).all()


def test_neighbours_may_have_other_gpus_or_less_memory() -> None:
    """Then they are of other kinds."""
    rng, (P, D) = np.random.default_rng(1), (4, 6)
    data = in_rails(rng, "blocking", (P, D), 2, 0)
    candidate = data.candidates[0]
    candidate = replace(
        candidate,
        forward_ticks=np.tile(candidate.forward_ticks, (2, 1)),
        backward_ticks=np.tile(candidate.backward_ticks, (2, 1)),
        memory_need_mib=np.where(np.arange(candidate.num_stages) == 0, 60, 10),
    )
    gpu, memory = rng.integers(2, size=P * D), 40 * (1 + rng.integers(2, size=P * D))
    data = replace(data, candidates=(candidate,), kind_of_node=gpu, capacity_mib=memory)
    racks = find_racks(data, candidate, np.inf)
    assert racks is not None
    assert racks.num_racks == 2
    assert racks.num_kinds == 4
    told = np.stack([racks.kind[racks.classes.of_host], gpu, memory])
    assert len(np.unique(told, axis=1).T) == 4
    assert (racks.costs.room[0] == (memory[np.unique(racks.classes.of_host, return_index=True)[1]] >= 60)).all()


def test_too_many_racks_tell_nothing() -> None:
    """A model would be large; hosts without a link have no neighbours."""
    many = in_rails(np.random.default_rng(0), "blocking", (16, 8), 32, 40)
    assert find_racks(many, many.candidates[0]) is None
    data = in_rails(np.random.default_rng(0), "blocking", (8, 8), 4, 6)
    candidate = data.candidates[0]
    alone = candidate.ring_ticks.copy()
    alone[:, 3] = UNUSABLE_TICKS
    assert find_racks(data, candidate) is not None
    assert find_racks(data, replace(candidate, ring_ticks=alone)) is None


@pytest.mark.parametrize("missing", [False, True])
@pytest.mark.parametrize("p2p", ["blocking", "async"])
@pytest.mark.parametrize("shape", [(2, 4), (4, 2)])
def test_bound_by_neighbours_is_below_the_optimum(
    p2p: P2PMode, shape: tuple[int, int], missing: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Compared with enumeration; what costs as much as the optimum is not refuted, and most of what lies below is."""
    monkeypatch.setattr(structure, "MOST_CLASSES", 0)
    data = in_rails(np.random.default_rng(shape), p2p, shape, 2, 3)
    candidate = data.candidates[0]
    if missing:
        links, rings = candidate.p2p_ticks.copy(), candidate.ring_ticks.copy()
        links[[0, 5], [6, 2]] = rings[:, [0, 5], [6, 2]] = UNUSABLE_TICKS
        candidate = replace(candidate, p2p_ticks=links, ring_ticks=rings)
        data = replace(data, candidates=(candidate,))
    optimum = best_by_enumeration(data, candidate)
    for ceiling in (optimum - 1, optimum, optimum + optimum // 20):
        search = searched(data, 0, ceiling)
        assert search.racks.num_racks == 2
        assert 0.9 * optimum < search.run(60.0) <= optimum
        assert search.ended


def test_it_bounds_a_tree_far_above_single_links() -> None:
    """Slow hosts have to be somewhere: the bound of 32 hosts in racks is near what annealing finds."""
    check_bounds_a_tree(searched, (8, 4, 1), 10.0)


def test_it_stops() -> None:
    """When told to."""
    check_stops(searched, (8, 4, 1))


@pytest.mark.parametrize("p2p", ["blocking", "async"])
@pytest.mark.parametrize("shape", [(4, 3), (3, 4), (2, 5)])
def test_what_it_promises_is_a_placement(p2p: P2PMode, shape: tuple[int, int]) -> None:
    """Hosts of a tree, each used once; without noise, and with rings in order, they cost what was asked for."""
    data = in_racks(p2p, shape, 3, 2, 3)
    candidate = data.candidates[0]
    racks = find_racks(data, candidate, 0.0)
    assert racks is not None
    found: list[IntArray] = []
    ceiling = int(1.3 * candidate_bound(data, candidate))
    search = RackSearch(candidate, racks, CellRefuter(data, candidate, racks, found.append), 0, ceiling)
    search.run(5.0)
    assert search.possible <= ceiling
    assert found
    for nodes in found:
        assert nodes.shape == shape
        assert len(np.unique(nodes)) == nodes.size
        assert nodes.min() >= 0
        assert nodes.max() < data.num_nodes
        assert shape[1] > 4 or objective_ticks(data, candidate, nodes[:, :, None]) <= ceiling


@pytest.mark.parametrize("p2p", ["blocking", "async"])
def test_no_placement_is_refuted_for_what_it_costs(p2p: P2PMode) -> None:
    """Neither where the order of the columns is told nor where it is not."""
    check_no_placement_is_refuted(CellRefuter, p2p, [(3, 3, 1), (2, 4, 1), (3, 4, 1), (2, 6, 1)])


@pytest.mark.parametrize("p2p", ["blocking", "async"])
def test_no_placement_is_refuted_by_neighbours(p2p: P2PMode, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of rails, whose hosts are slower than their kinds tell."""
    monkeypatch.setattr(structure, "MOST_CLASSES", 0)
    check_no_placement_is_refuted(CellRefuter, p2p, [(2, 4, 1), (4, 3, 1), (4, 4, 1)], rails=True)


class _Unsteady(CellRefuter):
    """Knows of one placement, and runs out of time at random."""

    joins = 4
    lowers = False

    def __init__(self, data: ProblemData, period: int, cost: int, rng: np.random.Generator) -> None:
        self.data, self.period, self.cost, self.rng, self.looks = data, period, cost, rng, 0
        self.search: RackSearch | None = None

    def __call__(
        self, ceiling: int, shortest: int, longest: int, time_slice: TimeSlice, *, thorough: bool = True
    ) -> bool | None:
        assert self.search is not None
        self.looks += 1
        self.search.ended = self.looks > 400
        if self.rng.random() < 0.15:
            return None
        if self.rng.random() < 0.15:
            raise OutOfTimeError
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
        self, ceiling: int, shortest: int, longest: int, time_slice: TimeSlice, *, thorough: bool = True
    ) -> bool | None:
        self.asked.append((ceiling, shortest, longest))
        if len(self.asked) == self.most:
            self.stop.set()
        return None


def asked_of(refuter: _TellsNothing, lowers: bool) -> list[tuple[int, int, int]]:
    """Ceilings and ranges that a search asks of it."""
    refuter.lowers = lowers
    data = one_candidate_cluster(np.random.default_rng(2), "tree", (8, 4, 1), compute=2_000)
    racks = find_racks(data, data.candidates[0])
    assert racks is not None
    before = candidate_bound(data, data.candidates[0])
    RackSearch(data.candidates[0], racks, refuter, before, 2 * before).run(1e3, stop=refuter.stop)
    return refuter.asked


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


def test_a_better_plan_found_meanwhile_lowers_what_is_tried() -> None:
    """The ceiling is looked up again before each model, and the next one tried is at most what that leaves."""
    data = one_candidate_cluster(np.random.default_rng(2), "tree", (8, 4, 1), compute=2_000)
    racks = find_racks(data, data.candidates[0])
    assert racks is not None
    before = candidate_bound(data, data.candidates[0])
    refuter = _TellsNothing(3)
    search = RackSearch(data.candidates[0], racks, refuter, before, 2 * before)

    def ceiling_now() -> int:
        return before + before // 2 if len(refuter.asked) >= 2 else 2 * before

    search.run(1e3, stop=refuter.stop, ceiling_now=ceiling_now)
    ceilings = [ceiling for ceiling, _, _ in refuter.asked]
    tried = [(one - before) / before for one in ceilings]
    assert tried == pytest.approx([refuter.reach, refuter.reach, refuter.reach / 2], abs=1e-5)
    assert search.ceiling == before + before // 2


class _KnowsTheLeast(CellRefuter):
    """Refutes all that is below one objective, at once."""

    def __init__(self, least: int) -> None:
        self.least = least

    def __call__(
        self, ceiling: int, shortest: int, longest: int, time_slice: TimeSlice, *, thorough: bool = True
    ) -> bool | None:
        return ceiling < self.least


@pytest.mark.parametrize("first", [1.5, 100.0])
def test_how_finely_it_is_searched_follows_the_ceiling(first: float) -> None:
    """However high the first one was, and however short the first run."""
    data = one_candidate_cluster(np.random.default_rng(2), "tree", (8, 4, 1), compute=2_000)
    racks = find_racks(data, data.candidates[0])
    assert racks is not None
    before = candidate_bound(data, data.candidates[0])
    least, ceiling = int(1.2 * before), int(1.5 * before)
    search = RackSearch(data.candidates[0], racks, _KnowsTheLeast(least), before, int(first * before))
    search.run(0.0)
    search.run(1e3, ceiling_now=lambda: ceiling)
    assert search.ended
    assert least - (ceiling - before) * STEP <= search.bound <= least


class _HardSomewhere(CellRefuter):
    """Refutes everything, but takes long around one period, too long for what should soon be done."""

    joins = 8
    slice_share = 0.05

    def __init__(self, period: int) -> None:
        self.period = period
        self.failed: list[int] = []
        self.joined: list[int] = []

    def __call__(
        self, ceiling: int, shortest: int, longest: int, time_slice: TimeSlice, *, thorough: bool = True
    ) -> bool | None:
        if not thorough:
            self.joined.append(ceiling)
        if not shortest <= self.period <= longest:
            return True
        if not thorough:
            self.failed.append(ceiling)
            return None
        time.sleep(0.04)  # of a slice of a tenth of a second
        return True


def test_a_range_that_was_hard_is_tried_alone_from_then_on() -> None:
    """With the first ceiling nobody knows; with the next ones it is not joined with its neighbours again."""
    data = one_candidate_cluster(np.random.default_rng(2), "tree", (8, 4, 1), compute=2_000)
    candidate = data.candidates[0]
    racks = find_racks(data, candidate)
    assert racks is not None
    before = candidate_bound(data, candidate)
    whole = range_level(candidate, racks.costs, before + before // 4, int(racks.costs.window.min()), int(NEVER))
    assert whole is not None
    assert whole.longest is not None
    refuter = _HardSomewhere((int(whole.periods[0]) + whole.longest) // 2)
    RackSearch(candidate, racks, refuter, before, 2 * before).run(2.0)
    assert len(set(refuter.joined)) > 2
    assert set(refuter.failed) <= {min(refuter.joined)}


@pytest.mark.parametrize("lowers", [False, True])
def test_what_takes_too_long_is_tried_with_a_lower_ceiling(lowers: bool) -> None:
    """At once, or only where no range can be split."""
    asked = asked_of(_TellsNothing(3), lowers)
    ceilings = [ceiling for ceiling, _, _ in asked]
    assert len(set(ceilings)) == (3 if lowers else 1)
    assert ceilings == sorted(ceilings, reverse=True)


class _TakesTooLong(_TellsNothing):
    """Cannot tell, and needs longer than its slice to say so."""

    slice_share = 1e-5  # a hundredth of a second

    def __call__(
        self, ceiling: int, shortest: int, longest: int, time_slice: TimeSlice, *, thorough: bool = True
    ) -> bool | None:
        time.sleep(time_slice.ends - time.perf_counter() + 0.01)
        return super().__call__(ceiling, shortest, longest, time_slice, thorough=thorough)


@pytest.mark.parametrize("lowers", [False, True])
def test_where_parts_take_as_long_a_range_is_not_split_at_first(lowers: bool) -> None:
    """It is tried as a whole with a lower ceiling, and only then split; elsewhere it is split at once."""
    asked = asked_of(_TakesTooLong(3), lowers)
    widths = [longest - shortest for _, shortest, longest in asked]
    assert len({shortest for _, shortest, _ in asked}) == 1
    assert widths[1] == widths[0] if lowers else widths[1] < widths[0] / 2
    assert widths[2] < widths[1] / 2

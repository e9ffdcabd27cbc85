"""How a ceiling is refuted range by range of periods, whoever refutes."""

import threading
import time

import numpy as np
import pytest
from instances import one_candidate_cluster

from pipette_opt.base.types import P2PMode
from pipette_opt.problem.data import ProblemData
from pipette_opt.solver.bounds import candidate_bound
from pipette_opt.solver.classes.costs import NEVER, longest_period
from pipette_opt.solver.classes.racks import find_racks
from pipette_opt.solver.column_types import search as search_module
from pipette_opt.solver.column_types.search import FIRST_REACH, STEP, RackSearch
from pipette_opt.solver.stoppable import OutOfTimeError, TimeSlice


@pytest.fixture(autouse=True)
def _wide_ranges(monkeypatch: pytest.MonkeyPatch) -> None:
    """Few ranges at first, so that they can be split."""
    monkeypatch.setattr(search_module, "FIRST_PARTS", 16)


class _Unsteady:
    """Knows of one placement, and runs out of time at random."""

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


@pytest.mark.parametrize("p2p", ["blocking", "async"])
def test_periods_too_long_for_one_ceiling_come_back_at_the_next(p2p: P2PMode) -> None:
    """One placement; models run out of time at random, so ranges are split at ceilings that are too low."""
    data = one_candidate_cluster(np.random.default_rng(2), "tree", (8, 4, 1), p2p=p2p, compute=2_000)
    candidate = data.candidates[0]
    racks = find_racks(data, candidate)
    assert racks is not None
    shortest, rounds = int(racks.costs.window.min()), candidate.num_microbatches - 1
    floor = next(
        one
        for one in range(0, 1 << 30, 20_000)
        if longest_period(candidate, racks.costs, one, shortest, int(NEVER)) is not None
    )
    for seed in range(60):
        rng = np.random.default_rng(seed)
        ceiling = int(1.3 * floor)
        period = int(rng.integers(shortest, shortest + (ceiling - floor) // rounds))
        cost = next(
            one
            for one in range(floor, 2 * ceiling, 20_000)
            if longest_period(candidate, racks.costs, one, period, period)
        )
        refuter = _Unsteady(data, period, cost, rng)
        search = RackSearch(candidate, racks, refuter, floor, ceiling)
        refuter.search = search
        assert search.run(1e6) <= cost


class _TellsNothing:
    """Cannot tell, whatever it is asked, and says so at once; stops when asked often."""

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


def asked_of(refuter: _TellsNothing) -> list[tuple[int, int, int]]:
    """Ceilings and ranges that a search asks of it."""
    data = one_candidate_cluster(np.random.default_rng(2), "tree", (8, 4, 1), compute=2_000)
    racks = find_racks(data, data.candidates[0])
    assert racks is not None
    before = candidate_bound(data, data.candidates[0])
    RackSearch(data.candidates[0], racks, refuter, before, 2 * before).run(1e3, stop=refuter.stop)
    return refuter.asked


def test_what_was_told_in_time_is_not_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not even when a slice had less than its time: the range is split."""
    monkeypatch.setattr(search_module, "SLICE_SHARE", 2.0)  # each slice is cut short by the end of the run
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
    assert tried == pytest.approx([FIRST_REACH, FIRST_REACH / 2, FIRST_REACH / 8], abs=1e-5)
    assert search.ceiling == before + before // 2


class _KnowsTheLeast:
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


class _HardSomewhere:
    """Refutes everything, but takes long around one period, too long for what should soon be done."""

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


def test_a_range_that_was_hard_is_tried_alone_from_then_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """With the first ceiling nobody knows; with the next ones it is not joined with its neighbours again."""
    data = one_candidate_cluster(np.random.default_rng(2), "tree", (8, 4, 1), compute=2_000)
    candidate = data.candidates[0]
    racks = find_racks(data, candidate)
    assert racks is not None
    before = candidate_bound(data, candidate)
    shortest = int(racks.costs.window.min())
    longest = longest_period(candidate, racks.costs, before + before // 4, shortest, int(NEVER))
    assert longest is not None
    monkeypatch.setattr(search_module, "MOST_JOINED", 8)
    monkeypatch.setattr(search_module, "SLICE_SHARE", 0.05)
    refuter = _HardSomewhere((shortest + longest) // 2)
    RackSearch(candidate, racks, refuter, before, 2 * before).run(2.0)
    assert len(set(refuter.joined)) > 2
    assert set(refuter.failed) <= {min(refuter.joined)}


def test_what_takes_too_long_is_tried_with_a_lower_ceiling() -> None:
    """Half as far from the bound."""
    asked = asked_of(_TellsNothing(3))
    ceilings = [ceiling for ceiling, _, _ in asked]
    assert len(set(ceilings)) == 3
    assert ceilings == sorted(ceilings, reverse=True)


class _TakesTooLong(_TellsNothing):
    """Cannot tell, and needs longer than its slice to say so."""

    def __call__(
        self, ceiling: int, shortest: int, longest: int, time_slice: TimeSlice, *, thorough: bool = True
    ) -> bool | None:
        time.sleep(time_slice.ends - time.perf_counter() + 0.01)
        return super().__call__(ceiling, shortest, longest, time_slice, thorough=thorough)


def test_where_parts_take_as_long_a_range_is_not_split_at_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is tried as a whole with a lower ceiling, and only then split."""
    monkeypatch.setattr(search_module, "SLICE_SHARE", 1e-5)  # a hundredth of a second
    asked = asked_of(_TakesTooLong(3))
    widths = [longest - shortest for _, shortest, longest in asked]
    assert len({shortest for _, shortest, _ in asked}) == 1
    assert widths[1] == widths[0]
    assert widths[2] < widths[1] / 2

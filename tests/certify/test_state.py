"""What a search state proves, by hand."""

from dataclasses import replace

import numpy as np
import pytest
from factories import bare_problem
from instances import Variant, random_problem

from pipette_opt.certify.params import OptimizeParams
from pipette_opt.certify.state import PATHS, OpenCandidate, SearchState
from pipette_opt.plans.clock import Clock


@pytest.fixture
def state() -> SearchState:
    """Two open candidates with bounds of 300 and 200 ticks."""
    data = random_problem(np.random.default_rng(0), [(2, 1, 1), (3, 1, 1)], 4, Variant())
    state = SearchState(bare_problem(data), [], OptimizeParams(), Clock())
    for index, (candidate, ticks) in enumerate(zip(data.candidates, (300, 200), strict=True)):
        deciding = np.ones(candidate.num_stages, dtype=np.bool_)
        state.add_open(OpenCandidate(index=index, candidate=candidate, bound_ticks=ticks, deciding=deciding))
    return state


def test_bound_is_the_least_of_all_and_the_fastest(state: SearchState) -> None:
    """A bound only rises, however it is raised; it is never above the fastest plan."""
    tick_s, (first, second) = state.data.tick_s, state.open
    assert state.bound_s == pytest.approx(200 * tick_s)
    state.raise_ticks(second, 100)
    assert state.bound_s == pytest.approx(200 * tick_s)
    state.raise_ticks(second, 400)
    assert state.bound_s == pytest.approx(300 * tick_s)
    state.raise_bound(first.candidate.config, 350 * tick_s, "by hand")
    assert state.bound_s == pytest.approx(350 * tick_s)
    state.fastest_s = 240 * tick_s
    assert state.bound_s == 240 * tick_s
    assert state.is_over


def test_other_numbers_of_gpus_and_layers_count(state: SearchState) -> None:
    """Plans that are not listed may be the fastest, too."""
    tick_s = state.data.tick_s
    state.prepared = replace(state.prepared, other_sizes_s=150 * tick_s)
    assert state.bound_s == state.listed_bound_s == pytest.approx(150 * tick_s)
    state.prepared = replace(state.prepared, other_splits_s=120 * tick_s)
    assert (state.bound_s, state.listed_bound_s) == pytest.approx((120 * tick_s, 150 * tick_s))


def test_what_cannot_win_is_left_out(state: SearchState) -> None:
    """The most promising candidate is first; at the fastest time itself nothing is left to win."""
    first, second = state.open
    assert state.could_win() == [second, first]
    state.fastest_s = 300 * state.data.tick_s
    assert state.could_win() == [second]
    assert state.may_be_faster(second)
    assert not state.may_be_faster(first)
    assert not state.is_over
    state.clock.stop.set()
    assert state.is_over


def test_who_raised_a_bound_last_is_named(state: SearchState) -> None:
    """A smaller bound changes nothing; a configuration that is ruled out keeps the reason, and its bound may rise."""
    entry, tick_s = state.open[0], state.data.tick_s
    config = entry.candidate.config
    assert state.reason(config) == ("search", PATHS, 300 * tick_s)
    state.raise_ticks(entry, 310, "class-assignment")
    state.raise_ticks(entry, 305, "cp-sat-model")
    assert state.reason(config) == ("search", "class-assignment", 310 * tick_s)
    state.fastest_s = 310 * tick_s
    state.raise_bound(config, 320 * tick_s, "branch and bound over hosts")
    assert state.reason(config) == ("search", "class-assignment", 310 * tick_s)
    assert state.bound_of(config) == 320 * tick_s


def test_reason_is_that_of_the_last_step_that_a_tile_needed(state: SearchState) -> None:
    """A configuration that one host tile needed a search for is the search's, with the least bound of its tiles."""
    candidate = state.data.candidates[0]
    other = replace(candidate, tile=replace(candidate.tile, contiguous=not candidate.tile.contiguous))
    prepared = replace(state.prepared, problem=replace(state.data, candidates=(candidate, other)))
    state = SearchState(prepared, [], state.params, Clock())
    state.add_open(OpenCandidate(index=0, candidate=candidate, bound_ticks=300, deciding=np.ones(2, dtype=np.bool_)))
    state.raise_bound(candidate.config, 1e-6, "best links", "best links", other.tile)
    assert state.reason(candidate.config) == ("search", PATHS, 1e-6)
    state.raise_bound(candidate.config, 1e6, "judge over best links", "judge over best links")
    assert state.reason(candidate.config) == ("judge over best links", "judge over best links", 1e6)
    assert list(state.reasons()) == [candidate.config]


def test_bounds_stay_when_more_configurations_are_searched(state: SearchState) -> None:
    """So do candidates that are open."""
    before, opened = state.bound_s, state.open.copy()
    state.go_on_with(state.prepared)
    assert state.bound_s == before
    assert state.open == opened

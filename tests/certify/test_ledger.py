"""What a ledger proves, by hand."""

from dataclasses import replace
from types import SimpleNamespace
from typing import cast

import numpy as np
import pytest
from instances import Variant, random_problem

from pipette_opt.certify.ledger import PATHS, Ledger, OpenCandidate, OptimizeParams
from pipette_opt.plans.clock import Clock
from pipette_opt.prepare import Prepared


@pytest.fixture
def ledger() -> Ledger:
    """Of two open candidates with bounds of 300 and 200 ticks."""
    data = random_problem(np.random.default_rng(0), [(2, 1, 1), (3, 1, 1)], 4, Variant(p2p="blocking"))
    prepared = cast(Prepared, SimpleNamespace(lower=data, ruled_out_s=float("inf"), joined=None))
    one = Ledger(prepared, [], OptimizeParams(time_limit_s=60.0), Clock())
    for index, (candidate, ticks) in enumerate(zip(data.candidates, (300, 200), strict=True)):
        deciding = np.ones(candidate.num_stages, dtype=np.bool_)
        one.open.append(OpenCandidate(index=index, candidate=candidate, bound_ticks=ticks, deciding=deciding))
    return one


def test_bound_is_the_least_of_open_closed_and_fastest(ledger: Ledger) -> None:
    """A bound of a candidate only rises; one that is closed counts as well, and a plan that was found."""
    tick_s = ledger.data.tick_s
    assert ledger.bound_s == pytest.approx(200 * tick_s)
    ledger.open[1].raise_bound(100)
    assert ledger.bound_s == pytest.approx(200 * tick_s)
    ledger.open[1].raise_bound(400)
    assert ledger.bound_s == pytest.approx(300 * tick_s)
    ledger.close(250 * tick_s)
    ledger.close(260 * tick_s)
    assert ledger.bound_s == pytest.approx(250 * tick_s)
    ledger.fastest_s = 240 * tick_s
    assert ledger.bound_s == 240 * tick_s
    assert ledger.is_over


def test_what_cannot_win_is_left_out(ledger: Ledger) -> None:
    """The most promising candidate is first; at the fastest time itself nothing is left to win."""
    first, second = ledger.open
    assert ledger.could_win() == [second, first]
    ledger.fastest_s = 300 * ledger.data.tick_s
    assert ledger.could_win() == [second]
    assert ledger.may_be_faster(second)
    assert not ledger.may_be_faster(first)
    assert not ledger.is_over
    ledger.clock.stop.set()
    assert ledger.is_over


def test_who_rules_out_is_named_by_the_last_step_that_a_packing_needed(ledger: Ledger) -> None:
    """What raised a bound last is its name; a configuration that one packing needed a search for is the search's."""
    first, second = (one.candidate.config for one in ledger.open)
    assert ledger.reasons()[first] == ("search", PATHS, 300 * ledger.data.tick_s)
    ledger.open[0].raise_bound(310, "class-assignment")
    ledger.open[0].raise_bound(305, "class-assignment")
    assert ledger.reasons()[first] == ("search", "class-assignment", 310 * ledger.data.tick_s)
    both = replace(ledger.data.candidates[1], config=first)
    ledger.data = replace(ledger.data, candidates=(ledger.data.candidates[0], both))
    ledger.close(5.0, ledger.open.pop().index, "judge over best links")
    assert second not in ledger.reasons()
    assert ledger.reasons()[first] == ("search", "class-assignment", min(310 * ledger.data.tick_s, 5.0))
    ledger.open.clear()
    ledger.close(7.0, 0)
    assert ledger.reasons()[first] == ("judge over best links", "judge over best links", 5.0)

"""When proving ends."""

from types import SimpleNamespace

import numpy as np
import pytest
from factories import bare_problem
from instances import Variant, random_problem

from pipette_opt.certify import proving
from pipette_opt.certify.params import OptimizeParams
from pipette_opt.certify.state import OpenCandidate, SearchState
from pipette_opt.plans.clock import Clock
from pipette_opt.plans.steps import PROVERS


def opened() -> SearchState:
    """Return a search with an open candidate, without a bound."""
    data = random_problem(np.random.default_rng(0), [(2, 1, 1)], 4, Variant())
    state = SearchState(bare_problem(data), [], OptimizeParams(time_limit_s=60.0), Clock().after(60.0))
    deciding = np.ones(data.candidates[0].num_stages, dtype=np.bool_)
    state.add_open(OpenCandidate(index=0, candidate=data.candidates[0], bound_ticks=0, deciding=deciding))
    return state


@pytest.mark.parametrize(("rising", "rounds"), [(0, 2), (3, 4)])
def test_engines_that_can_do_nothing_more_end_it(rising: int, rounds: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A round with all the time there is that returns without a better bound is the last, whatever time is left."""
    state, shares = opened(), list[float]()

    def one_round(state: SearchState, able: list[OpenCandidate], seconds: float) -> SimpleNamespace:
        shares.append(seconds / state.clock.left_s)
        if len(shares) <= rising:
            state.raise_ticks(able[0], able[0].bound_ticks + 1)
        return SimpleNamespace(status="FEASIBLE", solutions=())

    monkeypatch.setattr(proving, "_solve_once", one_round)
    proving.prove(state, state.clock.step(PROVERS))
    assert shares == pytest.approx([0.5, *[1.0] * (rounds - 1)], abs=0.01)


def test_configurations_that_are_to_join_come_before_a_long_proof(monkeypatch: pytest.MonkeyPatch) -> None:
    """After a turn of half of the time the provers stop, and have work again in the next round."""
    state, shares = opened(), list[float]()

    def one_round(state: SearchState, able: list[OpenCandidate], seconds: float) -> SimpleNamespace:
        shares.append(seconds / state.clock.left_s)
        return SimpleNamespace(status="FEASIBLE", solutions=())

    monkeypatch.setattr(proving, "_solve_once", one_round)
    monkeypatch.setattr(proving, "adds_configurations", lambda state: True)
    state.done[PROVERS] = "open"
    proving.prove(state, state.clock.step(PROVERS))
    assert shares == pytest.approx([0.5], abs=0.01)
    assert PROVERS not in state.done
    assert not any(entry.is_proven for entry in state.open)

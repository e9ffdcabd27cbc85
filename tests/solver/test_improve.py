"""Something that looks for solutions beside the proof."""

import threading
import time
from collections.abc import Callable

import numpy as np
import pytest
from instances import best_by_enumeration, one_candidate_cluster

from pipette_opt.problem.objective import objective_ticks
from pipette_opt.problem.solution import Solution
from pipette_opt.solver.params import SolverParams
from pipette_opt.solver.solve import solve

Offer = Callable[[Solution], None]


def test_what_it_finds_is_used_until_the_time_is_over() -> None:
    """A placement offered beside the proof is the incumbent, and its objective is computed again."""
    data = one_candidate_cluster(np.random.default_rng(0), "unif", (16, 8, 1))
    nodes = np.arange(128).reshape(16, 8, 1)
    ended: list[threading.Event] = []

    def improve(offer: Offer, end: threading.Event) -> None:
        offer(Solution(candidate=0, nodes=nodes, objective_ticks=1))
        ended.append(end)
        end.wait()

    started = time.perf_counter()
    result = solve(data, SolverParams(time_limit_s=1.0, workers=2), improve=improve)
    assert time.perf_counter() - started < 5.0
    assert result.solution is not None
    assert result.solution.objective_ticks <= objective_ticks(data, data.candidates[0], nodes)
    assert result.lower_bound_ticks > 1
    assert ended[0].is_set()


def test_a_closed_proof_does_not_wait_for_it() -> None:
    """It is told to end as soon as the optimum is proven."""
    data = one_candidate_cluster(np.random.default_rng(0), "unif", (2, 2, 1))

    def improve(offer: Offer, end: threading.Event) -> None:
        end.wait()

    started = time.perf_counter()
    result = solve(data, SolverParams(time_limit_s=60.0, workers=2), improve=improve)
    assert time.perf_counter() - started < 20.0
    assert result.status == "OPTIMAL"
    assert result.lower_bound_ticks == best_by_enumeration(data, data.candidates[0])


def test_its_errors_are_raised() -> None:
    """A mistake there is not silent."""
    data = one_candidate_cluster(np.random.default_rng(0), "unif", (2, 2, 1))

    def improve(offer: Offer, end: threading.Event) -> None:
        raise RuntimeError("no luck")

    with pytest.raises(RuntimeError, match="no luck"):
        solve(data, SolverParams(time_limit_s=1.0, workers=2), improve=improve)


def test_the_threads_of_an_ended_proof_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """From the incumbent, beside what looked for solutions before, until the time is over; errors are raised."""
    data = one_candidate_cluster(np.random.default_rng(0), "unif", (4, 3, 1))
    given = Solution(candidate=0, nodes=np.arange(12).reshape(4, 3, 1), objective_ticks=1)
    better = Solution(candidate=0, nodes=np.arange(12)[::-1].reshape(4, 3, 1), objective_ticks=1)
    ticks = [objective_ticks(data, data.candidates[0], one.nodes) for one in (given, better)]
    assert ticks[0] != ticks[1]
    told: list[int] = []

    def improve(offer: Offer, end: threading.Event) -> None:
        offer(given)
        end.wait()

    def go_on(incumbent: Solution | None, offer: Offer, end: threading.Event) -> None:
        assert incumbent is not None
        told.append(incumbent.objective_ticks)
        offer(better)
        end.wait()

    def fail(incumbent: Solution | None, offer: Offer, end: threading.Event) -> None:
        raise RuntimeError("no luck")

    params = SolverParams(time_limit_s=1.0, workers=2)
    monkeypatch.setattr("pipette_opt.solver.solve._work", lambda incumbent, portfolio: time.sleep(0.2))
    started = time.perf_counter()
    result = solve(data, params, improve=improve, go_on=go_on)
    assert 0.9 < time.perf_counter() - started < 5.0
    assert told == [ticks[0]]
    assert result.solution is not None
    assert result.solution.objective_ticks == min(ticks)
    with pytest.raises(RuntimeError, match="no luck"):
        solve(data, params, improve=improve, go_on=fail)


def test_nothing_goes_on_after_a_closed_proof() -> None:
    """There is nothing left to find."""
    data = one_candidate_cluster(np.random.default_rng(0), "unif", (2, 2, 1))
    called: list[bool] = []
    result = solve(
        data,
        SolverParams(time_limit_s=60.0, workers=2),
        improve=lambda offer, end: None,
        go_on=lambda incumbent, offer, end: called.append(True),
    )
    assert result.status == "OPTIMAL"
    assert not called

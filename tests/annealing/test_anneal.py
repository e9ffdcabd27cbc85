"""Annealing: valid answers, reproducible, close to the optimum where that is known."""

import threading
from collections.abc import Callable
from dataclasses import replace
from typing import Literal

import numpy as np
import pytest
from instances import SMALL_SHAPES, Variant, best_by_enumeration, one_candidate_cluster, random_problem

from pipette_opt.annealing.anneal import MIN_LONG_MOVES, AnnealingParams, anneal, load_replicas
from pipette_opt.annealing.candidate_search import CandidateSearch
from pipette_opt.problem.best_links import optimistic_ticks
from pipette_opt.problem.data import UNUSABLE_TICKS
from pipette_opt.problem.objective import objective_ticks

pytestmark = pytest.mark.search

PARAMS = AnnealingParams(time_limit_s=None, max_moves=20_000, first_moves=5_000)
Which = Literal["tuned", "pipette"]


@pytest.mark.parametrize("variant", ["tuned", "pipette"])
@pytest.mark.parametrize("p2p", ["blocking", "async"])
def test_small_problems_against_enumeration(p2p: Literal["blocking", "async"], variant: Which) -> None:
    """
    Hosts are distinct and have the memory, links exist, the objective is the plain one and no better than optimal.

    On so few hosts the tuned annealer always finds the optimum; Pipette's is stuck in a local one now and then.
    """
    rng = np.random.default_rng(0)
    missed = 0
    for shape in SMALL_SHAPES:
        kind = Variant(p2p=p2p, missing_share=0.1, num_kinds=2, num_capacities=2, exact_share=0.6)
        data = random_problem(rng, [shape], 5, kind)
        candidate = data.candidates[0]
        optimum = best_by_enumeration(data, candidate)
        result = anneal(data, replace(PARAMS, variant=variant))
        if optimum >= UNUSABLE_TICKS:
            assert result.solution is None
            assert result.status in ("INFEASIBLE", "UNKNOWN")
            continue
        assert result.solution is not None
        nodes = result.solution.nodes
        assert len(np.unique(nodes)) == candidate.num_cells
        assert data.allowed(candidate)[np.arange(shape[0])[:, None, None], nodes].all()
        assert result.solution.objective_ticks == objective_ticks(data, candidate, nodes) >= optimum
        assert result.lower_bound_ticks <= optimum
        missed += result.solution.objective_ticks > optimum
    assert missed <= (0 if variant == "tuned" else 2)


def test_optimistic_time_is_below_every_placement() -> None:
    """Also of candidates that use several kinds of host, and without room it says so."""
    rng = np.random.default_rng(1)
    for shape in SMALL_SHAPES * 2:
        kind = Variant(missing_share=0.2, num_kinds=3, num_capacities=3, exact_share=0.5)
        data = random_problem(rng, [shape], 5, kind)
        assert optimistic_ticks(data, data.candidates[0]) <= best_by_enumeration(data, data.candidates[0])


@pytest.mark.parametrize("variant", ["tuned", "pipette"])
def test_same_seed_same_answer(variant: Which) -> None:
    """With a budget of moves the seed decides everything."""
    data = one_candidate_cluster(np.random.default_rng(0), "unif", (4, 4, 1), num_nodes=18)
    first, again, other = (anneal(data, replace(PARAMS, variant=variant, seed=seed)) for seed in (3, 3, 4))
    assert first.solution is not None
    assert again.solution is not None
    assert other.solution is not None
    assert (first.solution.nodes == again.solution.nodes).all()
    assert (first.solution.nodes != other.solution.nodes).any()


@pytest.mark.parametrize("kind", ["unif", "tree"])
def test_tuned_beats_random_and_is_no_worse_than_pipettes(kind: str) -> None:
    """Equal moves on 32 hosts, two seeds."""
    for seed in range(2):
        data = one_candidate_cluster(np.random.default_rng(seed), kind, (8, 4, 1))
        values = []
        for variant in ("tuned", "pipette"):
            params = AnnealingParams(variant=variant, time_limit_s=None, max_moves=100_000, seed=seed)  # type: ignore[arg-type]
            result = anneal(data, params)
            assert result.solution is not None
            values.append(result.solution.objective_ticks)
        shuffled = np.random.default_rng(seed).permutation(32).reshape(8, 4, 1)
        assert values[0] <= values[1] < objective_ticks(data, data.candidates[0], shuffled)


def test_pool_has_one_placement_per_candidate() -> None:
    """Best first, without the best itself; only the candidates asked for."""
    data = random_problem(np.random.default_rng(2), [(2, 2, 1), (4, 1, 1), (1, 4, 1), (2, 2, 1)], 6, Variant())
    params = replace(PARAMS, pool_gap=100.0, max_moves=100_000)
    result = anneal(data, params)
    assert result.solution is not None
    everything = [result.solution, *result.pool]
    values = [one.objective_ticks for one in everything]
    assert values == sorted(values)
    assert sorted(one.candidate for one in everything) == [0, 1, 2, 3]
    some = anneal(data, params, candidates=[1, 2])
    assert some.solution is not None
    assert {some.solution.candidate, *(one.candidate for one in some.pool)} == {1, 2}


def test_time_limit_and_stop_are_kept() -> None:
    """A second is a second, and an event that is set ends it after the first restart."""
    data = one_candidate_cluster(np.random.default_rng(0), "unif", (8, 8, 1))
    anneal(data, PARAMS)  # compiled
    load_replicas(data)
    assert anneal(data, AnnealingParams(time_limit_s=0.5)).wall_time_s < 1.5
    stop = threading.Event()
    stop.set()
    result = anneal(data, AnnealingParams(time_limit_s=60.0), stop=stop)
    assert result.wall_time_s < 5.0
    assert result.solution is not None


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"time_limit_s": None, "max_moves": None}, "time_limit_s or max_moves"),
        ({"time_limit_s": -1.0}, "time_limit_s"),
        ({"max_moves": 0}, "max_moves"),
        ({"first_moves": 0}, "first_moves"),
        ({"hot": 0.1, "cold": 0.2}, "temperatures"),
        ({"pool_gap": -0.1}, "pool_gap"),
        ({"pool_size": -1}, "pool_size"),
    ],
)
def test_params_are_checked(changes: dict, field: str) -> None:
    """A setting that makes no sense names itself."""
    with pytest.raises(ValueError, match=field):
        replace(PARAMS, **changes)


def test_a_long_limit_does_not_delay_what_a_short_one_finds(monkeypatch: pytest.MonkeyPatch) -> None:
    """
    On large grids a run does what a shorter one did but for its last restart, which has as many moves as are left.

    No restart is much longer than all before it, so that whoever stops early has what they found.
    """
    data = one_candidate_cluster(np.random.default_rng(0), "tree", (16, 16, 1))
    lengths: list[int] = []
    best: list[int] = []
    restart = CandidateSearch.restart

    def noted(search: CandidateSearch, moves: int, is_over: Callable[[], bool]) -> None:
        lengths.append(moves)
        restart(search, moves, is_over)
        best.append(search.best)

    def told(max_moves: int, time_limit_s: float | None) -> list[int]:
        best.clear()
        params = AnnealingParams(time_limit_s=time_limit_s, max_moves=max_moves)
        assert anneal(data, params).solution is not None
        return list(best)

    monkeypatch.setattr(CandidateSearch, "restart", noted)
    short = told(500_000, 1_000.0)
    assert short == told(500_000, None)
    lengths.clear()
    long = told(1_500_000, 1_000.0)
    assert len(short) > 3
    assert long[: len(short) - 1] == short[:-1]
    for number, moves in enumerate(lengths):
        assert moves <= max(MIN_LONG_MOVES, sum(lengths[:number]) // 2)
    assert max(lengths) > 2 * MIN_LONG_MOVES

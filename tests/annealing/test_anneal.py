"""Annealing: valid answers, reproducible, close to the optimum where that is known."""

import threading
from dataclasses import replace

import numpy as np
import pytest
from instances import SMALL_SHAPES, Variant, best_by_enumeration, one_candidate_cluster, random_problem

from pipette_opt.annealing.anneal import MAX_ALONE_MOVES, AnnealingParams, anneal
from pipette_opt.annealing.candidate_search import CandidateSearch
from pipette_opt.problem.best_links import optimistic_ticks
from pipette_opt.problem.data import UNUSABLE_TICKS, ProblemData
from pipette_opt.problem.objective import objective_ticks

pytestmark = pytest.mark.search

PARAMS = AnnealingParams(time_limit_s=None, max_moves=20_000, first_moves=5_000)


def test_small_problems_against_enumeration() -> None:
    """
    Hosts are distinct and have the memory, links exist, the objective is the plain one.

    On so few hosts the annealer always finds the optimum.
    """
    rng = np.random.default_rng(0)
    for shape in SMALL_SHAPES:
        kind = Variant(missing_share=0.1, num_kinds=2, num_capacities=2)
        data = random_problem(rng, [shape], 5, kind)
        candidate = data.candidates[0]
        optimum = best_by_enumeration(data, candidate)
        result = anneal(data, PARAMS)
        if optimum >= UNUSABLE_TICKS:
            assert result.solution is None
            assert result.status in ("INFEASIBLE", "UNKNOWN")
            continue
        assert result.solution is not None
        nodes = result.solution.nodes
        assert len(np.unique(nodes)) == candidate.num_cells
        assert data.allowed(candidate)[np.arange(shape[0])[:, None, None], nodes].all()
        assert result.solution.objective_ticks == objective_ticks(data, candidate, nodes) == optimum
        assert result.lower_bound_ticks <= optimum


def test_optimistic_time_is_below_every_placement() -> None:
    """Also of candidates that use several kinds of host, and without room it says so."""
    rng = np.random.default_rng(1)
    for shape in SMALL_SHAPES * 2:
        kind = Variant(missing_share=0.2, num_kinds=3, num_capacities=3)
        data = random_problem(rng, [shape], 5, kind)
        assert optimistic_ticks(data, data.candidates[0]) <= best_by_enumeration(data, data.candidates[0])


def test_same_seed_same_answer() -> None:
    """With a budget of moves the seed decides everything."""
    data = one_candidate_cluster(np.random.default_rng(0), "unif", (4, 4, 1), num_nodes=18)
    first, again, other = (anneal(data, replace(PARAMS, seed=seed)) for seed in (3, 3, 4))
    assert first.solution is not None
    assert again.solution is not None
    assert other.solution is not None
    assert (first.solution.nodes == again.solution.nodes).all()
    assert (first.solution.nodes != other.solution.nodes).any()


def test_pool_has_one_placement_per_candidate() -> None:
    """Best first, without the best itself."""
    data = random_problem(np.random.default_rng(2), [(2, 2, 1), (4, 1, 1), (1, 4, 1), (2, 2, 1)], 6, Variant())
    params = replace(PARAMS, pool_gap=100.0, max_moves=100_000)
    result = anneal(data, params)
    assert result.solution is not None
    everything = [result.solution, *result.pool]
    values = [one.objective_ticks for one in everything]
    assert values == sorted(values)
    assert sorted(one.candidate for one in everything) == [0, 1, 2, 3]


def test_candidates_of_a_shape_share_placements() -> None:
    """The second candidate has another weight of rings; annealed for few moves, it profits from the first one's."""
    first = one_candidate_cluster(np.random.default_rng(0), "tree", (4, 4, 1), ring_share=1.0)
    second = one_candidate_cluster(np.random.default_rng(0), "tree", (4, 4, 1), ring_share=1.01)
    both = ProblemData(
        candidates=(first.candidates[0], second.candidates[0]),
        p2p=first.p2p,
        tick_s=first.tick_s,
        kind_of_node=first.kind_of_node,
        capacity_mib=first.capacity_mib,
    )
    params = AnnealingParams(time_limit_s=None, max_moves=300_000, first_moves=5_000, seed=3)
    result = anneal(both, params)
    assert result.solution is not None
    values = {one.candidate: one.objective_ticks for one in (result.solution, *result.pool)}
    for index, candidate in enumerate(both.candidates):
        nodes = next(one.nodes for one in (result.solution, *result.pool) if one.candidate != index)
        assert values[index] <= objective_ticks(both, candidate, nodes)


def test_a_known_placement_is_never_lost() -> None:
    """With hardly a move, the result is as good as the best placement given; one that breaks a rule is ignored."""
    data = one_candidate_cluster(np.random.default_rng(1), "unif", (4, 4, 1))
    known = anneal(data, PARAMS).solution
    assert known is not None
    broken = replace(known, nodes=np.zeros((4, 4, 1)))
    found = anneal(data, AnnealingParams(time_limit_s=None, max_moves=1, seed=7), start=[broken, known]).solution
    assert found is not None
    assert found.objective_ticks == known.objective_ticks


def test_time_limit_and_stop_are_kept() -> None:
    """A second is a second, and an event that is set ends it after the first restart."""
    data = one_candidate_cluster(np.random.default_rng(0), "unif", (8, 8, 1))
    anneal(data, PARAMS)  # compiled
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


def test_the_last_candidate_is_annealed_in_short_restarts(monkeypatch: pytest.MonkeyPatch) -> None:
    """
    Restarts double; of a single candidate, none is longer than ``MAX_ALONE_MOVES``.

    With equal moves, a time limit that is not reached changes nothing.
    """
    data = one_candidate_cluster(np.random.default_rng(0), "tree", (8, 4, 1))
    lengths: list[int] = []
    best: list[int] = []
    restart = CandidateSearch.restart

    def noted(search: CandidateSearch, moves: int) -> None:
        lengths.append(moves)
        restart(search, moves)
        best.append(search.best)

    def told(time_limit_s: float | None) -> list[int]:
        best.clear()
        params = AnnealingParams(time_limit_s=time_limit_s, max_moves=500_000)
        assert anneal(data, params).solution is not None
        return list(best)

    monkeypatch.setattr(CandidateSearch, "restart", noted)
    short = told(1_000.0)
    assert short == told(None)
    assert short == sorted(short, reverse=True)
    assert lengths[:3] == [20_000, 40_000, 80_000]
    assert max(lengths) == MAX_ALONE_MOVES

"""Pipette's annealing: valid placements near the optimum, by the seed alone; ours is no worse in as many moves."""

import threading

import numpy as np
import pytest
from instances import SMALL_SHAPES, Variant, best_by_enumeration, one_candidate_cluster, random_problem

from pipette_opt.annealing.anneal import AnnealingParams, anneal
from pipette_opt.baselines.pipette import PipetteParams, pipette
from pipette_opt.problem.data import UNUSABLE_TICKS
from pipette_opt.problem.objective import objective_ticks

pytestmark = pytest.mark.search


def test_small_problems_against_enumeration() -> None:
    """Hosts are distinct and have the memory, links exist; it is stuck in a local optimum now and then."""
    rng = np.random.default_rng(0)
    missed = 0
    for shape in SMALL_SHAPES:
        data = random_problem(rng, [shape], 5, Variant(missing_share=0.1, num_kinds=2, num_capacities=2))
        candidate = data.candidates[0]
        optimum = best_by_enumeration(data, candidate)
        result = pipette(data, PipetteParams(time_limit_s=None, max_moves=20_000))
        if optimum >= UNUSABLE_TICKS:
            assert result.solution is None
            continue
        assert result.solution is not None
        nodes = result.solution.nodes
        assert len(np.unique(nodes)) == candidate.num_cells
        assert data.allowed(candidate)[np.arange(shape[0])[:, None, None], nodes].all()
        assert result.solution.objective_ticks == objective_ticks(data, candidate, nodes) >= optimum
        assert result.lower_bound_ticks <= optimum
        missed += result.solution.objective_ticks > optimum
    assert missed <= 2


def test_same_seed_same_answer() -> None:
    """With a number of moves the seed decides everything."""
    data = one_candidate_cluster(np.random.default_rng(0), "unif", (4, 4, 1), num_nodes=18)
    params = [PipetteParams(time_limit_s=None, max_moves=20_000, seed=seed) for seed in (3, 3, 4)]
    first, again, other = (pipette(data, each).solution for each in params)
    assert first is not None
    assert again is not None
    assert other is not None
    assert (first.nodes == again.nodes).all()
    assert (first.nodes != other.nodes).any()


@pytest.mark.parametrize("kind", ["unif", "tree"])
def test_ours_is_no_worse_in_as_many_moves(kind: str) -> None:
    """32 hosts, two seeds; both are better than hosts at random."""
    for seed in range(2):
        data = one_candidate_cluster(np.random.default_rng(seed), kind, (8, 4, 1))
        ours = anneal(data, AnnealingParams(time_limit_s=None, max_moves=100_000, seed=seed)).solution
        theirs = pipette(data, PipetteParams(time_limit_s=None, max_moves=100_000, seed=seed)).solution
        assert ours is not None
        assert theirs is not None
        shuffled = np.random.default_rng(seed).permutation(32).reshape(8, 4, 1)
        assert ours.objective_ticks <= theirs.objective_ticks < objective_ticks(data, data.candidates[0], shuffled)


def test_every_candidate_is_placed_by_every_thread() -> None:
    """The best of two threads is no worse than the first alone; the pool has a placement of each candidate."""
    data = random_problem(np.random.default_rng(2), [(2, 2, 1), (4, 1, 1), (1, 4, 1)], 6, Variant())
    alone, both = (
        pipette(data, PipetteParams(time_limit_s=None, max_moves=60_000, workers=workers)) for workers in (1, 2)
    )
    assert alone.solution is not None
    assert both.solution is not None
    assert sorted(one.candidate for one in both.solutions) == [0, 1, 2]
    assert both.solution.objective_ticks <= alone.solution.objective_ticks


def test_time_limit_and_stop_are_kept() -> None:
    """Half a second is half a second; an event that is set ends it with the first candidate placed."""
    data = one_candidate_cluster(np.random.default_rng(0), "unif", (8, 8, 1))
    pipette(data, PipetteParams(time_limit_s=None, max_moves=1))  # compiled
    assert pipette(data, PipetteParams(time_limit_s=0.5)).wall_time_s < 1.5
    stop = threading.Event()
    stop.set()
    result = pipette(data, PipetteParams(time_limit_s=60.0), stop)
    assert result.wall_time_s < 5.0
    assert result.solution is not None

"""Annealing and proof side by side on threads."""

import threading
import time
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from instances import one_candidate_cluster, several_shapes

from pipette_opt.annealing.anneal import AnnealingParams, anneal, load_replicas
from pipette_opt.problem.data import UNUSABLE_TICKS, ProblemData
from pipette_opt.problem.objective import objective_ticks
from pipette_opt.problem.solution import Result, Solution
from pipette_opt.solver.search.params import SearchParams
from pipette_opt.solver.search.run import search


@pytest.mark.parametrize("workers", [1, 2])
def test_threads_find_and_prove_the_optimum(workers: int) -> None:
    """As enumeration says; progress only improves."""
    data, optimum = several_shapes()
    told: list[tuple[int, int]] = []

    def on_progress(elapsed_s: float, incumbent: int | None, bound: int) -> None:
        told.append((UNUSABLE_TICKS if incumbent is None else incumbent, bound))

    result = search(data, SearchParams(time_limit_s=30.0, workers=workers), on_progress=on_progress)
    assert result.status == "OPTIMAL"
    assert result.lower_bound_ticks == optimum
    assert result.solution is not None
    assert objective_ticks(data, data.candidates[result.solution.candidate], result.solution.nodes) == optimum
    assert all(a[0] >= b[0] and a[1] <= b[1] for a, b in pairwise(told))


def test_deterministic_runs_repeat() -> None:
    """The same seed gives the same placement."""
    data, _ = several_shapes()
    params = SearchParams(time_limit_s=300.0, deterministic=True, seed=5)
    first, again = search(data, params), search(data, params)
    assert first.solution is not None
    assert again.solution is not None
    assert first.solution.candidate == again.solution.candidate
    assert (first.solution.nodes == again.solution.nodes).all()


def test_large_instances_are_searched_to_the_end() -> None:
    """Where little can be proven the time still goes into better placements, and the limit holds."""
    data = one_candidate_cluster(np.random.default_rng(0), "unif", (16, 8, 1))
    search(data, SearchParams(time_limit_s=1.0, workers=2))  # compiled
    load_replicas(data)
    started = time.perf_counter()
    result = search(data, SearchParams(time_limit_s=6.0, workers=2))
    assert 5.0 < time.perf_counter() - started < 12.0
    short = anneal(data, AnnealingParams(time_limit_s=0.5))
    assert result.solution is not None
    assert short.solution is not None
    assert result.solution.objective_ticks < short.solution.objective_ticks


@pytest.mark.parametrize("cluster", ["unif", "tree"])
def test_it_is_not_worse_than_annealing_alone(cluster: str) -> None:
    """One thread anneals all the time, with the same seed: a long restart, cut short, is better than a short one."""
    data = one_candidate_cluster(np.random.default_rng(1), cluster, (8, 4, 1))
    alone = anneal(data, AnnealingParams(time_limit_s=None, max_moves=10_000, seed=3)).solution
    found = search(data, SearchParams(time_limit_s=5.0, workers=2, seed=3)).solution
    assert alone is not None
    assert found is not None
    assert found.objective_ticks <= alone.objective_ticks


def test_the_plan_is_polished_when_a_run_is_stopped() -> None:
    """Without any annealing before, what is known becomes better in a short time."""
    data = one_candidate_cluster(np.random.default_rng(0), "unif", (8, 4, 1))
    search(data, SearchParams(time_limit_s=0.1))  # loads the kernels
    known = Solution(candidate=0, nodes=np.random.default_rng(1).permutation(32).reshape(8, 4, 1), objective_ticks=0)
    before = objective_ticks(data, data.candidates[0], known.nodes)
    stop = threading.Event()
    stop.set()
    params = SearchParams(time_limit_s=60.0, workers=1, first_s=0.0)
    started = time.perf_counter()
    result = search(data, params, known=[known], stop=stop)
    assert time.perf_counter() - started < 5.0
    assert result.solution is not None
    assert result.solution.objective_ticks < before
    assert result.solution.objective_ticks == objective_ticks(data, data.candidates[0], result.solution.nodes)


def test_all_threads_anneal_when_no_more_is_proven(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each with a seed of its own, those that proved from the incumbent."""
    data = one_candidate_cluster(np.random.default_rng(1), "unif", (6, 4, 1))
    calls: list[tuple[int, int]] = []

    def noted(data: ProblemData, params: AnnealingParams, **settings: Any) -> Result:
        calls.append((params.seed, len(settings.get("start", ()))))
        return anneal(data, params, **settings)

    monkeypatch.setattr("pipette_opt.solver.search.threads.anneal", noted)
    monkeypatch.setattr("pipette_opt.solver.solve._work", lambda incumbent, portfolio: time.sleep(0.2))
    started = time.perf_counter()
    result = search(data, SearchParams(time_limit_s=2.0, workers=3, seed=5, first_s=0.0))
    assert 1.5 < time.perf_counter() - started < 10.0
    assert sorted(start for _, start in calls) == [0, 1, 1]
    assert len({seed for seed, _ in calls}) == 3
    assert result.solution is not None


def test_an_error_of_the_annealing_is_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    """A mistake in the thread that anneals is not silent."""

    def fail(*args: object, **settings: object) -> None:
        raise RuntimeError("no luck")

    data = one_candidate_cluster(np.random.default_rng(1), "tree", (6, 4, 1))
    monkeypatch.setattr("pipette_opt.solver.search.threads.anneal", fail)
    with pytest.raises(RuntimeError, match="no luck"):
        search(data, SearchParams(time_limit_s=1.0, workers=2, first_s=0.0))

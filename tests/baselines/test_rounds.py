"""Annealing and proof in turn, as benchmarks of placements run the solver."""

import threading
import time
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from instances import one_candidate_cluster, several_shapes

from pipette_opt.annealing.anneal import AnnealingParams, anneal, load_replicas
from pipette_opt.baselines.rounds import place
from pipette_opt.problem.data import UNUSABLE_TICKS
from pipette_opt.problem.objective import objective_ticks
from pipette_opt.solver.params import SolverParams


@pytest.mark.parametrize("workers", [1, 2])
def test_rounds_find_and_prove_the_optimum(workers: int) -> None:
    """As enumeration says; what is told only improves within a round, and no bound is above the optimum."""
    data, optimum = several_shapes()
    told: list[tuple[int, int]] = []

    def on_progress(elapsed_s: float, incumbent: int | None, bound: int) -> None:
        told.append((UNUSABLE_TICKS if incumbent is None else incumbent, bound))

    result = place(data, SolverParams(time_limit_s=30.0, workers=workers), on_progress=on_progress)
    assert result.status == "OPTIMAL"
    assert result.lower_bound_ticks == optimum
    assert result.solution is not None
    assert objective_ticks(data, data.candidates[result.solution.candidate], result.solution.nodes) == optimum
    assert all(a[0] >= b[0] for a, b in pairwise(told))
    assert all(bound <= optimum <= incumbent for incumbent, bound in told)


@pytest.mark.search
def test_the_time_limit_holds_and_all_of_it_is_used() -> None:
    """Where little can be proven the time goes into better placements, round by round, and bounds only rise."""
    data = one_candidate_cluster(np.random.default_rng(0), "unif", (16, 8, 1))
    place(data, SolverParams(time_limit_s=1.0, workers=2))  # compiled
    load_replicas(data)
    short = anneal(data, AnnealingParams(time_limit_s=0.2))
    started = time.perf_counter()
    result = place(data, SolverParams(time_limit_s=2.0, workers=2))
    assert 1.5 < time.perf_counter() - started < 10.0
    assert result.solution is not None
    assert short.solution is not None
    assert result.solution.objective_ticks < short.solution.objective_ticks
    assert 0 < result.lower_bound_ticks <= result.solution.objective_ticks


@pytest.mark.search
@pytest.mark.parametrize("cluster", ["unif", "tree"])
def test_it_is_not_worse_than_a_little_annealing(cluster: str) -> None:
    """The first thread anneals with the same seed, and a placement that was found is never lost."""
    data = one_candidate_cluster(np.random.default_rng(1), cluster, (8, 4, 1))
    alone = anneal(data, AnnealingParams(time_limit_s=None, max_moves=10_000, seed=3)).solution
    found = place(data, SolverParams(time_limit_s=1.0, workers=2, seed=3)).solution
    assert alone is not None
    assert found is not None
    assert found.objective_ticks <= alone.objective_ticks


def test_nothing_goes_on_after_a_closed_proof() -> None:
    """It ends long before the limit, and so it does when it is stopped."""
    data = one_candidate_cluster(np.random.default_rng(0), "tree", (7, 3, 1), compute=0)
    free = replace(
        data.candidates[0], p2p_ticks=np.zeros((21, 21)), ring_ticks=np.zeros_like(data.candidates[0].ring_ticks)
    )
    started = time.perf_counter()
    assert place(replace(data, candidates=(free,)), SolverParams(time_limit_s=60.0, workers=2)).status == "OPTIMAL"
    stop = threading.Event()
    stop.set()
    assert place(data, SolverParams(time_limit_s=60.0, workers=2), stop=stop).solution is not None
    assert time.perf_counter() - started < 20.0


def test_an_error_of_the_annealing_is_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    """A mistake in a thread that anneals is not silent."""

    def fail(*args: object, **settings: object) -> None:
        raise RuntimeError("no luck")

    data = one_candidate_cluster(np.random.default_rng(1), "tree", (6, 4, 1))
    monkeypatch.setattr("pipette_opt.annealing.threads.anneal", fail)
    with pytest.raises(RuntimeError, match="no luck"):
        place(data, SolverParams(time_limit_s=1.0, workers=2))

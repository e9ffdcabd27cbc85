"""Annealing as an engine, alone, beside the proof and after it."""

import threading
import time
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from conformance import EngineConformance
from instances import one_candidate_cluster, several_shapes

from pipette_opt.annealing.anneal import Annealer, AnnealingParams, anneal, load_replicas
from pipette_opt.base.backends import JoblibBackend
from pipette_opt.problem.data import UNUSABLE_TICKS
from pipette_opt.problem.objective import objective_ticks
from pipette_opt.problem.solution import Solution
from pipette_opt.solver import refining
from pipette_opt.solver.annealing import Annealing
from pipette_opt.solver.engine import Engine
from pipette_opt.solver.incumbent import Incumbent
from pipette_opt.solver.params import PROVERS, SolverParams
from pipette_opt.solver.refining import offer_refined
from pipette_opt.solver.solve import solve


@pytest.mark.parametrize("workers", [1, 2])
def test_threads_find_and_prove_the_optimum(workers: int) -> None:
    """As enumeration says; progress only improves."""
    data, optimum = several_shapes()
    told: list[tuple[int, int]] = []

    def on_progress(elapsed_s: float, incumbent: int | None, bound: int) -> None:
        told.append((UNUSABLE_TICKS if incumbent is None else incumbent, bound))

    result = solve(data, SolverParams(time_limit_s=30.0, workers=workers), on_progress=on_progress)
    assert result.status == "OPTIMAL"
    assert result.lower_bound_ticks == optimum
    assert result.solution is not None
    assert objective_ticks(data, data.candidates[result.solution.candidate], result.solution.nodes) == optimum
    assert all(a[0] >= b[0] and a[1] <= b[1] for a, b in pairwise(told))


def test_deterministic_runs_repeat() -> None:
    """The same seed gives the same placement."""
    data, _ = several_shapes()
    params = SolverParams(time_limit_s=300.0, deterministic=True, seed=5, workers=2)
    first, again = solve(data, params), solve(data, params)
    assert first.solution is not None
    assert again.solution is not None
    assert first.solution.candidate == again.solution.candidate
    assert (first.solution.nodes == again.solution.nodes).all()


def test_large_instances_are_searched_to_the_end() -> None:
    """Where little can be proven the time still goes into better placements, and the limit holds."""
    data = one_candidate_cluster(np.random.default_rng(0), "unif", (16, 8, 1))
    solve(data, SolverParams(time_limit_s=1.0, workers=2))  # compiled
    load_replicas(data)
    started = time.perf_counter()
    result = solve(data, SolverParams(time_limit_s=6.0, workers=2))
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
    found = solve(data, SolverParams(time_limit_s=5.0, workers=2, seed=3)).solution
    assert alone is not None
    assert found is not None
    assert found.objective_ticks <= alone.objective_ticks


def test_the_plan_is_polished_when_a_run_is_stopped() -> None:
    """Without any annealing before, what is known becomes better in a short time."""
    data = one_candidate_cluster(np.random.default_rng(0), "unif", (8, 4, 1))
    solve(data, SolverParams(time_limit_s=0.1, workers=2))  # loads the kernels
    known = Solution(candidate=0, nodes=np.random.default_rng(1).permutation(32).reshape(8, 4, 1), objective_ticks=0)
    before = objective_ticks(data, data.candidates[0], known.nodes)
    stop = threading.Event()
    stop.set()
    params = SolverParams(time_limit_s=60.0, workers=1, first_s=0.0)
    started = time.perf_counter()
    result = solve(data, params, hint=[known], stop=stop)
    assert time.perf_counter() - started < 5.0
    assert result.solution is not None
    assert result.solution.objective_ticks < before
    assert result.solution.objective_ticks == objective_ticks(data, data.candidates[0], result.solution.nodes)


def test_all_threads_anneal_when_no_more_is_proven(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each with a seed of its own, until the time is over."""
    data = one_candidate_cluster(np.random.default_rng(1), "unif", (6, 4, 1))
    seeds, run = [], Annealer.run

    def noted(annealer: Annealer, *arguments: Any) -> None:
        seeds.append(annealer.params.seed)
        run(annealer, *arguments)

    monkeypatch.setattr(Annealer, "run", noted)
    monkeypatch.setattr("pipette_opt.solver.solve._prove", lambda incumbent, portfolio: time.sleep(0.2))
    started = time.perf_counter()
    result = solve(data, SolverParams(time_limit_s=2.0, workers=3, seed=5, first_s=0.0))
    assert 1.5 < time.perf_counter() - started < 10.0
    assert sorted(seeds) == [5, 12, 1012]
    assert result.solution is not None


def test_nothing_goes_on_after_a_closed_proof() -> None:
    """Neither the thread beside it nor any other."""
    data = one_candidate_cluster(np.random.default_rng(0), "tree", (7, 3, 1), compute=0)
    free = replace(
        data.candidates[0], p2p_ticks=np.zeros((21, 21)), ring_ticks=np.zeros_like(data.candidates[0].ring_ticks)
    )
    started = time.perf_counter()
    result = solve(replace(data, candidates=(free,)), SolverParams(time_limit_s=60.0, workers=2))
    assert result.status == "OPTIMAL"
    assert time.perf_counter() - started < 20.0


@pytest.mark.parametrize("first_s", [0.0, 0.5])
def test_an_error_of_the_annealing_is_raised(monkeypatch: pytest.MonkeyPatch, first_s: float) -> None:
    """A mistake in a thread that anneals is not silent."""

    def fail(*args: object, **settings: object) -> None:
        raise RuntimeError("no luck")

    data = one_candidate_cluster(np.random.default_rng(1), "tree", (6, 4, 1))
    monkeypatch.setattr(Annealer, "run", fail)
    with pytest.raises(RuntimeError, match="no luck"):
        solve(data, SolverParams(time_limit_s=1.0, workers=2, first_s=first_s))


def test_known_placements_are_kept() -> None:
    """The incumbent is never worse than what was known; one that breaks a rule is ignored."""
    data = one_candidate_cluster(np.random.default_rng(0), "unif", (8, 4, 1))
    good = anneal(data, AnnealingParams(time_limit_s=None, max_moves=500_000)).solution
    assert good is not None
    bad = replace(good, nodes=np.zeros((8, 4, 1), dtype=np.int64), objective_ticks=1)
    for backend in (None, JoblibBackend(1)):
        result = solve(data, SolverParams(time_limit_s=0.3, workers=2), hint=[bad, good], backend=backend)
        assert result.solution is not None
        assert 1 < result.solution.objective_ticks <= good.objective_ticks


def test_what_a_proof_promises_is_offered_as_it_is_and_refined(monkeypatch: pytest.MonkeyPatch) -> None:
    """The better of the two is kept; without annealing only what was promised."""
    data = one_candidate_cluster(np.random.default_rng(0), "unif", (4, 4, 1))
    promised = np.arange(16)
    before = objective_ticks(data, data.candidates[0], promised.reshape(4, 4, 1))
    alone = Incumbent(data, SolverParams(engines=PROVERS))
    offer_refined(alone, 0, promised)
    assert alone.upper == before
    refined = Incumbent(data, SolverParams())
    offer_refined(refined, 0, promised)
    assert refined.upper < before
    monkeypatch.setattr(refining, "refine", lambda *arguments, **settings: None)
    nothing = Incumbent(data, SolverParams())
    offer_refined(nothing, 0, promised)
    assert nothing.upper == before


def test_an_interrupt_at_the_end_loses_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """The placement known before is the result, and who asked for the stop is told."""

    def interrupted(*arguments: object, **settings: object) -> None:
        raise KeyboardInterrupt

    data = one_candidate_cluster(np.random.default_rng(0), "unif", (4, 4, 1))
    known = Solution(candidate=0, nodes=np.arange(16).reshape(4, 4, 1), objective_ticks=0)
    stop = threading.Event()
    monkeypatch.setattr(refining, "refine", interrupted)
    result = solve(data, SolverParams(time_limit_s=0.0, workers=1), hint=[known], stop=stop)
    assert result.solution is not None
    assert result.solution.nodes.tolist() == known.nodes.tolist()
    assert stop.is_set()


class TestAnnealing(EngineConformance):
    """Placements of one candidate, in slices; nothing is proven."""

    engine = Annealing

    def run_to_its_end(self, engine: Engine, seconds: float = 0.05) -> int:
        """Slices that are short, as annealing only ends where its best reaches the bound."""
        return super().run_to_its_end(engine, min(seconds, 0.05))

    def test_slices_draw_as_one_long_one_does(self) -> None:
        """A slice that is stopped after its first turn, and one to the end, find what a single one finds."""
        data = one_candidate_cluster(np.random.default_rng(3), "unif", (4, 4, 1))
        params, stop = (
            AnnealingParams(time_limit_s=None, max_moves=60_000, first_moves=5_000, seed=2),
            threading.Event(),
        )
        whole, parts = Annealer(data, params), Annealer(data, params)
        whole.run(None)
        stop.set()
        parts.run(None, stop)
        (begun,) = parts.searches
        assert begun.restarts == 1
        parts.run(None, stop)
        assert begun.restarts == 1, "no turn is begun when it is over already"
        parts.run(None)
        assert begun.restarts == whole.searches[0].restarts > 1
        assert [one.nodes.tolist() for one in parts.solutions()] == [one.nodes.tolist() for one in whole.solutions()]

    def test_what_was_found_elsewhere_is_taken(self) -> None:
        """A good placement is better than any that few moves find; one with a host twice is ignored."""
        data = one_candidate_cluster(np.random.default_rng(3), "unif", (8, 4, 1))
        params = AnnealingParams(time_limit_s=None, max_moves=300_000, first_moves=1_000)
        good = anneal(data, params).solution
        assert good is not None
        stop = threading.Event()
        stop.set()
        annealer = Annealer(data, replace(params, seed=7))
        annealer.run(None, stop)
        assert annealer.solutions()[0].objective_ticks > good.objective_ticks
        annealer.add(replace(good, nodes=np.zeros((8, 4, 1), dtype=np.int64)))
        annealer.add(good)
        assert annealer.solutions()[0].objective_ticks == good.objective_ticks

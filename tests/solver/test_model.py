"""The CP-SAT placement model keeps bounds valid from slice to slice, and ends when told."""

import threading
import time

import numpy as np
import pytest
from instances import Variant, best_by_enumeration, one_candidate_cluster, placements, random_problem

from pipette_opt.plans.clock import Clock
from pipette_opt.plans.watcher import Watcher
from pipette_opt.problem.data import UNUSABLE_TICKS, ProblemData
from pipette_opt.problem.objective import objective_ticks
from pipette_opt.problem.solution import Solution
from pipette_opt.solver.bounds import lower_bounds
from pipette_opt.solver.incumbent import Incumbent
from pipette_opt.solver.model import CpSatModel
from pipette_opt.solver.params import SolverParams

pytestmark = pytest.mark.search

VARIANTS = (
    Variant(),
    Variant(directed=False, levels=2),
    Variant(num_kinds=2, missing_share=0.2),
    Variant(num_capacities=2, levels=3),
)
"""Random problems: one-way links, few levels, missing links, two kinds of hosts and of memory."""

SHAPES = ((2, 2, 1), (3, 2, 1), (2, 3, 1), (2, 1, 2))
"""Grids of few hosts, the last with tensor groups over two hosts."""


def known_of(data: ProblemData, first_slice_s: float) -> Incumbent:
    """Nothing but bounds that need no search."""
    incumbent = Incumbent(data, SolverParams(time_limit_s=60.0, workers=1, first_slice_s=first_slice_s))
    incumbent.bounds = lower_bounds(data)
    return incumbent


def close(incumbent: Incumbent) -> int:
    """Solve until the candidate is closed. Return the number of slices."""
    model, number = CpSatModel(incumbent), 0
    while incumbent.is_open(0):
        assert model.solve([0])
        number += 1
    return number


@pytest.mark.parametrize("with_optimum", [False, True])
def test_slices_end_at_the_optimum(with_optimum: bool) -> None:
    """Whether slices are long or short, and whether the optimum is known: it is never refuted."""
    for number, variant in enumerate(VARIANTS):
        rng = np.random.default_rng(number)
        for shape in SHAPES:
            data = random_problem(rng, [shape], min(6, shape[0] * shape[1] + number % 2), variant)
            (candidate,) = data.candidates
            optimum = best_by_enumeration(data, candidate)
            for slice_s in (10.0, 0.02):
                incumbent = known_of(data, slice_s)
                if with_optimum and optimum < UNUSABLE_TICKS:
                    best = min(placements(data, candidate), key=lambda nodes: objective_ticks(data, candidate, nodes))
                    incumbent.offer(Solution(candidate=0, nodes=best, objective_ticks=0))
                close(incumbent)
                assert incumbent.lower == incumbent.upper == optimum or optimum >= UNUSABLE_TICKS <= incumbent.bounds[0]


def test_bounds_only_rise() -> None:
    """From slice to slice, and as they are reported; a bound from elsewhere is kept."""
    reported: list[int] = []
    data = one_candidate_cluster(np.random.default_rng(2), "unif", (6, 4, 1), compute=2_000)
    incumbent = known_of(data, 0.5)
    incumbent.offer(Solution(candidate=0, nodes=np.arange(24).reshape(6, 4, 1), objective_ticks=0))
    incumbent._on_progress = lambda seconds, upper, lower: reported.append(lower)
    model, before = CpSatModel(incumbent), 0
    for _ in range(2):
        model.solve([0])
        assert incumbent.bounds[0] >= before
        before = int(incumbent.bounds[0])
    assert reported == sorted(reported)
    incumbent.prove(0, before + 1)
    model.solve([0])
    assert incumbent.bounds[0] >= before + 1


def test_it_ends_when_stopped() -> None:
    """A slice of an hour ends soon after the stop event."""
    stop = threading.Event()
    data = one_candidate_cluster(np.random.default_rng(2), "unif", (6, 4, 1), compute=2_000)
    incumbent = known_of(data, 3600.0)
    incumbent.clock = Clock(watcher=Watcher(stop=stop)).after(3600.0)
    threading.Timer(0.3, stop.set).start()
    started = time.perf_counter()
    CpSatModel(incumbent).solve([0])
    assert time.perf_counter() - started < 20.0

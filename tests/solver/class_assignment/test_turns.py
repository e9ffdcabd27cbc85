"""Class assignment within a solve: bounds hold, only rise, and come from no grid that does not suit."""

import threading
import time

import numpy as np
import pytest
from instances import Variant, best_by_enumeration, one_candidate_cluster, random_problem

from pipette_opt.plans.clock import Clock
from pipette_opt.plans.watcher import Watcher
from pipette_opt.problem.data import ProblemData
from pipette_opt.problem.solution import Solution
from pipette_opt.solver.bounds import lower_bounds
from pipette_opt.solver.class_assignment import turns
from pipette_opt.solver.class_assignment.turns import ClassAssignment
from pipette_opt.solver.incumbent import Incumbent
from pipette_opt.solver.params import SolverParams

pytestmark = pytest.mark.search

VARIANTS = (
    Variant(),
    Variant(directed=False, levels=2),
    Variant(num_kinds=2, missing_share=0.2),
    Variant(num_capacities=2, levels=3),
)
"""Random problems: one-way links, few levels, missing links, two kinds of hosts and of memory."""


def known_of(data: ProblemData, first_slice_s: float = 2.0) -> Incumbent:
    """Nothing but bounds that need no search."""
    incumbent = Incumbent(data, SolverParams(time_limit_s=60.0, workers=1, first_slice_s=first_slice_s))
    incumbent.bounds = lower_bounds(data)
    return incumbent


def test_bounds_hold(monkeypatch: pytest.MonkeyPatch) -> None:
    """No bound is above the enumerated optimum, nor above what was offered; a search ends after few turns."""
    monkeypatch.setattr(turns, "MIN_CELLS", 1)
    worked = 0
    for number, variant in enumerate(VARIANTS):
        rng = np.random.default_rng(number)
        for shape in ((2, 2, 1), (3, 2, 1), (2, 3, 1), (2, 1, 2)):
            data = random_problem(rng, [shape], min(6, shape[0] * shape[1] + number % 2), variant)
            optimum, incumbent = best_by_enumeration(data, data.candidates[0]), known_of(data)
            classes = ClassAssignment(incumbent)
            for _ in range(3):
                worked += classes.take_turns([0])
            assert min(int(incumbent.bounds[0]), incumbent.upper) <= optimum <= incumbent.upper
    assert worked >= 4


def test_bounds_rise_on_hosts_in_racks() -> None:
    """From turn to turn, with the name of who proved them."""
    data = one_candidate_cluster(np.random.default_rng(2), "tree", (8, 4, 1), compute=2_000)
    incumbent = known_of(data, 0.5)
    incumbent.offer(Solution(candidate=0, nodes=np.arange(32).reshape(8, 4, 1), objective_ticks=0))
    classes, before = ClassAssignment(incumbent), int(incumbent.bounds[0])
    for visits in (1, 2):
        assert classes.take_turns([0])
        assert classes.visits[0] == visits
        assert incumbent.bounds[0] >= before
        before = int(incumbent.bounds[0])
    assert incumbent.proven_by[0] == ClassAssignment.name


@pytest.mark.parametrize("grid", [(2, 4, 1), (8, 21, 1)])
def test_grids_that_do_not_suit_have_no_turn(grid: tuple[int, int, int]) -> None:
    """Too small or too large."""
    data = one_candidate_cluster(np.random.default_rng(2), "tree", grid)
    assert not ClassAssignment(known_of(data)).take_turns([0])


def test_it_ends_when_stopped() -> None:
    """A turn of an hour ends soon after the stop event."""
    stop = threading.Event()
    data = one_candidate_cluster(np.random.default_rng(2), "tree", (8, 6, 1), compute=2_000)
    incumbent = known_of(data, 3600.0)
    incumbent.clock = Clock(watcher=Watcher(stop=stop)).after(3600.0)
    threading.Timer(0.3, stop.set).start()
    started = time.perf_counter()
    ClassAssignment(incumbent).take_turns([0])
    assert time.perf_counter() - started < 20.0

"""CP-SAT in a thread: the same answers, and an end when told."""

import threading
import time
from pathlib import Path

import pytest
from ortools.sat.python import cp_model

import pipette_opt.solver
from pipette_opt.solver.stoppable import new_solver, solve_until


def pigeons(number: int) -> cp_model.CpModel:
    """One more than there are holes, which takes long to refute pair by pair."""
    model = cp_model.CpModel()
    there = [[model.new_bool_var("") for _ in range(number)] for _ in range(number + 1)]
    for one in there:
        model.add_bool_or(one)
    for hole in range(number):
        for first in range(number + 1):
            for second in range(first):
                model.add_bool_or(~there[first][hole], ~there[second][hole])
    return model


def test_it_solves() -> None:
    """Feasible and infeasible."""
    model = cp_model.CpModel()
    one = model.new_int_var(0, 5, "")
    model.maximize(one)
    solver = cp_model.CpSolver()
    assert solve_until(solver, model, threading.Event()) == cp_model.OPTIMAL
    assert solver.value(one) == 5
    assert solve_until(cp_model.CpSolver(), pigeons(2), threading.Event()) == cp_model.INFEASIBLE


@pytest.mark.search
def test_it_stops_when_told() -> None:
    """Long before its own limit."""
    stop = threading.Event()
    solver = cp_model.CpSolver()
    solver.parameters.max_time_in_seconds = 60
    solver.parameters.symmetry_level = 0
    solver.parameters.cp_model_presolve = False
    threading.Timer(0.3, stop.set).start()
    started = time.perf_counter()
    status = solve_until(solver, pigeons(40), stop)
    assert status in (cp_model.UNKNOWN, cp_model.INFEASIBLE)
    assert time.perf_counter() - started < 30


def test_its_errors_are_raised() -> None:
    """Here, not in its thread."""
    with pytest.raises(AttributeError):
        solve_until(cp_model.CpSolver(), None, threading.Event())  # type: ignore[arg-type]


def test_one_place_makes_solvers() -> None:
    """No model has a solver of its own, with the presolve step that loses solutions."""
    files = Path(pipette_opt.solver.__file__).parent.rglob("*.py")
    assert [path.name for path in files if "CpSolver()" in path.read_text("utf-8")] == ["stoppable.py"]
    assert new_solver().parameters.presolve_inclusion_work_limit == 0

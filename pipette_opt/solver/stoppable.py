"""CP-SAT solves in a thread of their own, which can be stopped."""

import threading

from ortools.sat.python import cp_model

from pipette_opt.plans.clock import Clock

POLL_S = 0.05
"""Seconds between two checks of the stop event. Chosen."""


def new_solver() -> cp_model.CpSolver:
    """
    Return a solver without the presolve step that proves wrong optima in OR-tools 9.15.

    With the detection of included constraints, feasible solutions of models of linear constraints get lost
    (github.com/google/or-tools/issues/5293, also for its remedy).
    """
    solver = cp_model.CpSolver()
    solver.parameters.presolve_inclusion_work_limit = 0
    return solver


def solve_within(
    solver: cp_model.CpSolver, model: cp_model.CpModel, clock: Clock, workers: int = 1, seed: int = 0
) -> int:
    """Solve a model until it is solved or the clock is over or stopped; return CP-SAT's status."""
    solver.parameters.num_workers, solver.parameters.random_seed = workers, seed
    solver.parameters.max_time_in_seconds = clock.left_s
    solver.parameters.catch_sigint_signal = False
    status = solve_until(solver, model, clock.stop)
    if status == cp_model.MODEL_INVALID:
        raise AssertionError(f"CP-SAT rejects the model: {model.validate()}")
    return status


def solve_until(solver: cp_model.CpSolver, model: cp_model.CpModel, stop: threading.Event) -> int:
    """Solve a model until it is solved or ``stop`` is set; return CP-SAT's status. An interrupt sets ``stop``."""
    ended, found, errors = threading.Event(), [int(cp_model.UNKNOWN)], []

    def run() -> None:
        try:
            found[0] = int(solver.solve(model))
        except BaseException as error:
            errors.append(error)
        finally:
            ended.set()

    threading.Thread(target=run, daemon=True).start()
    while not ended.is_set():
        try:
            ended.wait(POLL_S)
        except KeyboardInterrupt:
            stop.set()
        if stop.is_set():
            solver.stop_search()
    if errors:
        raise errors[0]
    return found[0]

"""CP-SAT in a thread of its own, so that the caller's can take signals and stop it."""

import threading

from ortools.sat.python import cp_model

POLL_S = 0.05
"""Between looks at whether to stop."""


def solve_until(solver: cp_model.CpSolver, model: cp_model.CpModel, stop: threading.Event) -> int:
    """Solve; the status, soon after the event is set. An interrupt from the keyboard sets it."""
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

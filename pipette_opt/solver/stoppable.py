"""CP-SAT solves in a thread of their own, which can be stopped, and time slices for them."""

import threading
from dataclasses import dataclass, replace

from ortools.sat.python import cp_model

from pipette_opt.plans.clock import Clock

POLL_S = 0.05
"""Seconds between two checks of the stop event. Chosen."""


class OutOfTimeError(Exception):
    """Error when a time slice ends before its model could be solved."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeSlice:
    """
    Time and threads for CP-SAT solves.

    Parameters
    ----------
    clock
        End of the slice, and the event that ends it early.
    share
        Fraction of the remaining time that one solve may take.
    """

    clock: Clock
    workers: int = 1
    seed: int = 0
    share: float = 1.0

    def part(self, share: float) -> "TimeSlice":
        """Return a slice in which a solve takes at most ``share`` of the time left when it starts."""
        return replace(self, share=share * self.share)

    def check(self) -> None:
        """Raise :class:`OutOfTimeError` if the slice is over or stopped; to be called before a model is solved."""
        if self.clock.is_over:
            raise OutOfTimeError

    def solve(self, model: cp_model.CpModel, solver: cp_model.CpSolver) -> int:
        """Solve a model within the slice. Return CP-SAT's status."""
        solver.parameters.num_workers = self.workers
        solver.parameters.random_seed = self.seed
        solver.parameters.max_time_in_seconds = self.share * self.clock.left_s
        solver.parameters.catch_sigint_signal = False
        status = solve_until(solver, model, self.clock.stop)
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

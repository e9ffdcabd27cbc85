"""Stoppable CP-SAT solves in a thread of their own, and time slices for models."""

import threading
import time
from dataclasses import dataclass, replace

from ortools.sat.python import cp_model

POLL_S = 0.05
"""Seconds between two checks of the stop event."""


class OutOfTimeError(Exception):
    """Raised when a time slice ended before its model could be solved."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeSlice:
    """
    Time and threads for models.

    Parameters
    ----------
    ends
        End of the slice, on the clock of ``time.perf_counter``.
    stop
        Event that ends the slice early.
    share
        Share of the remaining time that a model may take.
    """

    ends: float
    stop: threading.Event
    workers: int = 1
    seed: int = 0
    share: float = 1.0

    @property
    def seconds_left(self) -> float:
        """Remaining wall time, seconds."""
        return self.ends - time.perf_counter()

    def part(self, share: float) -> "TimeSlice":
        """Return a slice with ``share`` of the time that is left when a model is solved."""
        return replace(self, share=share * self.share)

    def check(self) -> None:
        """Raise :class:`OutOfTimeError` if the slice is over or stopped; for work before a model is solved."""
        if self.stop.is_set() or time.perf_counter() >= self.ends:
            raise OutOfTimeError

    def solve(self, model: cp_model.CpModel, solver: cp_model.CpSolver) -> int:
        """Solve a model within the slice. Return CP-SAT's status."""
        solver.parameters.num_workers = self.workers
        solver.parameters.random_seed = self.seed
        solver.parameters.max_time_in_seconds = max(0.0, self.share * (self.ends - time.perf_counter()))
        solver.parameters.catch_sigint_signal = False
        status = solve_until(solver, model, self.stop)
        if status == cp_model.MODEL_INVALID:
            raise AssertionError(f"CP-SAT rejects the model: {model.validate()}")
        return status


def solve_until(solver: cp_model.CpSolver, model: cp_model.CpModel, stop: threading.Event) -> int:
    """Solve until the event is set. Return CP-SAT's status. An interrupt from the keyboard sets the event."""
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

"""CP-SAT in a thread of its own, so that the caller's can take signals and stop it; slices of time for models."""

import threading
import time
from dataclasses import dataclass, replace

from ortools.sat.python import cp_model

POLL_S = 0.05
"""Seconds between looks at whether to stop."""


class OutOfTimeError(Exception):
    """A slice of time was over before its model could be solved."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeSlice:
    """
    Time and threads for models.

    Parameters
    ----------
    ends
        When it is over, as ``time.perf_counter`` tells it.
    share
        Of what is then left, what a model may take.
    """

    ends: float
    stop: threading.Event
    workers: int = 1
    seed: int = 0
    share: float = 1.0

    @property
    def seconds_left(self) -> float:
        """Wall time left."""
        return self.ends - time.perf_counter()

    def part(self, share: float) -> "TimeSlice":
        """A share of what is left when a model is solved."""
        return replace(self, share=share * self.share)

    def check(self) -> None:
        """Raise :class:`OutOfTimeError` if it is over, or stopped: for what is done before a model is solved."""
        if self.stop.is_set() or time.perf_counter() >= self.ends:
            raise OutOfTimeError

    def solve(self, model: cp_model.CpModel, solver: cp_model.CpSolver) -> int:
        """The status."""
        solver.parameters.num_workers = self.workers
        solver.parameters.random_seed = self.seed
        solver.parameters.max_time_in_seconds = max(0.0, self.share * (self.ends - time.perf_counter()))
        solver.parameters.catch_sigint_signal = False
        status = solve_until(solver, model, self.stop)
        if status == cp_model.MODEL_INVALID:
            raise AssertionError(f"CP-SAT rejects the model: {model.validate()}")
        return status


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

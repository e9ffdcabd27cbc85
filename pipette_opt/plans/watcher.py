"""Progress callbacks of a run, its stop event and its clock."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from pipette_opt.base.jit import when_compiling
from pipette_opt.plans.plan import Plan


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """Progress of a run: step, seconds since the start, expected time of the fastest plan, proven lower bound on it."""

    step: str
    elapsed_s: float
    objective_s: float | None = None
    lower_bound_s: float | None = None


@dataclass(slots=True, kw_only=True)
class Watcher:
    """
    Progress callbacks of a run, and the event that stops it.

    Parameters
    ----------
    begun
        Start of the run in seconds of ``time.perf_counter``; reported times count from this start.
    started
        Start of the time limit: ``begun`` plus the seconds in which kernels were compiled.
    factor
        Expected over simulated time of the job, by which reported times are multiplied.
    is_prepared
        Whether a search has ended its preparation, so that an interrupt leaves a plan to finish.
    """

    on_progress: Callable[[Progress], None] = lambda progress: None
    on_plan: Callable[[Plan], None] = lambda plan: None
    stop: threading.Event = field(default_factory=threading.Event)
    begun: float = field(default_factory=time.perf_counter)
    started: float = field(default_factory=time.perf_counter)
    factor: float = 1.0
    is_prepared: bool = False

    @property
    def elapsed_s(self) -> float:
        """Seconds of the time limit that have passed."""
        return time.perf_counter() - self.started

    @contextmanager
    def loading_kernels(self) -> Iterator[None]:
        """Exclude the seconds inside the ``with`` block from the time limit. Kernels are compiled once."""
        begun = time.perf_counter()
        with when_compiling(self.report_compiling):
            yield
        self.started += time.perf_counter() - begun

    def report_compiling(self) -> None:
        """Report that kernels are compiled: on the first run of an installation, or of a new kind of job."""
        self.report("compiling kernels, once per installation")

    def report(self, step: str, objective_s: float | None = None, lower_bound_s: float | None = None) -> None:
        """Pass the current step, with simulated times in seconds, to the progress callback as expected times."""
        elapsed_s = time.perf_counter() - self.begun
        shown = [None if seconds is None else self.factor * seconds for seconds in (objective_s, lower_bound_s)]
        self.on_progress(Progress(step=step, elapsed_s=elapsed_s, objective_s=shown[0], lower_bound_s=shown[1]))

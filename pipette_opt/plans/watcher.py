"""Progress callbacks of a run, its stop event and its clock."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from pipette_opt.plans.plan import Plan


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """Progress of a run: step, seconds since the start, simulated time of the fastest plan, proven lower bound."""

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
    is_prepared
        Whether a search has ended its preparation, so that an interrupt leaves a plan to finish.
    """

    on_progress: Callable[[Progress], None] = lambda progress: None
    on_plan: Callable[[Plan], None] = lambda plan: None
    stop: threading.Event = field(default_factory=threading.Event)
    begun: float = field(default_factory=time.perf_counter)
    started: float = field(default_factory=time.perf_counter)
    is_prepared: bool = False

    @property
    def elapsed_s(self) -> float:
        """Seconds of the time limit that have passed."""
        return time.perf_counter() - self.started

    @contextmanager
    def loading_kernels(self) -> Iterator[None]:
        """Exclude the seconds inside the ``with`` block from the time limit. Kernels are compiled once."""
        self.report("loading compiled kernels (the first time they are compiled)")
        begun = time.perf_counter()
        yield
        self.started += time.perf_counter() - begun

    def report(self, step: str, objective_s: float | None = None, lower_bound_s: float | None = None) -> None:
        """Pass the current step, with times in seconds, to the progress callback."""
        elapsed_s = time.perf_counter() - self.begun
        self.on_progress(Progress(step=step, elapsed_s=elapsed_s, objective_s=objective_s, lower_bound_s=lower_bound_s))

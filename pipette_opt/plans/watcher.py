"""Progress callback of a run, with its stop event and its clock."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from pipette_opt.plans.plan import Plan


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """Progress of a run: the step, the simulated time of the fastest plan and the proven bound."""

    step: str
    elapsed_s: float
    objective_s: float | None = None
    lower_bound_s: float | None = None


@dataclass(slots=True, kw_only=True)
class Watcher:
    """
    Callbacks for the progress of a run, and its stop event.

    Parameters
    ----------
    begun
        Start of the run, on the clock of ``time.perf_counter``; reported times count from here.
    started
        Start of the time limit: later by the seconds in which kernels were compiled.
    """

    on_progress: Callable[[Progress], None] = lambda progress: None
    on_plan: Callable[[Plan], None] = lambda plan: None
    stop: threading.Event = field(default_factory=threading.Event)
    begun: float = field(default_factory=time.perf_counter)
    started: float = field(default_factory=time.perf_counter)

    @property
    def elapsed_s(self) -> float:
        """Seconds of the time limit that have passed."""
        return time.perf_counter() - self.started

    @contextmanager
    def loading_kernels(self) -> Iterator[None]:
        """Exclude the time of compiling kernels, seconds once per installation, from the time of the search."""
        self.report("loading compiled kernels (the first time they are compiled)")
        begun = time.perf_counter()
        yield
        self.started += time.perf_counter() - begun

    def report(self, step: str, objective_s: float | None = None, lower_bound_s: float | None = None) -> None:
        """Report the step of the run."""
        elapsed_s = time.perf_counter() - self.begun
        self.on_progress(Progress(step=step, elapsed_s=elapsed_s, objective_s=objective_s, lower_bound_s=lower_bound_s))

"""How a run goes, told to people meanwhile; and its stop, and its clock."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from pipette_opt.plans.plan import Plan


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """What is known so far: the step, the simulated time of the fastest plan and the proven bound."""

    step: str
    elapsed_s: float
    objective_s: float | None = None
    lower_bound_s: float | None = None


@dataclass(slots=True, kw_only=True)
class Watcher:
    """
    Who is told how a run goes, and how it is stopped early.

    Parameters
    ----------
    begun
        When the run began, by ``time.perf_counter``: what people are told counts from here.
    started
        The same, later by the seconds in which kernels were compiled: time limits count from here.
    """

    on_progress: Callable[[Progress], None] = lambda progress: None
    on_plan: Callable[[Plan], None] = lambda plan: None
    stop: threading.Event = field(default_factory=threading.Event)
    begun: float = field(default_factory=time.perf_counter)
    started: float = field(default_factory=time.perf_counter)

    @property
    def elapsed_s(self) -> float:
        """Seconds of the time limit that are over."""
        return time.perf_counter() - self.started

    @contextmanager
    def loading_kernels(self) -> Iterator[None]:
        """Compiling takes seconds once per installation, which do not count as time of the search."""
        self.report("loading compiled kernels (the first time they are compiled)")
        begun = time.perf_counter()
        yield
        self.started += time.perf_counter() - begun

    def report(self, step: str, objective_s: float | None = None, lower_bound_s: float | None = None) -> None:
        """Tell where the run is."""
        elapsed_s = time.perf_counter() - self.begun
        self.on_progress(Progress(step=step, elapsed_s=elapsed_s, objective_s=objective_s, lower_bound_s=lower_bound_s))

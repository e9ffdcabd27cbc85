"""Clock of a search: its deadline, its stop event, and slices of its time for the steps."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from threading import Event

from pipette_opt.plans.steps import Step
from pipette_opt.plans.watcher import Watcher


@dataclass(frozen=True, slots=True, kw_only=True)
class Clock:
    """
    Deadline of a search or of one of its steps; clocks of one search share its watcher.

    Seconds in which kernels are loaded or compiled do not count, and move every deadline.

    Parameters
    ----------
    ends_s
        Deadline, in seconds of :attr:`~pipette_opt.plans.watcher.Watcher.elapsed_s`.
    limit_s
        Time limit of the whole search, seconds.
    is_quiet
        Whether progress is not reported.
    """

    watcher: Watcher = field(default_factory=Watcher)
    ends_s: float = float("inf")
    limit_s: float = float("inf")
    is_quiet: bool = False

    @property
    def stop(self) -> Event:
        """Event that ends the search soon."""
        return self.watcher.stop

    @property
    def left_s(self) -> float:
        """Seconds until the deadline, at least 0; 0 once the search was stopped."""
        return 0.0 if self.stop.is_set() else max(0.0, self.ends_s - self.watcher.elapsed_s)

    @property
    def is_over(self) -> bool:
        """Return whether the deadline has passed or the search was stopped."""
        return self.left_s <= 0

    def slice(self, share: float) -> "Clock":
        """Return a clock that ends after a fraction of the remaining time."""
        return self.after(share * self.left_s)

    def step(self, step: Step) -> "Clock":
        """Return the clock of a step that begins now."""
        return self.after(min(step.share * (self.limit_s if step.of == "limit" else self.left_s), step.most_s))

    def keeping(self, *steps: Step) -> "Clock":
        """Return a clock that ends early enough for these later steps, whose shares are of the limit."""
        return replace(self, ends_s=self.ends_s - sum(step.share for step in steps) * self.limit_s)

    def after(self, seconds: float) -> "Clock":
        """Return a clock that ends ``seconds`` from now, whatever the deadline of this clock."""
        return replace(self, ends_s=self.watcher.elapsed_s + seconds)

    @contextmanager
    def loading(self) -> Iterator[None]:
        """Exclude the seconds inside the ``with`` block from all deadlines: kernels are compiled once."""
        with self.watcher.loading_kernels():
            yield

    def report(self, step: str, fastest_s: float | None = None, bound_s: float | None = None) -> None:
        """Report the present step, the fastest time and the lower bound, seconds."""
        if not self.is_quiet:
            self.watcher.report(step, fastest_s, bound_s)

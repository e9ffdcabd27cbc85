"""Searches of commands: progress, and Ctrl-C and SIGTERM; the first signal stops a search with its best plan."""

import _thread
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import typer

if TYPE_CHECKING:
    from pipette_opt.plans.watcher import Watcher

STOPPED_EARLY = 4
"""Exit code of a search that was stopped, or reached its time limit, before its gap was closed."""

GRACE_S = 1.0
"""Seconds after a signal in which a search without a plan may end by itself. Chosen: a command ends within 2 s."""


def _nothing() -> bool:
    return False


@contextmanager
def stop_on_interrupt(stop: threading.Event, is_prepared: Callable[[], bool] = _nothing) -> Iterator[None]:
    """
    Set ``stop`` on the first Ctrl-C or SIGTERM within the context; a second signal has its usual effect.

    Parameters
    ----------
    is_prepared
        Function that returns whether the search has a plan to finish; before, it is interrupted if it goes on for
        ``GRACE_S`` after the signal. Plans that were written stay.
    """
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    timers: list[threading.Timer] = []

    def end() -> None:
        if not is_prepared():
            _thread.interrupt_main()

    def ask(number: int, frame: object) -> None:
        stop.set()
        for signal_number, handler in before.items():
            signal.signal(signal_number, handler)
        timers.append(threading.Timer(GRACE_S, end))
        timers[-1].daemon = True
        timers[-1].start()

    for number in before:
        signal.signal(number, ask)
    try:
        yield
    finally:
        for timer in timers:
            timer.cancel()
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def watched(*, quiet: bool, begun: float | None = None, keeps_plans: bool = False) -> "Iterator[Watcher]":
    """
    Yield the watcher of a search, whose progress is shown and which Ctrl-C stops.

    Parameters
    ----------
    quiet
        Show no progress.
    begun
        Seconds of ``time.perf_counter`` when the command began; by default now.
    keeps_plans
        Whether the search finishes the plan that it has when it is stopped; see :func:`stop_on_interrupt`.
    """
    from pipette_opt.cli.output import live_progress
    from pipette_opt.plans.watcher import Watcher

    watcher = Watcher() if begun is None else Watcher(begun=begun)
    with (
        stop_on_interrupt(watcher.stop, lambda: keeps_plans and watcher.is_prepared),
        live_progress(watcher, quiet=quiet),
    ):
        yield watcher


def exit_if_stopped(watcher: "Watcher", done: str) -> None:
    """Exit with code 4 if the search was stopped early; ``done`` says what is done."""
    from pipette_opt.cli.output import say

    if watcher.stop.is_set():
        say(f"stopped early: {done}")
        raise typer.Exit(STOPPED_EARLY)

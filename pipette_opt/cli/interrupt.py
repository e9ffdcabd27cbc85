"""Ctrl-C and SIGTERM: the first signal stops a search, which still returns its best plan."""

import _thread
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

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

"""Ctrl-C and SIGTERM: the first signal stops a search, which still returns its best plan."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager

STOPPED_EARLY = 4
"""Exit code of a search that was stopped, or reached its time limit, before its gap was closed."""


@contextmanager
def stop_on_interrupt(stop: threading.Event) -> Iterator[None]:
    """Set ``stop`` on the first Ctrl-C or SIGTERM within the context; a second signal has its usual effect."""
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}

    def ask(number: int, frame: object) -> None:
        stop.set()
        for signal_number, handler in before.items():
            signal.signal(signal_number, handler)

    for number in before:
        signal.signal(number, ask)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)

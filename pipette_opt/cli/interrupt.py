"""Ctrl-C and SIGTERM: the first asks a run to finish with what it has."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager

STOPPED_EARLY = 4
"""Exit code of a run that ended before its gap was closed: it was asked to finish, or its time was over."""


@contextmanager
def stop_on_interrupt(stop: threading.Event) -> Iterator[None]:
    """The first Ctrl-C (or SIGTERM) asks the run to finish with what it has; a second one ends it."""
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}

    def ask(number: int, frame: object) -> None:
        stop.set()
        for one, handler in before.items():
            signal.signal(one, handler)

    for number in before:
        signal.signal(number, ask)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)

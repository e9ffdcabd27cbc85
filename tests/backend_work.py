"""Work for other processes; in a module of its own so that they can import it."""

import os
import signal
import time
from pathlib import Path


def square(number: int) -> int:
    """Plain work."""
    return number * number


def fail_on_three(number: int) -> int:
    """A mistake in the work itself."""
    if number == 3:
        raise ValueError("three")
    return number


def die_once(piece: tuple[int, str]) -> int:
    """Kill this very process if nobody has done so for that piece yet."""
    number, marker = piece
    if marker and not Path(marker).exists():
        Path(marker).touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return number


def die_always(piece: int) -> int:
    """A piece that no process survives."""
    if piece == 0:
        os.kill(os.getpid(), signal.SIGKILL)
    return piece


def sleep(seconds: float) -> float:
    """Slow work."""
    time.sleep(seconds)
    return seconds

"""Values of options, parsed and checked; errors name the option."""

import os
from collections.abc import Callable
from typing import Any, TypeVar

from pipette_opt.base.errors import InputError, shown
from pipette_opt.base.units import whole_number

T = TypeVar("T")

MAX_WORKERS = 1024
"""Threads of one machine; more cores than any has."""


def sizes(option: str, text: str | None) -> tuple[int, ...] | None:
    """Parse ``4,8``; raises ``InputError`` naming the option."""
    if text is None:
        return None
    values = []
    for part in text.split(","):
        number = whole_number(part.strip())
        if number is None or number < 1:
            raise InputError(option, f"must be whole numbers >= 1 separated by commas, got {shown(text)}.")
        values.append(number)
    return tuple(values)


def numbers(option: str, text: str | None) -> list[float]:
    """Parse numbers separated by commas; raises ``InputError`` naming the option."""
    found = []
    for word in (text or "").split(","):
        if not word.strip():
            continue
        try:
            found.append(float(word))
        except ValueError:
            raise InputError(option, f"must be numbers separated by commas, got {word.strip()!r}.") from None
    return found


def cores() -> int:
    """Return the number of cores of this machine."""
    return os.cpu_count() or 1


def threads(workers: int | None) -> int:
    """Return as many threads as ``workers`` says, or all cores."""
    if workers is not None and workers > MAX_WORKERS:
        raise InputError("--workers", f"must be at most {MAX_WORKERS}, got {workers}.")
    return cores() if workers is None else workers


def checked(make: Callable[..., T], **fields: Any) -> T:
    """Make settings from options; what they refuse becomes an error that names the option."""
    try:
        return make(**fields)
    except ValueError as error:
        name = str(error).split(" ", 1)[0]
        option = f"--{name.removesuffix('_s').replace('_', '-')}" if name in fields else "options"
        raise InputError(option, str(error).split(" ", 1)[-1]) from None

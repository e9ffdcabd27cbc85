"""Units: bytes, seconds, bytes/s and FLOP/s inside the package; GiB and GB/s only in input and output."""

import math
import re
from collections.abc import Sequence

KIB = 1024
MIB = 1024**2
GIB = 1024**3
GB = 10**9
TFLOP = 10**12
US = 1e-6


def gib(num_bytes: float) -> float:
    """Return a number of bytes in GiB."""
    return num_bytes / GIB


def counted(number: int, word: str) -> str:
    """Return a number with its noun, in the plural if needed: ``1 flow``, ``1,024 flows``."""
    return f"{number:,} {word}" if number == 1 else f"{number:,} {word}s"


def listed(names: Sequence[str], most: int) -> str:
    """Return the first ``most`` names and the number of the others: ``a, b and 3 more``."""
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more


def three_digits(value: float) -> str:
    """Return a number with three significant digits and without an exponent: ``66.0``, ``0.0123``, ``7,940``."""
    mantissa, exponent = f"{value:.2e}".split("e")
    decimals = 2 - int(exponent)
    return f"{float(f'{mantissa}e{exponent}'):,.{max(decimals, 0)}f}"


def percent(share: float, sign: str = "") -> str:
    """
    Return a share as a percentage with three significant digits, at most two of them decimals: ``0.35%``, ``56.1%``.

    A positive share below 0.01 % gives ``< 0.01%``. ``sign`` is a sign option of a format, such as ``+``.
    """
    if 0 < share < 1e-4:
        return "< 0.01%"
    size = abs(share)
    return f"{share:{sign}.{2 if size < 0.09995 else 1 if size < 0.9995 else 0}%}"


MAX_DIGITS = 18
"""Most digits of an accepted whole number; no size has more. Python refuses numbers of thousands of digits."""


def whole_number(text: str) -> int | None:
    """Return the whole number that a text of at most 18 digits 0 to 9 stands for; ``None`` for any other text."""
    return int(text) if text.isascii() and text.isdecimal() and len(text) <= MAX_DIGITS else None


_NUMBER = re.compile(r"[-+]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][-+]?[0-9]+)?", re.ASCII)


def number_of(text: str) -> float:
    """Return the decimal number in a text; ``ValueError`` for ``nan``, ``inf``, ``1_0`` and non-ASCII digits."""
    value = float(text) if _NUMBER.fullmatch(text.strip()) else math.nan
    if not math.isfinite(value):
        raise ValueError(f"{text[:40]!r} is no number")
    return value


def ceil_div(numerator: int, denominator: int) -> int:
    """Return the integer quotient, rounded up."""
    return -(-numerator // denominator)

"""Units: bytes, seconds, bytes/s and FLOP/s inside the package; GiB and GB/s only in input and output."""

import math
import re
from collections.abc import Sequence

from pipette_opt.base.errors import InputError, shown

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


def listed(names: Sequence[str], most: int, noun: str = "") -> str:
    """Return the first ``most`` names and the number of the others: ``a, b and 3 more``; with ``noun``, its plural."""
    left = len(names) - most
    more = f" and {counted(left, f'more {noun}') if noun else f'{left} more'}" if left > 0 else ""
    return ", ".join(names[:most]) + more


def first_notes(notes: Sequence[str], most: int, rest: str) -> list[str]:
    """Return the first ``most`` notes, then a note with the number of the others, called ``rest``."""
    return [*notes[:most], *([f"{len(notes) - most} more {rest}."] if len(notes) > most else [])]


def one_line(text: str, most: int = 80) -> str:
    """Return a text on one line, cut after ``most`` characters."""
    line = " ".join(text.split())
    return line if len(line) <= most else f"{line[: most - 3]}..."


def three_digits(value: float) -> str:
    """Return a number with three significant digits and without an exponent: ``66.0``, ``0.0123``, ``7,940``."""
    mantissa, exponent = f"{value:.2e}".split("e")
    decimals = 2 - int(exponent)
    return f"{float(f'{mantissa}e{exponent}'):,.{max(decimals, 0)}f}"


def percent(share: float, sign: str = "", decimals: int = 2) -> str:
    """
    Return a share as a percentage: ``0.35 %``, ``56.1 %``, ``134 %``.

    A positive share that would be rounded to zero gives ``less than 0.01 %``.

    Parameters
    ----------
    sign
        Sign option of a format, such as ``+``.
    decimals
        Decimals below 10 %; one less from 10 % on, two less from 100 % on.
    """
    least = 10.0 ** -(decimals + 2)
    if 0 < share < least / 2:
        return f"less than {100 * least:g} %"
    rounds_up = 1 - 5 * least
    shown = sum(abs(share) < rounds_up * 10.0**power for power in range(-1, decimals - 1))
    return f"{100 * share:{sign}.{shown}f} %"


def chosen_percent(share: float) -> str:
    """Return a share that a person chose as a percentage, without needless digits: ``90 %``, ``0.01 %``."""
    return f"{100 * share:g} %"


def seconds_text(seconds: float | None) -> str:
    """Return seconds with four digits after the point, for tables; a dash for ``None``."""
    return "-" if seconds is None else f"{seconds:.4f} s"


def short_seconds(seconds: float | None) -> str:
    """Return seconds with three significant digits, for sentences; a dash for ``None``."""
    return "-" if seconds is None else f"{three_digits(seconds)} s"


def words(name: str) -> str:
    """Return the name of a field with spaces instead of underscores."""
    return name.replace("_", " ")


MIN_DIFFERENCE = 5e-4
"""Smallest relative difference of two times that is shown; below it they are as fast. Chosen: far below any error."""


SAME = 1e-6
"""Gap up to which a value is the best of the searched space; solver ticks are hardly finer."""


def difference(ratio: float, more: str, less: str, equal: str) -> str:
    """
    Return a ratio as a difference in percent with three significant digits: ``1.24 % slower``, ``56.0 % more``.

    Parameters
    ----------
    more, less, equal
        Words for a ratio above, below and near 1.
    """
    if abs(ratio - 1) < MIN_DIFFERENCE:
        return equal
    return f"{three_digits(100 * abs(ratio - 1))} % {more if ratio > 1 else less}"


def at_most_percent(share: float) -> str:
    """
    Return an upper bound as a percentage with three significant digits, at most two of them decimals, rounded up.

    ``0.09 %``, ``1.24 %``, ``82.6 %``, ``141 %``.
    """
    size = 100 * share
    decimals = 2 if size < 10 else 1 if size < 100 else 0
    return f"{math.ceil(size * 10**decimals - 1e-6) / 10**decimals:,.{decimals}f} %"


def percent_above(gap: float) -> str:
    """
    Return how far a value is above its bound, as a percentage of the bound, rounded up; ``unknown`` without a bound.

    Parameters
    ----------
    gap
        Share of the value that the bound leaves open: ``(value - bound) / value``, in [0, 1].
    """
    return "unknown" if gap >= 1 else at_most_percent(max(gap, 0.0) / (1 - gap))


def above_best(gap: float) -> str:
    """
    Return how far a value is above the best of the searched space at most, in words.

    Parameters
    ----------
    gap
        Parameter of :func:`percent_above`.
    """
    if gap >= 1:
        return "nothing is proven about how far it is from the best of the searched space"
    if gap < SAME:
        return "the best of the searched space"
    return f"at most {percent_above(gap)} above the best of the searched space"


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


_WHOLE = re.compile(rf"-?[0-9]{{1,{MAX_DIGITS}}}", re.ASCII)

ABOVE_ZERO = math.ulp(0.0)
"""Smallest positive float: lower limit of numbers that must be > 0."""


def number_in(
    value: object, where: str, must: str, low: float, high: float = math.inf, *, is_whole: bool = False
) -> float:
    """
    Return the number in a text, within limits.

    Parameters
    ----------
    value
        Text, or a number of a YAML or JSON file.
    where, must
        Place and words of the ``InputError`` for any other value: ``rate must be a number > 0``.
    is_whole
        Whether only whole numbers are valid.
    """
    text = str(value).strip()
    try:
        number = int(text) if _WHOLE.fullmatch(text) else math.nan if is_whole else number_of(text)
    except ValueError:
        number = math.nan
    if isinstance(value, bool) or not low <= number <= high:
        raise InputError(where, f"{must}, got {shown(value)}.")
    return number


def ceil_div(numerator: int, denominator: int) -> int:
    """Return the integer quotient, rounded up."""
    return -(-numerator // denominator)

"""Host names: lists, and Slurm ranges such as ``gpu[01-16,20]``."""

import math
import re
from collections.abc import Callable, Collection, Iterable, Mapping
from itertools import chain, product, zip_longest

from pipette_opt.base.errors import InputError, did_you_mean, shown
from pipette_opt.base.units import whole_number

MAX_HOSTS = 100_000
"""Largest number of names in a range or a list. Chosen."""

MAX_NAME = 253
"""Largest number of characters of a host name, as in DNS; longer names would expand a short range to gigabytes."""

_RANGE = re.compile(r"([0-9]+)(?:-([0-9]+))?")
_LEGAL = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*(:[0-9]+)?")
"""Valid names of hosts, and of blocks of their GPUs such as ``gpu01:4``. No program reads such a name as an option."""


def expand_hosts(hosts: object, where: str = "hosts") -> tuple[str, ...]:
    """Return the host names of a range, of ranges separated by commas, or of a list of ranges, in written order."""
    entries = hosts if isinstance(hosts, list) else [hosts]
    names: list[str] = []
    for entry in entries:
        if not isinstance(entry, str | int) or isinstance(entry, bool) or not str(entry).strip():
            raise InputError(where, f"hosts must be names or ranges such as gpu[01-16], got {shown(entry)}.")
        for part in _split(where, str(entry)):
            names += _expand(where, part, MAX_HOSTS - len(names))
    if not names:
        raise InputError(where, "hosts must name at least one host.")
    return tuple(names)


def checked_host(name: str, where: str) -> str:
    """Return a valid host name, safe in launch scripts and manifests. ``InputError`` for any other."""
    if len(name) > MAX_NAME:
        raise InputError(
            where, f"host {shown(name)} has more than {MAX_NAME} characters, the maximum; shorten the name."
        )
    if not _LEGAL.fullmatch(name):
        raise InputError(
            where,
            f"host {shown(name)} must consist of letters, digits, dots, dashes and underscores, "
            "and not begin with a dot or a dash.",
        )
    return name


def check_known(hosts: Iterable[str], known: Collection[str], where: str, place: str, near: Iterable[str] = ()) -> None:
    """
    Raise ``InputError`` for a host that is not among ``known``.

    Parameters
    ----------
    place
        Words for the place of the known hosts: ``in cluster lab``.
    near
        Names that may be meant, if others than ``known``.
    """
    for host in hosts:
        if host not in known:
            raise InputError(where, f"host {host!r} is not {place}.{did_you_mean(host, near or known)}")


def values_by_name(
    entries: Iterable[str],
    where: str,
    noun: str,
    check: Callable[[object, str], float],
    named: Callable[[str], Iterable[str]],
) -> dict[str, float]:
    """
    Return the value of each name in entries such as ``gpu[03-04]=0.8``.

    Parameters
    ----------
    noun
        Word for a value in an error message.
    check
        Function that returns the number of a text at a place.
    named
        Function that returns the names in the text before the equals sign.
    """
    found: dict[str, float] = {}
    for entry in entries:
        names, _, text = (part.strip() for part in entry.rpartition("="))
        value = check(text, where)
        for name in named(names):
            if found.setdefault(name, value) != value:
                problem = f"gives {name} two {noun}s, {found[name]:g} and {value:g}; give only one."
                raise InputError(where, problem)
    return found


def recorded_values(record: object, where: str, noun: str, check: Callable[[object, str], float]) -> dict[str, float]:
    """Return the value of each host that a plan records by range of hosts, such as its speed; ``noun`` names it."""
    if not isinstance(record, Mapping | None):
        raise InputError(where, f"must be hosts and their {noun}s, or null, got {record!r}.")
    entries = {} if record is None else record
    return {host: check(value, where) for hosts, value in entries.items() for host in expand_hosts(hosts, where)}


def natural_key(text: str) -> list[tuple[int, int | str]]:
    """Return a sort key that compares numbers inside names by value: host2 before host10."""
    return [
        (1, part) if (number := whole_number(part)) is None else (0, number)
        for part in re.split(r"([0-9]+)", text)
        if part
    ]


def _split(where: str, text: str) -> list[str]:
    """Return the parts of a text between the commas outside brackets."""
    parts, depth = [""], 0
    for piece in re.split(r"([\[\],])", text):
        depth += {"[": 1, "]": -1}.get(piece, 0)
        if depth not in (0, 1):
            break
        if piece == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += piece
    if depth:
        raise InputError(where, f"hosts {shown(text)} have an unmatched bracket; a range looks like gpu[01-16].")
    return [part.strip() for part in parts if part.strip()]


def _expand(where: str, text: str, most: int) -> list[str]:
    """
    Return all names of a text with ranges in brackets, in order.

    Parameters
    ----------
    most
        Largest number of names, checked before any name is made.
    """
    pieces = re.split(r"\[([^\[\]]*)\]", text)
    ranges = [[_numbers(where, text, part.strip()) for part in piece.split(",")] for piece in pieces[1::2]]
    if math.prod(sum(last - first + 1 for first, last, _ in bounds) for bounds in ranges) > most:
        raise InputError(where, f"hosts {shown(text)} are more than {MAX_HOSTS} names, the maximum.")
    checked_host("".join(pieces[::2]) or "0", where)
    choices = [
        [str(n).zfill(width) for first, last, width in bounds for n in range(first, last + 1)] for bounds in ranges
    ]
    names = (
        "".join(chain.from_iterable(zip_longest(pieces[::2], numbers, fillvalue=""))) for numbers in product(*choices)
    )
    return [checked_host(name, where) for name in names]


def _numbers(where: str, text: str, part: str) -> tuple[int, int, int]:
    """Return first and last number of a range, and the number of digits of the first."""
    match = _RANGE.fullmatch(part)
    if match is None:
        raise InputError(where, f"hosts {shown(text)}: {shown(part)} must be a number or a range such as 01-16.")
    first, last = whole_number(match.group(1)), whole_number(match.group(2) or match.group(1))
    if first is None or last is None or last - first >= MAX_HOSTS:
        raise InputError(
            where, f"hosts {shown(text)}: the range {shown(part)} has more than {MAX_HOSTS} names, the maximum."
        )
    if last < first:
        raise InputError(
            where, f"hosts {shown(text)}: the range {part} runs backwards; write the smaller number first."
        )
    return first, last, len(match.group(1))

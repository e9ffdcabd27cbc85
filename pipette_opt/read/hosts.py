"""Host names: lists, and Slurm's ranges such as ``gpu[01-16,20]``."""

import re

from pipette_opt.base.errors import InputError, shown
from pipette_opt.base.units import whole_number
from pipette_opt.specs.host_names import compress_hosts as compress_hosts  # the other way round

MAX_HOSTS = 100_000

_RANGE = re.compile(r"^(\d+)(?:-(\d+))?$")
_LEGAL = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*(:\d+)?")
"""Names of hosts, and of blocks of their GPUs, such as ``gpu01:4``; none that a program takes for an option."""


def expand_hosts(hosts: object, where: str = "hosts") -> tuple[str, ...]:
    """Host names of a range, of several separated by commas, or of a list of either, in the order written."""
    entries = hosts if isinstance(hosts, list) else [hosts]
    names: list[str] = []
    for entry in entries:
        if not isinstance(entry, str | int) or isinstance(entry, bool) or not str(entry).strip():
            raise InputError(where, f"hosts must be names or ranges such as gpu[01-16], got {entry!r}.")
        for part in _split(where, str(entry)):
            names += _expand(where, part)
            if len(names) > MAX_HOSTS:
                raise InputError(where, f"hosts {entry!r} are more than {MAX_HOSTS} names.")
    if not names:
        raise InputError(where, "hosts must name at least one host.")
    return tuple(names)


def checked_host(name: str, where: str) -> str:
    """A host's name, which launch scripts and manifests will have. ``InputError`` unless it is one."""
    if not _LEGAL.fullmatch(name):
        raise InputError(
            where,
            f"host {shown(name)} must consist of letters, digits, dots, dashes and underscores, "
            "and not begin with a dot or a dash.",
        )
    return name


def natural_key(text: str) -> list[tuple[int, int | str]]:
    """Sort key that counts numbers: host2 before host10."""
    return [
        (1, part) if (number := whole_number(part)) is None else (0, number)
        for part in re.split(r"(\d+)", text)
        if part
    ]


def _split(where: str, text: str) -> list[str]:
    """Split at the commas outside brackets."""
    parts = re.split(r",(?![^\[\]]*\])", text)
    if text.count("[") != text.count("]"):
        raise InputError(where, f"hosts {text!r} have an unmatched bracket; a range looks like gpu[01-16].")
    return [part.strip() for part in parts if part.strip()]


def _expand(where: str, text: str) -> list[str]:
    match = re.match(r"^([^\[\]]*)\[([^\[\]]*)\](.*)$", text)
    if match is None:
        return [checked_host(text, where)]
    prefix, ranges, rest = match.groups()
    numbers = [number for part in ranges.split(",") for number in _numbers(where, text, part.strip())]
    return [name for number in numbers for name in _expand(where, f"{prefix}{number}{rest}")]


def _numbers(where: str, text: str, part: str) -> list[str]:
    match = _RANGE.match(part)
    if match is None:
        raise InputError(where, f"hosts {text!r}: {part!r} must be a number or a range such as 01-16.")
    first, last = whole_number(match.group(1)), whole_number(match.group(2) or match.group(1))
    if first is None or last is None or last - first >= MAX_HOSTS:
        raise InputError(where, f"hosts {shown(text)}: the range {shown(part)} is more than {MAX_HOSTS} names.")
    if last < first:
        raise InputError(where, f"hosts {text!r}: the range {part} runs backwards.")
    return [str(number).zfill(len(match.group(1))) for number in range(first, last + 1)]

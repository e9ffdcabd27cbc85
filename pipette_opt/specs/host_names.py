"""Short forms of host names: ranges such as ``gpu[01-16]``, and names for blocks of GPUs of a host."""

import re
from collections.abc import Sequence

from pipette_opt.base.units import whole_number

_NUMBERED = re.compile(r"^(.*(?<![0-9])|)([0-9]+)$")


def compress_hosts(hosts: tuple[str, ...]) -> str:
    """
    Return host names in short form, e.g. ``gpu[01-16,20]``; ``expand_hosts`` restores them in the same order.

    Neighbouring names with the same prefix and the same number of digits are joined.
    """
    groups: list[tuple[str, list[str]]] = []
    for host in hosts:
        match = _NUMBERED.match(host)
        prefix, number = match.groups() if match else (host, "")
        if number and groups and groups[-1][0] == prefix and groups[-1][1]:
            groups[-1][1].append(number)
        else:
            groups.append((prefix, [number] if number else []))
    return ",".join(_group_text(prefix, numbers) for prefix, numbers in groups)


def _group_text(prefix: str, numbers: list[str]) -> str:
    if not numbers:
        return prefix
    runs: list[list[str]] = []
    for number in numbers:
        follows = runs and int(number) == int(runs[-1][-1]) + 1 and number == str(int(number)).zfill(len(runs[-1][0]))
        if follows:
            runs[-1].append(number)
        else:
            runs.append([number])
    texts = [run[0] if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs]
    return f"{prefix}{numbers[0]}" if len(numbers) == 1 else f"{prefix}[{','.join(texts)}]"


def block_name(host: str, first: int) -> str:
    """Return the name of a block of GPUs of a host whose first GPU is ``first``, e.g. ``gpu01:4``."""
    return f"{host}:{first}"


def host_and_first_gpu(name: str) -> tuple[str, int]:
    """Return the host and first GPU that a block name such as ``gpu01:4`` gives; a plain host name gives GPU 0."""
    host, mark, first = name.rpartition(":")
    number = whole_number(first) if mark else None
    return (name, 0) if number is None else (host, number)


def with_blocks(names: Sequence[str], known: Sequence[str]) -> list[str]:
    """Return the names with each host replaced by its known blocks of GPUs; other names stay unchanged."""
    blocks: dict[str, list[str]] = {}
    for block in known:
        blocks.setdefault(host_and_first_gpu(block)[0], []).append(block)
    return [block for name in names for block in ([name] if name in known else blocks.get(name, [name]))]

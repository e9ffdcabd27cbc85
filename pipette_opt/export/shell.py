"""Pieces of bash that several targets write; everything that comes from a plan is quoted."""

import re
import shlex
from collections.abc import Iterable, Sequence

from pipette_opt.base.errors import InputError

MASTER_PORT = 29500
"""Port of the rendezvous, torchrun's own default."""

FOREIGN_SOURCE = "# shellcheck source=/dev/null"
"""For ShellCheck: the next line reads a file that is only known when the script runs."""

SOURCED = "# shellcheck disable=SC2034  # The arrays are for the script that reads this file."
"""For ShellCheck, below the first line of a file of arrays."""

JOB_ARGUMENTS = 'JOB_ARGS=("$@")\nif (( $# == 0 )); then JOB_ARGS=("${TRIAL_ARGS[@]}"); fi'
"""A job's own arguments, or else the trial run's."""

HOST_NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?")
"""Names and addresses that every launcher takes as they are."""


def launchable(hosts: Iterable[str]) -> list[str]:
    """Each host once, in the given order; ``InputError`` for one that a launcher would misread."""
    order = list(dict.fromkeys(hosts))
    for host in order:
        if not HOST_NAME.fullmatch(host):
            raise InputError("hosts", f"{host!r} is no host name (letters, digits, dots, hyphens); rename it first.")
    return order


def quoted(words: Iterable[object]) -> str:
    """Words of a command, each quoted where it needs to be."""
    return " ".join(shlex.quote(str(word)) for word in words)


def comment(text: str) -> str:
    """Comment lines; whatever ``text`` holds, none of it is run."""
    return "\n".join(f"# {line}" for line in text.splitlines())


def array_lines(name: str, entries: Sequence[Sequence[object]]) -> list[str]:
    """Definition of a bash array, an entry of several words per line."""
    return [f"{name}=(", *(f"  {quoted(words)}" for words in entries), ")"]


def master_lines(host: str | None) -> list[str]:
    """Where the ranks meet: the given host unless the environment says otherwise; without a host it must say it."""
    address = ":?is needed: the host of rank 0" if host is None else f":-{quoted([host])}"
    return [
        f"export MASTER_ADDR=${{MASTER_ADDR{address}}}",
        f"export MASTER_PORT=${{MASTER_PORT:-{MASTER_PORT}}}",
    ]

"""Pieces of bash that several targets write; every value of a plan is quoted."""

import re
import shlex
from collections.abc import Iterable, Sequence

from pipette_opt.base.errors import InputError

MASTER_PORT = 29500
"""Port of the rendezvous; torchrun's default."""

FOREIGN_SOURCE = "# shellcheck source=/dev/null"
"""Directive for ShellCheck: the next line reads a file that is known only when the script runs."""

SOURCED = "# shellcheck disable=SC2034  # The arrays are for the script that reads this file."
"""Directive for ShellCheck, below the first line of a file of arrays."""

JOB_ARGUMENTS = 'JOB_ARGS=("$@")\nif (( $# == 0 )); then JOB_ARGS=("${TRIAL_ARGS[@]}"); fi'
"""Lines that take the script's own arguments, or those of the trial run if it has none."""

HOST_NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?")
"""Names and addresses that every launcher accepts unquoted."""


def launchable(hosts: Iterable[str]) -> list[str]:
    """Return each host once, in order. ``InputError`` for a name that a launcher would misread."""
    order = list(dict.fromkeys(hosts))
    for host in order:
        if not HOST_NAME.fullmatch(host):
            raise InputError("hosts", f"{host!r} is no host name (letters, digits, dots, hyphens); rename it first.")
    return order


def quoted(words: Iterable[object]) -> str:
    """Join words of a command, quoted for the shell."""
    return " ".join(shlex.quote(str(word)) for word in words)


def comment(text: str) -> str:
    """Return comment lines; no part of ``text`` can run."""
    return "\n".join(f"# {line}" for line in text.splitlines())


def array_lines(name: str, entries: Sequence[Sequence[object]]) -> list[str]:
    """Definition of a bash array, with one entry of several words on each line."""
    return [f"{name}=(", *(f"  {quoted(words)}" for words in entries), ")"]


def master_lines(host: str | None) -> list[str]:
    """Lines that set the rendezvous: the given host unless the environment has another; without a host it must."""
    address = ":?is needed: the host of rank 0" if host is None else f":-{quoted([host])}"
    return [
        f"export MASTER_ADDR=${{MASTER_ADDR{address}}}",
        f"export MASTER_PORT=${{MASTER_PORT:-{MASTER_PORT}}}",
    ]

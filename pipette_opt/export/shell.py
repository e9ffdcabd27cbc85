"""Fragments of bash that several formats use; every value of a plan is quoted."""

import re
import shlex
from collections.abc import Iterable, Sequence

from pipette_opt.base.errors import InputError

MASTER_PORT = 29500
"""Port of the master process; torchrun's default."""

FOREIGN_SOURCE = "# shellcheck source=/dev/null"
"""Directive for ShellCheck before a line that sources a file known only at run time."""

SOURCED = "# shellcheck disable=SC2034  # The arrays are for the script that reads this file."
"""Directive for ShellCheck at the top of a file that defines arrays for another script."""

JOB_ARGUMENTS = 'JOB_ARGS=("$@")\nif (( $# == 0 )); then JOB_ARGS=("${TRIAL_ARGS[@]}"); fi'
"""Bash lines that use the script's own arguments, or those of the trial run if it has no arguments."""

HOST_NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?")
"""Names and addresses that every launcher accepts unquoted."""


def launchable(hosts: Iterable[str]) -> list[str]:
    """Return the distinct hosts in order; raise ``InputError`` for a name that a launcher would misread."""
    order = list(dict.fromkeys(hosts))
    for host in order:
        if not HOST_NAME.fullmatch(host):
            raise InputError(
                "hosts",
                f"{host!r} is no host name: only letters, digits, dots, hyphens and underscores are allowed; "
                "rename the host.",
            )
    return order


def quoted(words: Iterable[object]) -> str:
    """Join words into a shell command, with quotes where needed."""
    return " ".join(shlex.quote(str(word)) for word in words)


_BARE = re.compile(
    r"""(?: [^'"\\#<`$] | \\. | <(?!<) | \$(?!['"])      # outside quotes; no comment and no here-document
        | '[^']*' | "(?: [^"\\`$] | \\. | \$(?!\() )*"     # whole quotes, the double without a command inside
    )*""",
    re.VERBOSE | re.DOTALL,
)
"""Pattern of shell text behind which a quoted word is read as it was quoted."""

_PLAIN = re.compile(r"[A-Za-z0-9_@%+=:,./\[\]-]*")
"""Pattern of values that mean themselves inside quotes of any kind."""


def quoted_within(before: str, value: str) -> str | None:
    """Return a value as a word behind shell text; ``None`` if quotes around the place would give it a meaning."""
    if _BARE.fullmatch(before):
        return shlex.quote(value)
    return value if _PLAIN.fullmatch(value) else None


def comment(text: str) -> str:
    """Return the text as bash comment lines, so that no part of it can run."""
    return "\n".join(f"# {line}" for line in text.splitlines())


PER_LINE = 16
"""Entries per line of a bash array with one for each rank. Chosen."""


def rank_array_lines(name: str, values: Sequence[object]) -> list[str]:
    """Return bash lines that define an array with an entry for each rank."""
    return array_lines(name, [values[start : start + PER_LINE] for start in range(0, len(values), PER_LINE)])


def array_lines(name: str, entries: Sequence[Sequence[object]]) -> list[str]:
    """Return bash lines that define an array; each entry, of one or several words, is a line."""
    return [f"{name}=(", *(f"  {quoted(words)}" for words in entries), ")"]


def master_lines(host: str | None) -> list[str]:
    """
    Return bash lines that set ``MASTER_ADDR`` and ``MASTER_PORT`` unless the environment sets them.

    Without ``host``, the script stops if the environment does not set ``MASTER_ADDR``.
    """
    address = ":?is needed: the host of rank 0" if host is None else f":-{quoted([host])}"
    return [
        f"export MASTER_ADDR=${{MASTER_ADDR{address}}}",
        f"export MASTER_PORT=${{MASTER_PORT:-{MASTER_PORT}}}",
    ]

"""
The versions of all packages of CI's environment of linters and clients, ``.ci/constraints.txt``.

``.ci/run`` installs that environment with the file as constraints, then runs ``python tests/locked_versions.py`` in it,
which ends with exit code 1 if the file is stale. ``--write`` makes it from the environment at hand.
"""

import re
import sys
from importlib.metadata import distributions
from pathlib import Path

CONSTRAINTS = Path(__file__).resolve().parents[1] / ".ci" / "constraints.txt"

HEAD = (
    "# Python {python}; made by `python tests/locked_versions.py --write` in CI's environment of linters and clients.\n"
)

LEFT_OUT = re.compile(r"pipette-opt|pip|nvidia-.*|cuda-.*|triton")
"""Packages without a line: this one, pip, and what torch's wheels for GPUs bring."""


def installed() -> dict[str, str]:
    """Return the versions of all packages of this environment, by their normalised names; no local versions."""
    found = {re.sub(r"[-_.]+", "-", one.metadata["Name"]).lower(): one.version for one in distributions()}
    return {name: found[name].partition("+")[0] for name in sorted(found) if not LEFT_OUT.fullmatch(name)}


def text_of(versions: dict[str, str], python: str) -> str:
    """Return the file of these versions."""
    return HEAD.format(python=python) + "".join(f"{name}=={version}\n" for name, version in versions.items())


def stale_lines(text: str, versions: dict[str, str], python: str) -> list[str]:
    """Return lines to add to the file (``+``) and to remove from it (``-``); none for another Python's file."""
    if not text.startswith(HEAD.format(python=python)):
        return []
    wanted, found = (set(part.splitlines()[1:]) for part in (text_of(versions, python), text))
    return [f"+{line}" for line in sorted(wanted - found)] + [f"-{line}" for line in sorted(found - wanted)]


def main() -> int:
    """Write the file, or say how it is stale."""
    python = ".".join(map(str, sys.version_info[:2]))
    if "--write" in sys.argv[1:]:
        CONSTRAINTS.write_text(text_of(installed(), python), encoding="utf-8")
        return 0
    lines = stale_lines(CONSTRAINTS.read_text(encoding="utf-8"), installed(), python)
    for line in lines:
        sys.stdout.write(f"{line}\n")
    if lines:
        sys.stdout.write(".ci/constraints.txt is stale: run `python tests/locked_versions.py --write` and commit it.\n")
    return bool(lines)


if __name__ == "__main__":
    sys.exit(main())

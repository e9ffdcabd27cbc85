"""
The oldest versions that pyproject.toml allows of the package's own requirements, as constraints for pip.

``python tests/oldest_versions.py`` prints them; ``.ci/run`` installs with them in the oldest Python.
"""

import re
import sys
import tomllib
from collections.abc import Sequence
from pathlib import Path

PYPROJECT = Path(__file__).resolve().parents[1] / "pyproject.toml"

REQUIREMENT = re.compile(r"(?P<name>[A-Za-z0-9._-]+)(?:\[[^]]*\])?>=(?P<oldest>[0-9.]+)(?:,.*)?")
"""A requirement with a lower bound."""


def oldest_versions(requirements: Sequence[str]) -> list[str]:
    """Return ``name==version`` of each requirement's lower bound; ``ValueError`` for one that has none."""
    found = []
    for requirement in requirements:
        bound = REQUIREMENT.fullmatch(requirement)
        if bound is None:
            raise ValueError(f"{requirement!r} must have a lower bound, as in 'numpy>=1.26'.")
        found.append(f"{bound['name']}=={bound['oldest']}")
    return found


if __name__ == "__main__":
    project = tomllib.loads(PYPROJECT.read_text(encoding="utf-8"))["project"]
    sys.stdout.write("\n".join(oldest_versions(project["dependencies"])) + "\n")

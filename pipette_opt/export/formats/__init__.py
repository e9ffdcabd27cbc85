"""
Export formats: each is a module of this folder, or of a framework, with its ``TARGET``.

The module is named as the format is, ``_`` for ``-``: ``rankmap_csv`` is ``--format rankmap-csv``. A framework's module
(:mod:`pipette_opt.frameworks`) also reads its launches.
"""

import re
from collections.abc import Mapping
from pathlib import Path
from pkgutil import iter_modules

_WRITES = re.compile(r"^TARGET = ", re.MULTILINE)
"""Line of a framework's module that also writes plans."""

FRAMEWORKS = "pipette_opt.frameworks"
"""Package of the frameworks. It is above this floor, so that its modules are looked up by their names."""


def format_modules() -> Mapping[str, str]:
    """Return the dotted name of each format's module, by the format's name, sorted, without importing any."""
    here = {module.name: f"{__name__}.{module.name}" for module in iter_modules(__path__)}
    folder = Path(__file__).parents[2] / "frameworks"
    above = {
        path.stem: f"{FRAMEWORKS}.{path.stem}"
        for path in folder.glob("*.py")
        if _WRITES.search(path.read_text("utf-8"))
    }
    return {name.replace("_", "-"): module for name, module in sorted((here | above).items())}


def format_names() -> tuple[str, ...]:
    """Return the names of all formats, sorted."""
    return tuple(format_modules())

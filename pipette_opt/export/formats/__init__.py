"""
Export formats: each is a module of this folder with its ``TARGET``.

The module is named as the format is, ``_`` for ``-``: ``rankmap_csv`` is ``--format rankmap-csv``.
"""

from pkgutil import iter_modules


def format_names() -> tuple[str, ...]:
    """Return the names of all formats, sorted, without importing their modules."""
    return tuple(sorted(module.name.replace("_", "-") for module in iter_modules(__path__)))

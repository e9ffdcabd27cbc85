"""Export formats: each a module of this folder with its ``TARGET``, named as the format is, with ``_`` for ``-``."""

from pkgutil import iter_modules


def format_names() -> tuple[str, ...]:
    """Return the names of all formats, sorted, without importing their modules."""
    return tuple(sorted(module.name.replace("_", "-") for module in iter_modules(__path__)))

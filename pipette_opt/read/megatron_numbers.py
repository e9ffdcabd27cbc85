"""Numbers among the options of Megatron-LM, by name with underscores."""

from collections.abc import Mapping
from typing import Any

from pipette_opt.base.errors import InputError, shown


def option_of(field: str) -> str:
    """Return the option that sets a field, such as ``--num-layers``."""
    return f"--{field.replace('_', '-')}"


def number(given: Mapping[str, Any], field: str, default: Any, where: str) -> Any:
    """Return an option as a number; the default if absent."""
    if field not in given:
        return default
    try:
        return float(given[field])
    except ValueError:
        raise InputError(where, f"{option_of(field)} must be a number, got {shown(given[field])}.") from None


def whole(given: Mapping[str, Any], field: str, default: Any, where: str) -> Any:
    """Return an option as a whole number, read as Megatron does (``1e6`` is refused); the default if absent."""
    if field not in given:
        return default
    try:
        return int(given[field])
    except ValueError:
        raise InputError(where, f"{option_of(field)} must be a whole number, got {shown(given[field])}.") from None


def required(given: Mapping[str, Any], field: str, where: str) -> int:
    """Return an option that must be given as a whole number."""
    if field not in given:
        raise InputError(where, f"{option_of(field)} is missing.")
    return int(given[field])

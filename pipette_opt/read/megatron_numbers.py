"""Numbers among the options of Megatron-LM, by name with underscores."""

from collections.abc import Mapping
from typing import Any

from pipette_opt.base.errors import InputError, shown


def option_of(field: str) -> str:
    """Return the option that sets a field, such as ``--num-layers``."""
    return f"--{field.replace('_', '-')}"


def whole(value: Any, option: str, where: str) -> int:
    """Return an option's value as a whole number, read as Megatron does (``1e6`` is refused)."""
    try:
        return int(value)
    except ValueError:
        raise InputError(where, f"{option} must be a whole number, got {shown(value)}.") from None


def number(value: Any, option: str, where: str) -> float:
    """Return an option's value as a number."""
    try:
        return float(str(value).encode("ascii"))  # digits of other scripts are numbers to Python
    except ValueError:
        raise InputError(where, f"{option} must be a number, got {shown(value)}.") from None


def required(given: Mapping[str, Any], field: str, where: str) -> int:
    """Return an option that must be given as a whole number."""
    if field not in given:
        raise InputError(where, f"{option_of(field)} is missing.")
    return int(given[field])

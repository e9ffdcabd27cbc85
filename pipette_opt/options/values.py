"""Conversion of option values to the declared types. Errors name the place of the value."""

import math
import os
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, TypeVar, get_args, get_origin

from pipette_opt.base.errors import InputError, shown
from pipette_opt.base.units import number_of, whole_number
from pipette_opt.options.description import Field, fields_of
from pipette_opt.options.names import option_name

T = TypeVar("T")

MAX_SIZE = 10**9
"""Largest accepted size. Chosen: far above any degree, batch or number of layers."""

MAX_WORKERS = 1024
"""Largest accepted number of worker threads; chosen, above the cores of any machine."""

KIND_WORDS: Mapping[type, str] = {int: "a whole number", float: "a number", bool: "true or false"}
"""Names of plain types in error messages."""


def field_value(field: Field, value: object, where: str) -> Any:
    """
    Return a value converted to the type of its field; the field's default for ``None``.

    Parameters
    ----------
    value
        Value from a command line, a cell of a table, a file or a program. Sizes are ``"4,8"``, ``[4, 8]`` or ``4``; a
        list of texts may be a mapping, ``{"gpu01": 2.5}`` for ``["gpu01=2.5"]``; ``"true"`` is true.
    where
        Option, key or cell that errors name.

    Raises
    ------
    InputError
        If the value is not valid for the field.
    """
    kind = field.plain_kind
    if value is None:
        return field.default
    if kind in (Path, str):
        if isinstance(value, bool) or not isinstance(value, str | int | float | Path):
            raise InputError(where, f"must be text, got {shown(value)}.")
        return kind(str(value))
    if get_origin(kind) is list:
        return _texts(value, where)
    if get_origin(kind) is tuple:
        parts = _parts(value)
        if int in get_args(kind):
            return tuple(_size(part, value, where) for part in parts)
        if float in get_args(kind):
            return tuple(_numbers(parts, value, where))
        return tuple(None if part in ("none", None) and field.has_none_inside else str(part) for part in parts)
    return _number(kind, value, where)


def _texts(value: object, where: str) -> list[str]:
    """Return a text, a number, a list or a mapping as a list of texts; ``{"gpu01": 2.5}`` becomes ``["gpu01=2.5"]``."""
    if isinstance(value, Mapping):
        return [f"{name}={each}" for name, each in value.items()]
    if isinstance(value, str | int | float) and not isinstance(value, bool):
        return [str(value)]
    if isinstance(value, Iterable):
        return [text for each in value for text in _texts(each, where)]
    raise InputError(where, f"must be text or a list of texts, got {shown(value)}.")


def _parts(value: object) -> list[object]:
    """Return the parts of a text between commas, the elements of a list, or a single value as a list."""
    if isinstance(value, str):
        return [part.strip() for part in value.split(",")]
    return list(value) if isinstance(value, Iterable) else [value]


def _size(part: object, value: object, where: str) -> int:
    number = whole_number(part) if isinstance(part, str) else part
    if not isinstance(number, int) or isinstance(number, bool) or number < 1:
        raise InputError(where, f"must be whole numbers >= 1, separated by commas, such as 1,2; got {shown(value)}.")
    if number > MAX_SIZE:
        raise InputError(where, f"must be at most {MAX_SIZE:,}, got {shown(value)}.")
    return number


def _numbers(parts: list[object], value: object, where: str) -> list[float]:
    try:
        return [number_of(str(part)) for part in parts]
    except ValueError:
        raise InputError(where, f"must be numbers separated by commas, such as 0.5,2; got {shown(value)}.") from None


def _number(kind: type, value: object, where: str) -> Any:
    import msgspec

    from pipette_opt.base.types import LARGEST_EXACT  # imports NumPy

    try:
        found: Any = msgspec.convert(value, kind, strict=False)
    except msgspec.ValidationError:
        raise InputError(where, f"must be {KIND_WORDS[kind]}, got {shown(value)}.") from None
    if kind is int and abs(found) > LARGEST_EXACT:
        raise InputError(where, f"must be a whole number from -2^53 to 2^53, got {shown(value)}.")
    if kind is float and not math.isfinite(found):
        raise InputError(where, f"must be a finite number, got {shown(value)}.")
    return found


def given_of(*options: Any) -> dict[str, Any]:
    """Return the declared options that differ from their defaults as arguments of a function."""
    found: dict[str, Any] = {}
    for each in options:
        kind: type = type(each)
        fields = fields_of(kind).items()
        found |= {name: value for name, field in fields if (value := getattr(each, name)) != field.default}
    return found


def check_declared(options: Any) -> None:
    """Raise ``InputError`` for a field of declared options that is below its minimum or not an allowed word."""
    kind: type = type(options)
    for name, declared in fields_of(kind).items():
        value, least = getattr(options, name), declared.option.minimum
        if value is None:
            continue
        if declared.option.words:
            for word in value if isinstance(value, tuple) else (value,):
                one_of(option_name(name), word, declared.option.words)
        if least is not None and not value >= least:
            raise InputError(option_name(name), f"must be >= {least:g}, got {shown(value)}.")


def one_of(option: str, value: str, allowed: tuple[str, ...]) -> None:
    """Raise ``InputError`` unless the value is one of the allowed words."""
    if value not in allowed:
        raise InputError(option, f"must be one of {', '.join(allowed)}, got {value!r}.")


def sizes(option: str, text: str | None) -> tuple[int, ...] | None:
    """Return the sizes of a text such as ``4,8``; ``None`` without a text. ``InputError`` names the option."""
    return None if text is None else tuple(_size(part, text, option) for part in _parts(text))


def cores() -> int:
    """Return the number of cores of this machine."""
    return os.cpu_count() or 1


def threads(workers: int | None) -> int:
    """Return the number of threads: ``workers``, or all cores for ``None``. ``InputError`` above ``MAX_WORKERS``."""
    if workers is not None and workers > MAX_WORKERS:
        raise InputError("--workers", f"must be at most {MAX_WORKERS}, got {workers}.")
    return cores() if workers is None else workers


def checked(make: Callable[..., T], **fields: Any) -> T:
    """Return ``make(**fields)``; a ``ValueError`` of ``make`` becomes an ``InputError`` that names the option."""
    try:
        return make(**fields)
    except ValueError as error:
        name = str(error).split(" ", 1)[0]
        option = f"--{name.removesuffix('_s').replace('_', '-')}" if name in fields else "options"
        raise InputError(option, str(error).split(" ", 1)[-1]) from None

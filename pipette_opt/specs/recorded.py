"""Specs out of what a plan records of them: plain mappings, each field checked before the spec is made."""

import types
from collections.abc import Mapping
from dataclasses import MISSING, fields, is_dataclass
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from pipette_opt.base.errors import InputError, shown
from pipette_opt.base.types import LARGEST_EXACT, is_number

T = TypeVar("T")


def recorded_spec(spec: type[T], data: object, where: str) -> T:
    """
    A spec from ``dataclasses.asdict`` of it as JSON gives it back.

    Parameters
    ----------
    spec
        A dataclass of numbers, words, flags, mappings, and further such classes, also in tuples.
    where
        File and place, the start of every error message.

    Raises
    ------
    InputError
        If a field is missing, unknown, or of another type than the spec's, or if the spec refuses its value.
    """
    if not isinstance(data, Mapping):
        raise InputError(where, f"must be a mapping of fields, got {shown(data)}.")
    hints = get_type_hints(spec)
    for name in data:
        if name not in hints:
            raise InputError(where, f"unknown field {name!r}.")
    values = {}
    for field in fields(spec):  # type: ignore[arg-type]
        if field.name in data:
            values[field.name] = _value(data[field.name], hints[field.name], where, field.name)
        elif field.default is MISSING and field.default_factory is MISSING:
            raise InputError(where, f"the field {field.name} is missing.")
    try:
        return spec(**values)
    except (TypeError, ValueError) as error:
        raise InputError(where, str(error)) from None


def _value(value: object, hint: Any, where: str, name: str) -> Any:
    """A field as its type wants it."""
    for one in _choices(hint):
        if is_dataclass(one) and isinstance(one, type) and isinstance(value, Mapping):
            return recorded_spec(one, value, f"{where}.{name}")
        if get_origin(one) is tuple and isinstance(value, list | tuple):
            inner = get_args(one)[0]
            return tuple(_value(entry, inner, where, f"{name}[{index}]") for index, entry in enumerate(value))
        if _fits(value, one):
            return value
    raise InputError(where, f"{name} must be {_words(hint)}, got {shown(value)}.")


def _choices(hint: Any) -> tuple[Any, ...]:
    """The types of a union, or the only one."""
    return get_args(hint) if get_origin(hint) in (Union, types.UnionType) else (hint,)


def _fits(value: object, hint: Any) -> bool:
    """Whether a value is of a plain type."""
    origin, inner = get_origin(hint), get_args(hint)
    if origin is Literal:
        return any(type(value) is type(one) and value == one for one in inner)
    if origin is not None and issubclass(origin, Mapping):
        return isinstance(value, Mapping) and all(_fits(one, inner[1]) for one in value.values())
    if hint is Any:
        return True
    if hint is int:
        return isinstance(value, int) and not isinstance(value, bool) and abs(value) <= LARGEST_EXACT
    if hint is float:
        return is_number(value)
    return hint in (bool, str, types.NoneType) and isinstance(value, hint)


def _words(hint: Any) -> str:
    """A type for people."""
    if len(_choices(hint)) > 1:
        return " or ".join(_words(one) for one in _choices(hint))
    origin, inner = get_origin(hint), get_args(hint)
    if origin is Literal:
        return f"one of {', '.join(map(str, inner))}"
    if origin is not None and issubclass(origin, Mapping):
        return "a mapping" if inner[1] is Any else f"a mapping, each {_words(inner[1])}"
    if origin is tuple:
        return "a list"
    plain = {int: "a whole number", float: "a finite number", bool: "true or false", str: "text"}
    return "null" if hint is types.NoneType else plain.get(hint, "a mapping")

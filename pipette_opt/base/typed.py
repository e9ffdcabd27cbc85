"""
Conversion of file content to typed objects, with errors for people.

A dataclass or ``msgspec.Struct`` describes the fields of a file: types, limits (``Annotated``), and defaults of
optional fields. msgspec converts the content. This module adds errors that name the field, the value found and the
values allowed.
"""

import types
from collections.abc import Collection, Hashable, Iterator, Mapping, Sequence
from dataclasses import is_dataclass
from functools import cache
from typing import Annotated, Any, TypeVar, Union, get_args, get_origin, get_type_hints

import msgspec
from msgspec import Meta, inspect

from pipette_opt.base.errors import InputError, did_you_mean, shown
from pipette_opt.base.types import LARGEST_EXACT

T = TypeVar("T")

Count = Annotated[int, Meta(ge=0)]
"""Whole number >= 0."""

Size = Annotated[int, Meta(ge=1)]
"""Whole number >= 1."""

Positive = Annotated[float, Meta(gt=0)]
"""Number > 0."""

NotNegative = Annotated[float, Meta(ge=0)]
"""Number >= 0."""

Share = Annotated[float, Meta(ge=0, le=1)]
"""Number in [0, 1]."""

LARGEST = 1e18
"""Largest number that a file may hold, in any unit; sums of larger numbers could overflow. Chosen."""

_EXACT = {int: "a whole number from -2^53 to 2^53", float: f"a finite number from -{LARGEST:g} to {LARGEST:g}"}
"""Allowed range of numbers in files by Python type, as text for messages."""


def typed(
    kind: type[T], content: object, where: str, path: str = "", *, closed: bool = False, needed: Collection[str] = ()
) -> T:
    """
    Return content of a file as an object of a type.

    Parameters
    ----------
    kind
        A dataclass, a ``msgspec.Struct``, or a list or mapping of them.
    content
        Plain values from JSON or YAML.
    where
        File and place; the start of every error message.
    path
        Path of ``content`` in the file, e.g. ``memory[2]``; empty at the top.
    closed
        Refuse fields that the type does not have; otherwise they are ignored.
    needed
        Fields that must be present even if the type has a default for them.

    Raises
    ------
    InputError
        If a field is missing, has another type, or has a value that the type refuses.
    """
    if closed:
        _refuse_unknown(kind, content, where, path)
    for name in needed:
        if isinstance(content, dict) and name not in content:
            raise InputError(where, f"{_joined(path, name)} is missing.")
    try:
        if _are_exact(content):
            return msgspec.convert(content, kind)
    except msgspec.ValidationError:
        pass
    raise InputError(where, _fault(kind, content, path).lstrip())


def _are_exact(content: object) -> bool:
    """Return whether every number is finite and read alike by all JSON readers (RFC 8259, section 6)."""
    parts: list[Any] = [[content]]
    while parts:  # no recursion: a plan has a dozen thousand values
        part = parts.pop()
        for value in part.values() if isinstance(part, dict) else part:
            kind = type(value)
            if kind is float:
                if not -LARGEST <= value <= LARGEST:
                    return False
            elif kind is int:
                if not -LARGEST_EXACT <= value <= LARGEST_EXACT:
                    return False
            elif kind is not str and isinstance(value, dict | list | tuple):
                parts.append(value)
    return True


def _fits(kind: Any, content: object) -> bool:
    try:
        msgspec.convert(content, kind)
    except msgspec.ValidationError:
        return False
    return _are_exact(content)


def _refuse_unknown(kind: Any, content: object, where: str, path: str) -> None:
    """Raise ``InputError``, with similar names, for a field at any depth that its dataclass does not have."""
    known = _fields(_plain(kind))
    for name in content if known and isinstance(content, Mapping) else ():
        if name not in known:
            hint = did_you_mean(str(name), known) or f" Known fields: {', '.join(known)}."
            raise InputError(where, f"{path} unknown field {shown(name)}.{hint}".lstrip())
    for part_path, part_kind, part in _parts(kind, content, path):
        _refuse_unknown(part_kind, part, where, part_path)


def _fault(kind: Any, content: object, path: str) -> str:
    """Return the error text (path and problem) for the innermost value that does not fit its type."""
    for part_path, part_kind, part in _parts(kind, content, path):
        if not _fits(part_kind, part):
            return _fault(part_kind, part, part_path)
    if isinstance(content, Mapping):
        for name, (_, required) in _fields(_plain(kind)).items():
            if required and name not in content:
                return f"{_joined(path, name)} is missing."
    try:
        msgspec.convert(content, kind)
        right = _EXACT[type(content)]
    except msgspec.ValidationError as error:
        if error.__cause__ is not None:  # what the type itself says of fields that contradict each other
            return f"{path}: {error.__cause__}" if path else str(error.__cause__)
        right = _words(inspect.type_info(kind))
    return f"{path} must be {right}, got {shown(content)}."


def _parts(kind: Any, content: object, path: str) -> Iterator[tuple[str, Any, object]]:
    """Yield path, type and content of each item of a mapping or list; nothing for other content."""
    kind = _plain(kind)
    if isinstance(content, Mapping):
        fields, others = _fields(kind), _inner(kind, Mapping)
        for name, part in content.items():
            yield _joined(path, name), fields[name][0] if name in fields else others, part
    elif isinstance(content, Sequence) and not isinstance(content, str):
        items = _inner(kind, Sequence)
        for index, part in enumerate(content):
            yield f"{path}[{index}]", items, part


def _inner(kind: Any, container: type) -> Any:
    """Return the type of the values in a mapping or list of a type, or of a member of a union; else ``Any``."""
    for member in (kind, *(get_args(kind) if get_origin(kind) in (Union, types.UnionType) else ())):
        origin = get_origin(member)
        if isinstance(origin, type) and issubclass(origin, container):
            return get_args(member)[1 if container is Mapping else 0]
    return Any


def _joined(path: str, name: object) -> str:
    return f"{path}.{name}" if path else str(name)


def _plain(kind: Any) -> Any:
    """Return a type without its limits and without ``None``."""
    while get_origin(kind) is Annotated:
        kind = get_args(kind)[0]
    if get_origin(kind) in (Union, types.UnionType):
        kinds = [member for member in get_args(kind) if member is not types.NoneType]
        return _plain(kinds[0]) if len(kinds) == 1 else kind
    return kind


@cache
def _fields(kind: Any) -> dict[str, tuple[Any, bool]]:
    """Return the type of each field by its name in the file, and whether it is required; empty without fields."""
    if not (isinstance(kind, type) and (is_dataclass(kind) or issubclass(kind, msgspec.Struct))):
        return {}
    hints, info = get_type_hints(kind, include_extras=True), inspect.type_info(kind)
    assert isinstance(info, inspect.DataclassType | inspect.StructType)
    return {field.encode_name: (hints[field.name], field.required) for field in info.fields}


def _words(kind: inspect.Type) -> str:
    """Return the description of a type for an error message, such as ``a whole number >= 1``."""
    match kind:
        case inspect.Metadata():
            return _words(kind.type)
        case inspect.UnionType():
            return " or ".join(map(_words, sorted(kind.types, key=lambda member: isinstance(member, inspect.NoneType))))
        case inspect.LiteralType():
            return f"one of {', '.join(map(str, kind.values))}"
        case inspect.IntType():
            return f"a whole number{_limits(kind)}"
        case inspect.FloatType():
            return f"a number{_limits(kind)}" if _limits(kind) else "a finite number"
        case inspect.DictType():
            inside = _words(kind.value_type)
            return f"a mapping, each {inside}" if inside else "a mapping"
        case inspect.VarTupleType() | inspect.ListType():
            inside = _words(kind.item_type)
            return f"a list, each {inside}" if inside else "a list"
        case inspect.DataclassType() | inspect.StructType():
            return "a mapping of fields"
    words = {inspect.BoolType: "true or false", inspect.StrType: "text", inspect.NoneType: "null"}
    return words.get(type(kind), "")


def _limits(kind: inspect.IntType | inspect.FloatType) -> str:
    """Return the limits of a number as text, such as `` in [0, 1]`` or `` >= 1``; empty without limits."""
    if kind.ge is not None and kind.le is not None:
        return f" in [{kind.ge:g}, {kind.le:g}]"
    signs = {">": kind.gt, ">=": kind.ge, "<": kind.lt, "<=": kind.le}
    return "".join(f" {sign} {limit:g}" for sign, limit in signs.items() if limit is not None)


def check_limits(spec: Hashable) -> None:
    """Raise ``ValueError`` if a number in a dataclass is outside the limits ``ge`` and ``le`` of its field's type."""
    for name, least, most, right in limits_of(type(spec)):
        value = getattr(spec, name)
        if not least <= value <= most:
            raise ValueError(f"{name} must be {right}, got {value}.")


@cache
def limits_of(kind: type) -> list[tuple[str, float, float, str]]:
    """Return name, lower and upper limit, and description of each number field with a lower limit."""
    found = []
    for name, (hint, _) in _fields(kind).items():
        info = inspect.type_info(hint)
        if isinstance(info, inspect.IntType | inspect.FloatType) and info.ge is not None:
            found.append((name, info.ge, LARGEST if info.le is None else info.le, _words(info)))
    return found

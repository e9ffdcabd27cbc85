"""Dataclasses of options as the options of a command, which typer makes of a function's parameters."""

import functools
import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, is_dataclass
from typing import Any, cast, get_args


@dataclass(frozen=True, slots=True)
class Without:
    """Says of a parameter that holds options which of them the command lacks; they have their defaults."""

    names: tuple[str, ...]


def spread(command: Callable[..., None]) -> Callable[..., None]:
    """
    A command whose parameters that are dataclasses of options become an option for each field.

    ``Annotated[JobOptions, Without(("launcher",))]`` leaves fields out.
    """
    parameters: list[inspect.Parameter] = []
    groups: dict[str, tuple[type, list[str]]] = {}
    for one in parameters_of(command):
        kind, *notes = get_args(one.annotation) or (one.annotation,)
        if not is_dataclass(kind):
            parameters.append(one)
            continue
        left_out = {name for note in notes if isinstance(note, Without) for name in note.names}
        taken = [field for field in fields(kind) if field.name not in left_out]
        groups[one.name] = (cast(type, kind), [field.name for field in taken])
        parameters += [parameter(field.name, field.type, default=field.default) for field in taken]

    def run(**given: Any) -> None:
        for name, (kind, names) in groups.items():
            given[name] = kind(**{one: given.pop(one) for one in names})
        command(**given)

    return with_parameters(run, command, parameters)


def parameters_of(command: Callable[..., Any]) -> list[inspect.Parameter]:
    """Parameters of a command, all by name, since it is called so."""
    known = inspect.signature(command).parameters.values()
    return [one.replace(kind=inspect.Parameter.KEYWORD_ONLY) for one in known]


def parameter(name: str, annotation: object, *, default: object) -> inspect.Parameter:
    """One more parameter of a command."""
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)


def with_parameters(
    run: Callable[..., None], command: Callable[..., Any], parameters: Sequence[inspect.Parameter]
) -> Callable[..., None]:
    """``run`` under the name and with the help of ``command``, and the parameters from which typer makes options."""
    functools.update_wrapper(run, command)
    run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    run.__annotations__ = {one.name: one.annotation for one in parameters}
    return run

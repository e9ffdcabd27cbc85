"""Conversion of declared job options into the parameters from which typer makes a command's options."""

import functools
import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, get_args, get_origin

import typer

from pipette_opt.options.description import (
    OF_JOB_FILES,
    Field,
    JobOptions,
    Measured,
    SearchOptions,
    SpaceOptions,
    field_of,
    fields_of,
    is_declared,
)
from pipette_opt.options.names import WITHOUT_OPTION, option_name
from pipette_opt.options.values import given_of

if TYPE_CHECKING:
    from pipette_opt.job.file import JobFile

JOB_FILE_HELP = "Job file (YAML): any options below, and rarer keys. Options on the command line override the file."


@dataclass(frozen=True, slots=True)
class Without:
    """Annotation of a parameter of job options: names of the options that the command does not offer."""

    names: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class OnlyInJobFile:
    """Annotation of a parameter of job options: names of the options that only a job file sets; all without names."""

    names: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class WholeLaunch:
    """Annotation of a parameter of job options: the degrees of a job file without ``launch`` are the launch."""


@dataclass(frozen=True, slots=True)
class OrJobFile:
    """Annotation of an argument that may also be a job file, recognised by ``.yaml`` or ``.yml``."""


def typer_option(declared: str | Field) -> Any:
    """Return the typer option of a declared field; of a job, a search or a launch also by its name."""
    field = field_of(declared) if isinstance(declared, str) else declared
    option, text = field.option, field.option.help.replace("[", "\\[")
    names = (option_name(field.name),)
    if (field.kind is bool and field.default) or field.kind == bool | None:
        names = (f"{option_name(field.name)}/--no-{field.name.replace('_', '-')}",)
    return typer.Option(*names, help=text, min=option.minimum, metavar=option.metavar, rich_help_panel=option.panel)


def spread(command: Callable[..., None]) -> Callable[..., None]:
    """
    Return a command with an option for each field of its parameters that are classes of declared options.

    ``Annotated[JobOptions, Without(("launcher",))]`` leaves fields out; :class:`OnlyInJobFile` leaves out only their
    options. A command with :class:`JobOptions` also takes a job file that sets the same fields: as its argument, or by
    ``--job`` if it has arguments of its own.
    """
    parameters: list[inspect.Parameter] = []
    groups: dict[str, tuple[type, list[Field]]] = {}
    measured, either, is_whole = "", "", False
    for argument in parameters_of(command):
        kind, *notes = (
            get_args(argument.annotation) if get_origin(argument.annotation) is Annotated else (argument.annotation,)
        )
        is_whole = is_whole or any(isinstance(note, WholeLaunch) for note in notes)
        either = argument.name if any(isinstance(note, OrJobFile) for note in notes) else either
        if kind is Measured:
            measured = argument.name
        elif is_declared(kind):
            left_out = {name for note in notes if isinstance(note, Without) for name in note.names}
            taken = [field for name, field in fields_of(kind).items() if name not in left_out]
            groups[argument.name] = (kind, taken)
            in_file = {
                name for note in notes if isinstance(note, OnlyInJobFile) for name in note.names or fields_of(kind)
            }
            in_file |= set(WITHOUT_OPTION) if kind in OF_JOB_FILES else set()
            parameters += [_parameter_of(field) for field in taken if field.name not in in_file]
        else:
            parameters.append(argument)
    has_job = any(kind is JobOptions for kind, _ in groups.values())
    if has_job and not either:
        parameters.insert(0, _job_parameter(parameters))
    has_context = any(argument.name == "context" for argument in parameters)
    if not has_context:
        parameters.append(parameter("context", typer.Context, default=inspect.Parameter.empty))

    def run(**given: Any) -> None:
        context = given["context"] if has_context else given.pop("context")
        path = given.pop("job_file", None)
        if either and isinstance(given[either], Path) and given[either].suffix in (".yaml", ".yml"):
            path, given[either] = given[either], None
        file = None if path is None else _read(path)
        known = {field.name for kind, taken in groups.values() if kind in OF_JOB_FILES for field in taken}
        if file is not None:
            _say_replaced(context, file, known | set(fields_of(SpaceOptions) if is_whole else ()), bool(measured))
            if not is_whole:
                file.check_searched()
            elif not given["launch"]:
                given["launch"] = file.whole_launch()
        for name, (kind, taken) in groups.items():
            given[name] = kind(
                **{
                    field.name: _value(
                        context,
                        field,
                        given.pop(field.name, field.default),
                        file if kind in OF_JOB_FILES else None,
                        has_figures=bool(measured),
                    )
                    for field in taken
                }
            )
        if measured:
            given[measured] = Measured() if file is None else file.measured
        command(**given)

    return with_parameters(run, command, parameters)


def _job_parameter(parameters: Sequence[inspect.Parameter]) -> inspect.Parameter:
    """Return the job-file parameter: an argument, or the option ``--job`` of a command that has arguments."""
    notes = [note for argument in parameters for note in getattr(argument.annotation, "__metadata__", ())]
    if any(isinstance(note, typer.models.ArgumentInfo) for note in notes):
        info: Any = typer.Option("--job", help=JOB_FILE_HELP, rich_help_panel="The job")
    else:
        info = typer.Argument(help=JOB_FILE_HELP, metavar="[JOB.YAML]")
    return parameter("job_file", Annotated[Path | None, info], default=None)


def _parameter_of(field: Field) -> inspect.Parameter:
    """Return the parameter of a declared field; comma-separated sizes and words are read as text."""
    kind = field.kind
    if get_origin(field.plain_kind) is tuple:
        kind = str | None
    elif get_origin(kind) is Literal:  # a wrong word is refused by ``check_declared``, as from programs
        kind = str
    return parameter(field.name, Annotated[kind, typer_option(field)], default=field.default)


def _read(path: Path) -> "JobFile":
    from pipette_opt.job.file import read_job_file

    return read_job_file(path)


def _value(context: typer.Context, field: Field, value: object, file: "JobFile | None", *, has_figures: bool) -> Any:
    """
    Return a field's value from the command line, or else from the job file, or else its default.

    Parameters
    ----------
    has_figures
        Whether the command compares its prediction with the figures of the launch in the file, so that they are no
        measured runs.
    """
    from pipette_opt.options.values import field_value

    if file is not None and not is_given(context, field.name):
        if field.name == "measured_runs" and not has_figures:
            return file.measured_runs() or None
        if field.name in file.given:
            return file.given[field.name]
    return field_value(field, value, option_name(field.name)) if get_origin(field.plain_kind) is tuple else value


def _say_replaced(context: typer.Context, file: "JobFile", known: set[str], has_measured: bool) -> None:
    """Report values that the command line replaces; raise ``InputError`` for fields the command lacks."""
    from pipette_opt.base.errors import InputError
    from pipette_opt.cli.output import say

    for name, value in file.given.items():
        if name not in known and name != "measured_runs":
            problem = f"has no effect on the command {context.info_name}"
            if name != "host_order" and name not in fields_of(SearchOptions):
                raise InputError(f"{file.path}, {file.place(name)}", f"{problem}; leave it out.")
            say(f"{file.path}: {file.place(name)} {problem}")
        if is_given(context, name) and (now := context.params.get(name)) != value:
            say(f"{file.path}: {option_name(name)} {now} on the command line overrides {file.place(name)}")
    figures_count = has_measured or ("measured_runs" in known and "launch" in file.given)
    if (file.measured != Measured() and not figures_count) or (file.measured_runs() and "measured_runs" not in known):
        need = "without launch " if "measured_runs" in known else ""
        say(f"{file.path}: the section measured has no effect {need}on the command {context.info_name}")


def is_given(context: typer.Context, name: str) -> bool:
    """Return whether an option is given on the command line, even with its default value."""
    source = context.get_parameter_source(name)
    return source is not None and source.name == "COMMANDLINE"


def typed_of(context: typer.Context, *options: Any) -> dict[str, Any]:
    """Return options as arguments of a function: those that differ from their defaults, or were typed all the same."""
    every = {field.name: getattr(each, field.name) for each in options for field in fields(each)}
    return {**given_of(*options), **{name: value for name, value in every.items() if is_given(context, name)}}


def parameters_of(command: Callable[..., Any]) -> list[inspect.Parameter]:
    """Return the parameters of a command as keyword-only parameters."""
    known = inspect.signature(command).parameters.values()
    return [argument.replace(kind=inspect.Parameter.KEYWORD_ONLY) for argument in known]


def parameter(name: str, annotation: object, *, default: object) -> inspect.Parameter:
    """Return a keyword-only parameter for a command."""
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)


def with_parameters(
    run: Callable[..., None], command: Callable[..., Any], parameters: Sequence[inspect.Parameter]
) -> Callable[..., None]:
    """Return ``run`` with the name and help of ``command`` and with ``parameters``, from which typer makes options."""
    functools.update_wrapper(run, command)
    run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    run.__annotations__ = {argument.name: argument.annotation for argument in parameters}
    return run

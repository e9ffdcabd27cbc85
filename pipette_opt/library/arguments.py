"""Conversion of a function's arguments into job options, and errors that name the arguments."""

import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from os import PathLike, fspath
from pathlib import Path
from typing import Any, TypeVar, cast

from pipette_opt.base.errors import InputError
from pipette_opt.candidates import SearchSpace
from pipette_opt.certify.params import OptimizeParams
from pipette_opt.job.read import Job, Made, read_job
from pipette_opt.job.space import search_space
from pipette_opt.library.measured import with_measured
from pipette_opt.options.description import JobOptions, SearchOptions, SpaceOptions, fields_of
from pipette_opt.options.names import option_name, usual_field
from pipette_opt.options.questions import LimitOptions
from pipette_opt.options.trials import TuneOptions
from pipette_opt.options.values import check_declared, checked, field_value, threads
from pipette_opt.plans.plan import Plan
from pipette_opt.plans.watcher import Progress, Watcher
from pipette_opt.read.fields import did_you_mean
from pipette_opt.specs import ClusterSpec, ModelSpec, TrainingSpec

Named = str | PathLike[str]
"""Path of a file; for a model also the name of a preset."""

Listed = str | int | float | Iterable[str | int | float]
"""A value or several values; text may hold several, separated by commas."""

Told = Callable[[Progress], None] | Watcher
"""
Callback for progress, from any thread: gets seconds, step, best time found and lower bound. Or a watcher, whose
event stops the search.
"""

Function = TypeVar("Function", bound=Callable[..., Any])


def described(
    cluster: Named | ClusterSpec | None,
    model: Named | ModelSpec | None,
    training: TrainingSpec | None,
    given: Mapping[str, Any],
    *others: type,
) -> tuple[Any, ...]:
    """
    Return the job, the pinned degrees, the specs made in memory, and objects of other classes of declared options, all
    from the arguments of a function.

    Raises
    ------
    InputError
        If a value is not allowed for its field, or an argument is given under two names.
    TypeError
        If an argument is no field of a job.
    """
    job, space, *more = options_of(given, JobOptions, SpaceOptions, *others)
    if cluster is not None and not isinstance(cluster, ClusterSpec):
        job = replace(job, cluster=Path(cluster))
    if model is not None and not isinstance(model, ModelSpec):
        job = replace(job, model=fspath(model))
    made = Made(
        cluster=cluster if isinstance(cluster, ClusterSpec) else None,
        model=model if isinstance(model, ModelSpec) else None,
        training=training,
    )
    return job, space, made, *more


def options_of(given: Mapping[str, Any], *kinds: type) -> list[Any]:
    """
    Return an object of each class of declared options from keyword arguments, which may have any name of their option.

    Raises
    ------
    InputError
        If a value is not allowed for its field, or an argument is given under two names.
    TypeError
        If no class declares an argument.
    """
    found: dict[type, dict[str, Any]] = {kind: {} for kind in kinds}
    known = {name: kind for kind in reversed(kinds) for name in fields_of(kind)}
    for name, value in given.items():
        usual = usual_field(name)
        if usual not in known:
            raise TypeError(f"unknown argument {name!r}.{did_you_mean(usual, known)}")
        kind = known[usual]
        if usual in found[kind]:
            raise InputError(usual, f"is given under two names, one of them {name}; leave {name} out.")
        found[kind][usual] = field_value(fields_of(kind)[usual], value, option_name(usual))
    options = [kind(**values) for kind, values in found.items()]
    for each in options:
        check_declared(each)
    return options


def job_and_space(
    options: JobOptions, pinned: SpaceOptions, made: Made, space: SearchSpace | None
) -> tuple[Job, SearchSpace]:
    """Return the job that :func:`described` found, with its measured runs, and its search space."""
    check_given_once(space, pinned)
    job = with_measured(read_job(options, made), options.measured_runs)
    return job, search_space(job, pinned, space)


def check_given_once(space: SearchSpace | None, pinned: SpaceOptions) -> None:
    """Raise ``InputError`` for a field that is set both in ``space`` and as an argument."""
    free = SearchSpace()
    for name, field in fields_of(SpaceOptions).items():
        is_pinned = getattr(pinned, name) != field.default
        if space is not None and is_pinned and getattr(space, name) != getattr(free, name):
            raise InputError(name, "is given as an argument and in the argument `space`; leave one of the two out.")


@contextmanager
def argument_errors(**places: str) -> Iterator[None]:
    """
    Context in which errors name arguments instead of options: ``seq_length`` instead of ``--seq-length``.

    Decorates the functions of the library; :func:`for_commands` returns them without it.

    Parameters
    ----------
    places
        For each argument, the place that an error names if that is not the argument's option.
    """
    arguments = {place: argument for argument, place in places.items()}
    try:
        yield
    except InputError as error:
        raise type(error)(arguments.get(error.where) or _argument(error.where), error.problem) from None


def for_commands(function: Function) -> Function:
    """Return a function of the library whose errors name options of the command line."""
    return cast(Function, inspect.unwrap(function))


def _argument(where: str) -> str:
    """Return the argument that corresponds to an option of the command line."""
    option, blank, rest = where.partition(" ")
    if not option.startswith("--"):
        return where
    name = option.removeprefix("--").replace("-", "_")
    return f"{'time_limit_s' if name == 'time_limit' else name}{blank}{rest}"


def plan_or_file(plan: Plan | Named) -> Plan | Path:
    """Return ``plan`` if it is a plan, otherwise the path of its file."""
    return plan if isinstance(plan, Plan) else Path(plan)


def cluster_or_file(cluster: Named | ClusterSpec | None) -> ClusterSpec | Path | None:
    """Return ``cluster`` if it is a cluster or ``None``, otherwise the path of its file."""
    return cluster if cluster is None or isinstance(cluster, ClusterSpec) else Path(cluster)


def comma_text(value: Listed | None) -> str | None:
    """Return the values as one text, separated by commas."""
    if value is None or isinstance(value, str):
        return value
    return ",".join(map(str, value)) if isinstance(value, Iterable) else str(value)


def texts(value: str | Iterable[str] | None) -> list[str] | None:
    """Return the texts as a list; a single text becomes a list of one."""
    return [value] if isinstance(value, str) else None if value is None else list(value)


def params_of(limits: LimitOptions | SearchOptions | TuneOptions, **more: Any) -> OptimizeParams:
    """Return the settings of a search with these limits and ``more`` fields; ``InputError`` names a wrong option."""
    return checked(
        OptimizeParams, workers=threads(limits.workers), seed=limits.seed, max_oom_risk=limits.max_oom_risk, **more
    )


def watcher_of(on_progress: Told | None) -> Watcher:
    """Return ``on_progress`` if it is a watcher, else a watcher that calls it."""
    if isinstance(on_progress, Watcher):
        return on_progress
    return Watcher() if on_progress is None else Watcher(on_progress=on_progress)

"""Arguments of the library's functions, read as options of the command line are, and errors that name them."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from os import PathLike, fspath
from pathlib import Path
from typing import Any

from pipette_opt.base.errors import InputError
from pipette_opt.candidates import SearchSpace
from pipette_opt.job.read import Job, Made, read_job
from pipette_opt.job.space import search_space
from pipette_opt.options.description import JobOptions, SpaceOptions, fields_of
from pipette_opt.options.names import usual_name
from pipette_opt.options.values import field_value
from pipette_opt.plans.plan import Plan
from pipette_opt.plans.watcher import Progress, Watcher
from pipette_opt.read.fields import did_you_mean
from pipette_opt.specs import ClusterSpec, ModelSpec, TrainingSpec

Named = str | PathLike[str]
"""A file, or for a model also the name of a preset."""

Listed = str | int | float | Iterable[str | int | float]
"""A value or several; a text may have commas, as on the command line."""

Told = Callable[[Progress], None]
"""Told seconds, step, incumbent and bound meanwhile, from any thread."""


def described(
    cluster: Named | ClusterSpec | None,
    model: Named | ModelSpec | None,
    training: TrainingSpec | None,
    given: Mapping[str, Any],
) -> tuple[JobOptions, SpaceOptions, Made]:
    """
    Return the arguments of a function as a job, the degrees that it pins, and parts that were made in memory.

    Raises
    ------
    InputError
        For a value that its field cannot have, or an argument that is given under two names.
    TypeError
        For an argument that is no field of a job.
    """
    job: dict[str, Any] = {}
    space: dict[str, Any] = {}
    for name, value in given.items():
        usual = usual_name(name).replace("-", "_")
        for found, fields in ((job, fields_of(JobOptions)), (space, fields_of(SpaceOptions))):
            if usual in found:
                raise InputError(usual, f"is given under two names, one of them {name}; leave one out.")
            if usual in fields:
                found[usual] = field_value(fields[usual], value, name)
                break
        else:
            raise TypeError(f"a job has no field {name!r}.{did_you_mean(usual, fields_of(JobOptions))}")
    if cluster is not None and not isinstance(cluster, ClusterSpec):
        job["cluster"] = Path(cluster)
    if model is not None and not isinstance(model, ModelSpec):
        job["model"] = fspath(model)
    made = Made(
        cluster=cluster if isinstance(cluster, ClusterSpec) else None,
        model=model if isinstance(model, ModelSpec) else None,
        training=training,
    )
    return JobOptions(**job), SpaceOptions(**space), made


def job_and_space(
    cluster: Named | ClusterSpec | None,
    model: Named | ModelSpec | None,
    training: TrainingSpec | None,
    space: SearchSpace | None,
    given: Mapping[str, Any],
) -> tuple[Job, SearchSpace]:
    """Read the job of a function's arguments, and return it with the space that they pin; see :func:`described`."""
    options, pinned, made = described(cluster, model, training, given)
    check_given_once(space, pinned)
    job = read_job(options, made)
    return job, search_space(job, pinned, space)


def check_given_once(space: SearchSpace | None, pinned: SpaceOptions) -> None:
    """Raise ``InputError`` for a field of the space that is an argument of its own, too."""
    free = SearchSpace()
    for name, field in fields_of(SpaceOptions).items():
        is_pinned = getattr(pinned, name) != field.default
        if space is not None and is_pinned and getattr(space, name) != getattr(free, name):
            raise InputError(name, "is given in space, too; leave one out.")


@contextmanager
def argument_errors(**places: str) -> Iterator[None]:
    """
    Name arguments in errors: ``--seq-length`` becomes ``seq_length``.

    Parameters
    ----------
    places
        Places that errors name otherwise, by the argument.
    """
    arguments = {place: argument for argument, place in places.items()}
    try:
        yield
    except InputError as error:
        raise type(error)(arguments.get(error.where) or _argument(error.where), error.problem) from None


def _argument(where: str) -> str:
    """Return the argument for an option of the command line."""
    option, blank, rest = where.partition(" ")
    if not option.startswith("--"):
        return where
    name = option.removeprefix("--").replace("-", "_")
    return f"{'time_limit_s' if name == 'time_limit' else name}{blank}{rest}"


def plan_or_file(plan: Plan | Named) -> Plan | Path:
    """Return a plan, or the path of its file."""
    return plan if isinstance(plan, Plan) else Path(plan)


def cluster_or_file(cluster: Named | ClusterSpec | None) -> ClusterSpec | Path | None:
    """Return a cluster, or the path of its file."""
    return cluster if cluster is None or isinstance(cluster, ClusterSpec) else Path(cluster)


def comma_text(value: Listed | None) -> str | None:
    """Return values as the command line has them, separated by commas."""
    if value is None or isinstance(value, str):
        return value
    return ",".join(map(str, value)) if isinstance(value, Iterable) else str(value)


def texts(value: str | Iterable[str] | None) -> list[str] | None:
    """Return one text, or several, as a list."""
    return [value] if isinstance(value, str) else None if value is None else list(value)


def watcher_of(on_progress: Told | None) -> Watcher:
    """Return a watcher that tells a function, if there is any."""
    return Watcher() if on_progress is None else Watcher(on_progress=on_progress)

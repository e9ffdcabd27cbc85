"""Arguments of the library's functions, read as options of the command line are, and errors that name them."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from os import PathLike, fspath
from pathlib import Path
from typing import Any

from pipette_opt.base.errors import InputError
from pipette_opt.candidates import SearchSpace
from pipette_opt.library.jobs import Job, read_job
from pipette_opt.library.option_names import usual_name
from pipette_opt.library.options import JobOptions
from pipette_opt.plans.plan import Plan
from pipette_opt.plans.watcher import Progress, Watcher
from pipette_opt.specs import ClusterSpec, ModelSpec, TrainingSpec

Named = str | PathLike[str]
"""A file, or for a model also the name of a preset."""

Listed = str | int | float | Iterable[str | int | float]
"""A value or several; a text may have commas, as on the command line."""

Told = Callable[[Progress], None]
"""Told seconds, step, incumbent and bound meanwhile, from any thread."""

DEGREES = (
    *("tensor_parallel", "pipeline_parallel", "data_parallel", "context_parallel", "expert_parallel"),
    *("expert_tensor_parallel", "virtual_pipeline", "micro_batch_size"),
)
"""Fields of a search space that functions take as arguments of their own."""


def options_of(
    cluster: Named | ClusterSpec | None, model: Named | ModelSpec | None, fields: dict[str, Any]
) -> JobOptions:
    """Return a job as it is said; a number of hosts may be a whole number."""
    if isinstance(fields.get("nodes"), int):
        fields = {**fields, "nodes": str(fields["nodes"])}
    return JobOptions(
        cluster=cluster_or_file(cluster),
        model=model if model is None or isinstance(model, ModelSpec) else fspath(model),
        **fields,
    )


def job_and_space(
    cluster: Named | ClusterSpec | None,
    model: Named | ModelSpec | None,
    training: TrainingSpec | None,
    space: SearchSpace | None,
    given: dict[str, Any],
) -> tuple[Job, SearchSpace]:
    """
    Read the job and the space of the arguments.

    Raises ``InputError`` for an argument given twice, be it under two names or in ``space``.
    """
    fields, degrees = named(given)
    narrow = narrowed(space, degrees)
    job = read_job(options_of(cluster, model, fields), training)
    if space is None:
        narrow = replace(narrow, tp_comm_overlap=job.tp_comm_overlap)
    return job, of_size(narrow, job)


def of_size(space: SearchSpace, job: Job) -> SearchSpace:
    """Return the space with the job's number of GPUs, unless it has one itself."""
    return space if space.num_gpus is not None else replace(space, num_gpus=job.num_gpus)


def narrowed(space: SearchSpace | None, degrees: dict[str, Any]) -> SearchSpace:
    """Return the space with the degrees that are arguments of their own."""
    twice = [name for name in degrees if space is not None and getattr(space, name) is not None]
    if twice:
        raise InputError(twice[0], "is given in space, too; leave one out.")
    return replace(space or SearchSpace(), **degrees)


def named(given: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return arguments of a job by their own names, and degrees of the space; ``InputError`` for one given twice."""
    job: dict[str, Any] = {}
    degrees: dict[str, Any] = {}
    for name, value in given.items():
        usual = usual_name(name).replace("-", "_")
        if usual in job or usual in degrees:
            raise InputError(usual, f"is given under two names, one of them {name}; leave one out.")
        if usual in DEGREES:
            degrees[usual] = (value,) if isinstance(value, int) else tuple(value)
        else:
            job[usual] = value
    return job, degrees


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

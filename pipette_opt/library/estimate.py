"""A plan, or a launch of today, as a function: how long an iteration takes, and whether it fits."""

from dataclasses import replace
from os import fspath
from pathlib import Path
from typing import Any

from pipette_opt.base.errors import InputError
from pipette_opt.library.arguments import (
    Named,
    argument_errors,
    cluster_or_file,
    named,
    options_of,
    plan_or_file,
)
from pipette_opt.library.current import Current, current_of, simulated_plan
from pipette_opt.library.jobs import read_job
from pipette_opt.library.models import job_of_arguments
from pipette_opt.library.options import OF_TRAINING, JobOptions
from pipette_opt.library.schedules import with_schedule
from pipette_opt.plans.plan import Plan
from pipette_opt.specs import ClusterSpec, ModelSpec, TrainingSpec

ARGUMENTS, HOSTS = "the current arguments", "host order"
"""Places that errors name where the arguments or the hosts of today are wrong."""


def estimate(
    plan: Plan | Named | None = None,
    *,
    args: Named | None = None,
    hosts: str | None = None,
    cluster: Named | ClusterSpec | None = None,
    model: Named | ModelSpec | None = None,
    training: TrainingSpec | None = None,
    max_oom_risk: float = 0.01,
    schedule: str | None = None,
    trace: Named | None = None,
    **job: Any,
) -> Current:
    """
    How long an iteration takes, and whether it fits: of a plan, or of what you run today.

    Parameters
    ----------
    plan
        A plan, or its file; or give ``args``.
    args
        Megatron arguments of today, or a file that has them.
    hosts
        Host order of today, names or ranges; the cluster's by default.
    cluster
        For a plan: the cluster as it is now. For ``args``: the machines, as in :func:`~pipette_opt.solve`.
    model, training, job
        The job of ``args``, as in :func:`~pipette_opt.solve`; what the arguments say need not be said again.
    max_oom_risk
        Accepted probability of running out of memory, in (0, 1].
    schedule
        ``1f1b``, ``interleaved``, ``interleaved:8``, ``gpipe``, ``zb-h1``, ``zb-v``, or a file; the launch's own by
        default.
    trace
        Write the simulated schedule there, for Perfetto or Chrome.

    Raises
    ------
    InputError
        If something given is wrong; ``where`` names the argument, or the file and its field.
    """
    with argument_errors(args=ARGUMENTS, hosts=HOSTS, plan="estimate"):
        fields, degrees = named(job)
        if degrees:
            raise InputError(next(iter(degrees)), "has no effect: the arguments say the degrees.")
        said = {"hosts": hosts, "model": model, "training": training, **fields}
        useless = [name for name, value in said.items() if value is not None]
        if plan is not None and useless:
            raise InputError(useless[0], "has no effect on a plan, which says it itself; give it with args.")
        return estimated(
            None if plan is None else plan_or_file(plan),
            None if args is None else fspath(args),
            options_of(cluster, model, fields),
            training=training,
            hosts=hosts,
            max_oom_risk=max_oom_risk,
            schedule=schedule,
            trace=None if trace is None else Path(trace),
        )


def estimated(
    plan: Plan | Path | None,
    args: str | None,
    options: JobOptions,
    *,
    training: TrainingSpec | None = None,
    hosts: str | None = None,
    max_oom_risk: float = 0.01,
    schedule: str | None = None,
    trace: Path | None = None,
) -> Current:
    """
    Simulate a plan on the cluster of the options, or Megatron arguments for their job; see :func:`estimate`.

    Errors name options of the command line.
    """
    if (plan is None) == (args is None):
        raise InputError("estimate", "give a plan, or your current Megatron arguments (--args); one of the two.")
    if not 0 < max_oom_risk <= 1:
        raise InputError("--max-oom-risk", f"must be in (0, 1], got {max_oom_risk:g}.")
    if plan is not None:
        current = simulated_plan(plan, cluster_or_file(options.cluster), max_oom_risk)
    else:
        current = _launch(args or "", options, training, hosts, max_oom_risk)
    if schedule is not None:
        current = with_schedule(current, schedule, max_oom_risk)
    if trace is not None:
        from pipette_opt.simulate.trace import write_trace

        write_trace(trace, current.instance, current.config, current.placement, current.schedule)
    return current


def _launch(
    args: str, options: JobOptions, training: TrainingSpec | None, hosts: str | None, max_oom_risk: float
) -> Current:
    """Simulate Megatron arguments, which say what the options leave out of the job."""
    from pipette_opt.read.megatron_args import read_megatron_args
    from pipette_opt.read.scripts import script_environment

    vocab_size = None if options.model is not None else options.vocab_size
    today = read_megatron_args(args, ARGUMENTS, script_environment(options.env), vocab_size=vocab_size)
    filled, model_from = job_of_arguments(options, args, today)
    if training is not None:
        filled = replace(filled, **{name: getattr(options, name) for name in OF_TRAINING})
    current = current_of(read_job(filled, training), today, hosts, max_oom_risk)
    return replace(current, model_from=model_from, remarks=tuple(today.notes))

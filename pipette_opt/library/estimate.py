"""A plan, or a launch of today, as a function: how long an iteration takes, and whether it fits."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from os import fspath
from pathlib import Path
from typing import Any

from pipette_opt.base.errors import InputError
from pipette_opt.base.units import GIB, percent, three_digits
from pipette_opt.job.read import Made, read_job
from pipette_opt.library.arguments import (
    Named,
    argument_errors,
    described,
    plan_or_file,
)
from pipette_opt.library.current import Current, current_of, simulated_plan
from pipette_opt.library.models import job_of_arguments
from pipette_opt.library.schedules import with_schedule
from pipette_opt.options.description import JobOptions, Measured, SpaceOptions
from pipette_opt.plans.plan import IterationTime, Plan, StageMemory
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
        options, degrees, made = described(cluster, model, training, job)
        if degrees != SpaceOptions():
            raise InputError(next(iter(job)), "has no effect: the arguments say the degrees.")
        said = {"hosts": hosts, "model": model, "training": training, **job}
        useless = [name for name, value in said.items() if value is not None]
        if plan is not None and useless:
            raise InputError(useless[0], "has no effect on a plan, which says it itself; give it with args.")
        return estimated(
            None if plan is None else plan_or_file(plan),
            None if args is None else fspath(args),
            options,
            made,
            hosts=hosts,
            max_oom_risk=max_oom_risk,
            schedule=schedule,
            trace=None if trace is None else Path(trace),
        )


def estimated(
    plan: Plan | Path | None,
    args: str | None,
    options: JobOptions,
    made: Made | None = None,
    *,
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
        cluster = options.cluster if made is None else made.cluster or options.cluster
        current = simulated_plan(plan, cluster, max_oom_risk)
    else:
        current = _launch(args or "", options, made, hosts, max_oom_risk)
    if schedule is not None:
        current = with_schedule(current, schedule, max_oom_risk)
    if trace is not None:
        from pipette_opt.simulate.trace import write_trace

        write_trace(trace, current.instance, current.config, current.placement, current.schedule)
    return current


def _launch(args: str, options: JobOptions, made: Made | None, hosts: str | None, max_oom_risk: float) -> Current:
    """Simulate Megatron arguments, which say what the options leave out of the job."""
    from pipette_opt.read.megatron_args import read_megatron_args
    from pipette_opt.read.scripts import script_environment

    vocab_size = None if options.model is not None else options.vocab_size
    today = read_megatron_args(args, ARGUMENTS, script_environment(options.env), vocab_size=vocab_size)
    filled, model_from = job_of_arguments(options, made, args, today)
    current = current_of(read_job(filled, made), today, hosts, max_oom_risk)
    return replace(current, model_from=model_from, remarks=tuple(today.notes))


@dataclass(frozen=True, slots=True, kw_only=True)
class Compared:
    """
    A measured run beside its prediction.

    Parameters
    ----------
    time_error, memory_error
        Predicted over measured, less 1; ``None`` where nothing was measured.
    measured
        The figures of the run.
    fits
        Whether the largest stage is predicted to fit.
    """

    measured: Measured
    time_error: float | None
    memory_error: float | None
    fits: bool

    def lines(self) -> list[str]:
        """Return a sentence for each figure that was measured."""
        found = []
        for error, value, unit in (
            (self.time_error, self.measured.iter_time_s, "s an iteration"),
            (self.memory_error, self.measured.peak_mem_gib, "GiB on the fullest GPU"),
        ):
            if error is not None and value is not None:
                way = "above" if error >= 0 else "below"
                found.append(f"Measured {three_digits(value)} {unit}: predicted {percent(abs(error))} {way}.")
        if self.measured.oom is not None:
            ran = "ran out of memory" if self.measured.oom else "did not run out of memory"
            found.append(f"The run {ran}; predicted {'to fit' if self.fits else 'not to fit'}.")
        return ["", *found] if found else []

    def as_dict(self) -> dict[str, Any]:
        """Return it for ``--json``."""
        return {**asdict(self.measured), "time_error": self.time_error, "memory_error": self.memory_error}


def compared_with(
    measured: Measured, predicted: IterationTime, memory: Sequence[StageMemory], max_oom_risk: float = 0.01
) -> Compared | None:
    """Return a measured run beside its prediction; ``None`` where nothing was measured."""
    if measured == Measured():
        return None
    peak_bytes = max((stage.predicted_bytes for stage in memory), default=0)
    time_s, peak_gib = measured.iter_time_s, measured.peak_mem_gib
    return Compared(
        measured=measured,
        time_error=None if time_s is None else predicted.expected_s / time_s - 1,
        memory_error=None if peak_gib is None else peak_bytes / GIB / peak_gib - 1,
        fits=all(stage.oom_probability <= max_oom_risk for stage in memory),
    )

"""``estimate``: iteration time and memory of a plan or of a launch of today."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from pipette_opt.base.errors import InputError
from pipette_opt.base.risk import USUAL_RISK
from pipette_opt.base.units import GIB, percent, three_digits
from pipette_opt.job.read import read_job
from pipette_opt.library.arguments import (
    Named,
    argument_errors,
    described,
    plan_or_file,
)
from pipette_opt.library.current import Current, current_of, simulated_plan
from pipette_opt.library.measured import variables_of_runs, with_measured
from pipette_opt.library.schedules import with_schedule
from pipette_opt.options.description import Measured, SpaceOptions
from pipette_opt.options.names import option_name, usual_field
from pipette_opt.plans.plan import IterationTime, Plan, StageMemory
from pipette_opt.specs import ClusterSpec, ModelSpec, TrainingSpec

OF_PLANS = ("cluster", "launch", "measured_runs", "env")
"""Options of a job that may be given with a plan, or are refused elsewhere; the cluster is the one of today."""


@argument_errors(plan="estimate")
def estimate(
    plan: Plan | Named | None = None,
    *,
    cluster: Named | ClusterSpec | None = None,
    model: Named | ModelSpec | None = None,
    training: TrainingSpec | None = None,
    max_oom_risk: float = USUAL_RISK,
    schedule: str | None = None,
    trace: Named | None = None,
    **job: Any,
) -> Current:
    """
    Predict the iteration time and memory of a plan, or of the launch that you run today.

    Parameters
    ----------
    plan
        A plan or its file; alternatively give ``launch``.
    cluster
        With ``plan``: the cluster as it is today. With ``launch``: the machines, as in :func:`~pipette_opt.solve`.
    model, training, job
        The job, as in :func:`~pipette_opt.solve`, with its ``launch``; values that the launch sets may be left out.
    max_oom_risk
        Accepted probability of running out of memory, in (0, 1].
    schedule
        ``1f1b``, ``interleaved``, ``interleaved:8``, ``gpipe``, ``zb-h1``, ``zb-v``, or a file; the launch's own by
        default.
    trace
        File to write the simulated schedule to, for Perfetto or Chrome.

    Raises
    ------
    InputError
        If an argument or a file is wrong; ``where`` names the argument, or the file and its field.
    """
    options, degrees, made = described(cluster, model, training, job)
    if degrees != SpaceOptions():
        raise InputError(next(iter(job)), "has no effect: the launch sets the degrees.")
    if (plan is None) == (options.launch is None):
        raise InputError("estimate", "needs either a plan file or your launch (--launch), and not both.")
    given = {"model": model, "training": training, **{usual_field(name): value for name, value in job.items()}}
    useless = [name for name, value in given.items() if value is not None and name not in OF_PLANS]
    if plan is not None and useless:
        problem = "has no effect on a plan file, which contains this setting; use it only with --launch."
        raise InputError(option_name(useless[0]), problem)
    if not 0 < max_oom_risk <= 1:
        raise InputError("--max-oom-risk", f"must be in (0, 1], got {max_oom_risk:g}.")
    if plan is not None:
        today = made.cluster or options.cluster
        variables = variables_of_runs(options.env, options.measured_runs)
        current = simulated_plan(plan_or_file(plan), today, max_oom_risk, options.measured_runs or (), variables)
    else:
        read = with_measured(read_job(options, made), options.measured_runs)
        current = current_of(read, options.host_order, max_oom_risk)
    if schedule is not None:
        current = with_schedule(current, schedule, max_oom_risk)
    if trace is not None:
        from pipette_opt.simulate.trace import write_trace

        shown = current.instance, current.config, current.placement, current.schedule
        write_trace(Path(trace), *shown, factor=current.estimate.factor)
    return current


@dataclass(frozen=True, slots=True, kw_only=True)
class Compared:
    """
    A measured run and the error of its prediction.

    Parameters
    ----------
    time_error, memory_error
        Predicted over measured value, minus 1; ``None`` if the value was not measured.
    fits
        Whether every stage is predicted to fit in memory at the accepted risk.
    """

    measured: Measured
    time_error: float | None
    memory_error: float | None
    fits: bool

    def lines(self) -> list[str]:
        """Return a sentence for each measured figure."""
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
        """Return the comparison as a document for ``--json``."""
        return {**asdict(self.measured), "time_error": self.time_error, "memory_error": self.memory_error}


def compared_with(
    measured: Measured, predicted: IterationTime, memory: Sequence[StageMemory], max_oom_risk: float = USUAL_RISK
) -> Compared | None:
    """Return the comparison of a measured run with its prediction; ``None`` if nothing was measured."""
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

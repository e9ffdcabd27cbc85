"""``solve`` and ``write_report``: plans, and HTML pages about plans."""

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipette_opt.base.errors import InfeasibleError, InputError, NoPlanInTimeError
from pipette_opt.candidates import SearchSpace
from pipette_opt.library.arguments import (
    Named,
    Told,
    argument_errors,
    check_given_once,
    described,
    params_of,
    plan_or_file,
    watcher_of,
)
from pipette_opt.library.known import with_layout_of
from pipette_opt.library.plans import opened, plan_with_band
from pipette_opt.options.description import SearchOptions
from pipette_opt.options.names import option_name
from pipette_opt.plans.failures import FailureRate
from pipette_opt.plans.plan import Plan
from pipette_opt.plans.watcher import Watcher
from pipette_opt.specs import ClusterSpec, ModelSpec, TrainingSpec
from pipette_opt.specs.objective import Objective

if TYPE_CHECKING:
    from pipette_opt.job.read import Job
    from pipette_opt.library.current import Current

USUAL_GAP_LIMIT = 0.005
"""Default proven gap at which a search ends, far below the error of predicted times. Chosen."""

OF_FAILURES: Mapping[str, tuple[str, float | None]] = {
    "host_mean_days": ("host_mean_days", None),
    "checkpoint_seconds": ("save_s", 60.0),
    "recovery_seconds": ("recovery_s", 600.0),
}
"""Field of :class:`~pipette_opt.plans.failures.FailureRate` and default of each option of failures. Defaults chosen."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Solved:
    """
    Answer of a search.

    Parameters
    ----------
    current
        Launch that runs today; ``None`` unless it is compared.
    notes
        Sentences on how the launch was read, and why the search could not start from it.
    """

    plan: Plan
    job: "Job"
    current: "Current | None" = None
    notes: tuple[str, ...] = ()


def solve(
    cluster: Named | ClusterSpec | None = None,
    model: Named | ModelSpec | None = None,
    *,
    training: TrainingSpec | None = None,
    space: SearchSpace | None = None,
    on_progress: Told | None = None,
    **options: Any,
) -> Plan:
    """
    Return the best plan of a job with its certificate; ``pipette-opt solve`` writes the same plan to ``plan.json``.

    Nothing is printed and no file is written. :func:`write_plan` writes the plan to a file that other programs can
    check and export, if the cluster came from a file, a shipped example, or ``nodes``. A :class:`ClusterSpec` made in
    memory has no file that the plan could name.

    Parameters
    ----------
    cluster
        A cluster file, or a :class:`ClusterSpec` with directed bandwidths in bytes/s, shape ``(hosts, hosts)``.
        Without measured links give ``nodes=16, gpu="h100", nics="8x400"``, or ``example="lab-16x8"``.
    model
        A preset such as ``llama-3-8b``, a Hugging Face ``config.json``, or a :class:`ModelSpec`; by default the model
        of ``launch``, the launch that runs today. The answer is never slower than a launch that fits in memory.
    training
        Training settings; or give ``global_batch_size`` (sequences) and ``seq_length`` (tokens) in ``options``.
    space
        Configurations to search; by default all within the default limits of :class:`SearchSpace`. Its ``num_gpus``
        overrides that of ``options``.
    on_progress
        Callback that gets seconds, step, best time found and lower bound, from any thread.
    options
        Fields of :class:`~pipette_opt.options.description.JobOptions`, such as ``launch``, ``precision``,
        ``exclude_hosts``, ``software`` and ``num_gpus``; of
        :class:`~pipette_opt.options.description.SpaceOptions`, with a value or several: ``tensor_parallel=8``,
        ``micro_batch_size=(1, 2)``; of :class:`~pipette_opt.options.description.SearchOptions`: ``objective``,
        ``prefer``, ``max_oom_risk``, ``time_limit_s`` (one-time compilation of kernels is not counted), ``gap_limit``,
        ``workers`` and ``seed``. Megatron-LM's names and short names are accepted, too
        (:mod:`~pipette_opt.options.names`): ``tensor_model_parallel_size``, ``tp``, ``gbs``. A job file holds all of
        them: ``solve(**read_job("job.yaml"))``.

    Raises
    ------
    InputError
        If an argument or a file is wrong; ``where`` names the argument, or the file and its field.
    InfeasibleError
        If no configuration is legal, fits in memory and can be placed; the text has the requirements that cannot be
        met together, and the reasons.
    TypeError
        If an argument is no option.
    """
    with argument_errors():
        return solved(cluster, model, training=training, space=space, watcher=watcher_of(on_progress), **options).plan


def solved(
    cluster: Named | ClusterSpec | None = None,
    model: Named | ModelSpec | None = None,
    *,
    training: TrainingSpec | None = None,
    space: SearchSpace | None = None,
    watcher: Watcher,
    compare: bool = False,
    on_job: "Callable[[Job], None]" = lambda job: None,
    **options: Any,
) -> Solved:
    """
    Search like :func:`solve`, with errors that name options of the command line.

    Parameters
    ----------
    compare
        Whether the launch that runs today is simulated, too; it then has to be able to run.
    on_job
        Function that is called with the job before the search; it may refuse it.
    """
    given, pinned, made, search = described(cluster, model, training, options, SearchOptions)
    check_given_once(space, pinned)
    aim = Objective(search.objective or Objective.TIME)
    failures = _failures(search, aim)

    from pipette_opt.job.read import read_job
    from pipette_opt.job.space import search_space
    from pipette_opt.library.measured import in_worlds, with_measured

    job = with_measured(read_job(given, made), given.measured_runs)
    job = in_worlds(job) if aim.is_over_worlds else job
    on_job(job)

    # The solvers take seconds to load: wrong input is refused before.
    from pipette_opt.certify.conflicts import explained
    from pipette_opt.library.current import current_of, nodes_of
    from pipette_opt.optimize.objectives import optimize_objective

    space = search_space(job, pinned, space)
    params = params_of(
        search,
        time_limit_s=search.time_limit,
        gap_limit=USUAL_GAP_LIMIT if search.gap_limit is None else search.gap_limit,
        objective=aim,
        regret_quantile=search.regret_quantile,
        prefer=search.prefer,
    )
    notes = _not_checked(job) if job.launch is None else [*job.launch.notes]
    if job.launch is None and (compare or given.host_order is not None):
        raise InputError("--compare" if compare else "--host-order", "needs --launch, the launch that runs today.")
    current, first = None, None
    order: tuple[int, ...] = ()
    if compare:
        current = current_of(job, given.host_order, search.max_oom_risk)
        order = current.host_order
    elif given.host_order is not None:
        order = tuple(nodes_of(job, given.host_order).tolist())
    if job.launch is not None:
        space, first, why_not = with_layout_of(job.instance, space, job.launch, search.max_oom_risk, order or None)
        if why_not:
            reason = why_not.rstrip(".")
            notes.append(f"{job.launch.where}: the search cannot start from this layout: {reason}.")
    params = replace(params, host_order=order)
    write, watcher.on_plan = watcher.on_plan, lambda plan: write(plan_with_band(plan, job.instance))
    inputs = {**job.inputs, "max_oom_risk": search.max_oom_risk, **failures}
    try:
        plan = optimize_objective(job.instance, space, params, watcher, inputs, first)
    except NoPlanInTimeError:
        raise
    except InfeasibleError as error:
        watcher.report("looking for the requirements that cannot be met together")
        raise _with_ways_out(explained(error, job.instance, space, search.max_oom_risk), job, space, search) from None
    return Solved(plan=plan_with_band(plan, job.instance), job=job, current=current, notes=tuple(notes))


def _not_checked(job: "Job") -> list[str]:
    """Return the note on a framework of which no measured run is known; empty for others."""
    from pipette_opt.read.foreign import framework_module

    note = getattr(framework_module(job.framework), "NOT_CHECKED", "") if job.framework else ""
    return [note] if note else []


def _with_ways_out(error: InfeasibleError, job: "Job", space: SearchSpace, search: SearchOptions) -> InfeasibleError:
    """Return the error of a fine-tuning job with the changes, each alone, that make it fit, and what they take."""
    if not job.finetune:
        return error
    from pipette_opt.library.ways_out import ways_out

    offload = job.can_run.get("offload", ("optimizer",))[-1]
    lines = ways_out(job.instance, space, search.max_oom_risk, offload=offload)
    ways = "".join(f"\n  {line}" for line in lines)
    return InfeasibleError(f"Each of these alone makes it fit:{ways}\n{error}" if ways else str(error))


def _failures(search: SearchOptions, aim: Objective) -> dict[str, Any]:
    """Return the failure rate of hosts as a plan records it; empty unless the objective is ``progress``."""
    if search.regret_quantile is not None and aim is not Objective.REGRET:
        raise InputError("regret_quantile", f"has no effect with --objective {aim}; it needs --objective regret.")
    given = {name: getattr(search, name) for name in OF_FAILURES}
    if aim is not Objective.PROGRESS:
        for name, value in given.items():
            if value is not None:
                problem = f"has no effect with --objective {aim}; it needs --objective progress."
                raise InputError(option_name(name), problem)
        return {}
    if search.host_mean_days is None:
        raise InputError(
            "--host-mean-days", "is required for --objective progress: the mean days between failures of a host."
        )
    rates: dict[str, Any] = {
        field: usual if given[name] is None else given[name] for name, (field, usual) in OF_FAILURES.items()
    }
    try:
        return {"failures": asdict(FailureRate(**rates))}
    except ValueError as error:
        field, _, problem = str(error).partition(" ")
        name = next(name for name, (own, _) in OF_FAILURES.items() if own == field)
        raise InputError(option_name(name), problem) from None


def write_report(plan: Plan | Named, path: Named, cluster: Named | None = None) -> bool:
    """
    Write a self-contained HTML page about a plan.

    Parameters
    ----------
    plan
        A plan or its file.
    path
        Path of the page.
    cluster
        Path of the plan's cluster file today, if it was moved.

    Returns
    -------
    bool
        Whether the page is complete; without the cluster file it lacks links, schedule and sensitivity.

    Raises
    ------
    InputError
        If the cluster file is not the file that the plan was made from, or the page cannot be written.
    """
    from pipette_opt.report.page import write_page

    text, is_whole = report_of(plan, cluster)
    write_page(Path(path), text)
    return is_whole


def report_of(plan: Plan | Named, cluster: Named | None = None) -> tuple[str, bool]:
    """Return the page of :func:`write_report` as HTML, and whether it is complete."""
    from pipette_opt.export.script_changes import decided_options
    from pipette_opt.job.inputs import has_cluster
    from pipette_opt.library.plans import job_of
    from pipette_opt.read.files import sha256_of
    from pipette_opt.report.page import page_of

    found, place = opened(plan_or_file(plan))
    file = None if isinstance(plan, Plan) else place
    moved = None if cluster is None else Path(cluster)
    known = moved is not None or has_cluster(found, place)
    instance = job_of(found, place, moved) if known else None
    named = {} if file is None else {"file": file.name, "sha256": sha256_of(file)}
    return page_of(found, instance, flags=decided_options(found), **named), instance is not None

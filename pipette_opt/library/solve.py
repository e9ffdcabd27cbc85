"""``solve`` and ``write_report``: plans, and HTML pages about plans."""

from pathlib import Path
from typing import Any, get_args

from pipette_opt.base.errors import InputError
from pipette_opt.base.risk import USUAL_RISK
from pipette_opt.base.types import Prefer
from pipette_opt.candidates import SearchSpace
from pipette_opt.library.arguments import (
    Named,
    Told,
    argument_errors,
    job_and_space,
    plan_or_file,
    watcher_of,
)
from pipette_opt.library.known import with_layout_of
from pipette_opt.library.measured import in_worlds
from pipette_opt.library.plans import opened, plan_with_band
from pipette_opt.options.values import checked, threads
from pipette_opt.plans.plan import Plan
from pipette_opt.specs import ClusterSpec, ModelSpec, TrainingSpec
from pipette_opt.specs.objective import Objective

USUAL_GAP_LIMIT = 0.005
"""Default proven gap at which a search ends, far below the error of predicted times. Chosen."""


def solve(
    cluster: Named | ClusterSpec | None = None,
    model: Named | ModelSpec | None = None,
    *,
    training: TrainingSpec | None = None,
    space: SearchSpace | None = None,
    objective: str | None = None,
    regret_quantile: float | None = None,
    prefer: Prefer = "simple",
    max_oom_risk: float = USUAL_RISK,
    time_limit_s: float = 60.0,
    gap_limit: float = USUAL_GAP_LIMIT,
    workers: int | None = None,
    seed: int = 0,
    on_progress: Told | None = None,
    **job: Any,
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
        A preset such as ``llama-3-8b``, a Hugging Face ``config.json``, a file of Megatron arguments, or a
        :class:`ModelSpec`. The answer is never slower than the layout in Megatron arguments.
    training
        Training settings; or give ``global_batch_size`` (sequences) and ``seq_length`` (tokens) in ``job``.
    space
        Configurations to search; by default all within the default limits of :class:`SearchSpace`. Its ``num_gpus``
        overrides that of ``job``.
    objective
        ``time``, ``regret``, ``robust``, ``tokens-per-gpu`` or ``cost``; ``progress`` exists on the command line only.
        By default ``time``.
    regret_quantile
        Quantile of the regret over the worlds that is minimised, in (0, 1); by default its mean.
    prefer
        ``simple``: the plainest of the plans within 1 % of the fastest found; ``fastest``: the fastest found.
    max_oom_risk
        Accepted probability of running out of memory, in [0, 1]; 1 ignores memory.
    time_limit_s
        Seconds of search, more than 0; the one-time compilation of kernels is not counted.
    gap_limit
        Proven gap at which the search ends, in [0, 1); 0: only when the gap is closed or the time is over.
    workers
        Number of threads; all cores by default.
    seed
        Seed of every random choice.
    on_progress
        Callback that gets seconds, step, best time found and lower bound, from any thread.
    job
        Other fields of :class:`~pipette_opt.options.description.JobOptions`, such as ``precision``, ``fp8``,
        ``exclude_hosts``, ``launcher``, ``software`` and ``num_gpus``. Fields of
        :class:`~pipette_opt.options.description.SpaceOptions` take a value or several: ``tensor_parallel=8``,
        ``micro_batch_size=(1, 2)``. Megatron-LM's names and short names are accepted, too
        (:mod:`~pipette_opt.options.names`): ``tensor_model_parallel_size``, ``tp``, ``gbs``. A job file holds all
        of them: ``solve(**read_job("job.yaml"))``.

    Raises
    ------
    InputError
        If an argument or a file is wrong; ``where`` names the argument, or the file and its field.
    InfeasibleError
        If no configuration is legal, fits in memory and can be placed; the text has the reasons.
    TypeError
        If an argument is no field of a job.
    """
    from pipette_opt.optimize import OptimizeParams
    from pipette_opt.optimize.objectives import optimize_objective

    with argument_errors():
        objectives = tuple(
            str(objective) for objective in Objective if objective is not Objective.PROGRESS
        )  # needs a rate of losses
        if objective is not None and objective not in objectives:
            raise InputError("objective", f"must be one of {', '.join(objectives)}, got {objective!r}.")
        if prefer not in get_args(Prefer):
            raise InputError("prefer", f"must be one of {', '.join(get_args(Prefer))}, got {prefer!r}.")
        given, space = job_and_space(cluster, model, training, space, job)
        aim = Objective(objective or Objective.TIME)
        given = in_worlds(given) if aim.is_over_worlds else given
        params = checked(
            OptimizeParams,
            time_limit_s=time_limit_s,
            gap_limit=gap_limit,
            workers=threads(workers),
            seed=seed,
            max_oom_risk=max_oom_risk,
            objective=aim,
            regret_quantile=regret_quantile,
            prefer=prefer,
        )
        watcher = watcher_of(on_progress)
        inputs = {**given.inputs, "max_oom_risk": max_oom_risk}
        first = None
        if given.arguments is not None:
            space, first, why_not = with_layout_of(given.instance, space, given.arguments, max_oom_risk)
            if why_not:
                watcher.report(f"the search cannot start from the layout of the Megatron arguments: {why_not}")
        plan = optimize_objective(given.instance, space, params, watcher, inputs, first)
    return plan_with_band(plan, given.instance)


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

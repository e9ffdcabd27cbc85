"""``pipette-opt solve``."""

import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, get_args

import typer

from pipette_opt.base.errors import InfeasibleError, InputError, NoPlanInTimeError
from pipette_opt.base.risk import USUAL_RISK
from pipette_opt.cli import options as opt
from pipette_opt.cli.interrupt import STOPPED_EARLY, stop_on_interrupt

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from rich.console import RenderableType

    from pipette_opt.candidates import SearchSpace
    from pipette_opt.export.script_changes import Change
    from pipette_opt.job.read import Job
    from pipette_opt.library.current import Current
    from pipette_opt.plans.plan import Plan
    from pipette_opt.read.megatron_args import MegatronArgs
    from pipette_opt.solver.pruning import FirstPlan
    from pipette_opt.specs import Instance
    from pipette_opt.specs.objective import Objective

USED_UP = 0.9
"""Share of the time limit after which a search counts as ended by it. Chosen: steps end before their time is over."""

MORE_TIME = 4
"""Factor of the time limit that is suggested where a gap is left. Chosen: 240 s in place of the usual 60."""

MAX_CHANGES = 12
"""Maximum number of changes to a launch that are shown without ``--verbose``. Chosen: most launches have fewer."""

MAX_STEPS_COMPARED = 2
"""Maximum number of suggested commands when the answer also lists changes to a launch. Chosen."""


@opt.spread
def solve(
    job_options: opt.JobOptions,
    space_options: opt.SpaceOptions,
    objective: opt.Objective = None,
    host_mean_days: Annotated[
        float | None,
        typer.Option(help="(--objective progress) Mean days between failures of a host.", rich_help_panel=opt.SEARCH),
    ] = None,
    checkpoint_seconds: Annotated[
        float | None,
        typer.Option(
            help="(--objective progress) Seconds that saving a checkpoint stops the job; 60 by default.",
            rich_help_panel=opt.SEARCH,
        ),
    ] = None,
    recovery_seconds: Annotated[
        float | None,
        typer.Option(
            help="(--objective progress) Seconds from a failure until training continues; 600 by default.",
            rich_help_panel=opt.SEARCH,
        ),
    ] = None,
    regret_quantile: Annotated[
        float | None,
        typer.Option(
            help="(--objective regret) Quantile of the regret over the worlds to minimise, e.g. 0.9, instead of its "
            "mean.",
            rich_help_panel=opt.SEARCH,
        ),
    ] = None,
    prefer: opt.Prefer = "simple",
    max_oom_risk: opt.MaxOomRisk = USUAL_RISK,
    time_limit: opt.TimeLimit = 60.0,
    gap_limit: opt.GapLimit = None,
    workers: opt.Workers = None,
    seed: opt.Seed = 0,
    compare_current: Annotated[
        str | None,
        typer.Option(
            help="Megatron arguments of the launch that runs today, or a file with them; the plan is compared "
            "with this launch.",
            rich_help_panel=opt.RUN,
        ),
        opt.FromLaunch("args"),
    ] = None,
    current_hosts: Annotated[
        str | None,
        typer.Option(
            help="Host order of the launch that runs today; by default as an export names them, else as in the "
            "cluster file.",
            rich_help_panel=opt.RUN,
        ),
        opt.FromLaunch("hosts"),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out",
            "-o",
            help="File to write the plan to; - is standard output. Only a file given here replaces a plan of another "
            "job. [default: plan.json]",
            rich_help_panel=opt.RUN,
        ),
    ] = None,
    trace: Annotated[
        Path | None,
        typer.Option(help="File to write the plan's predicted schedule to, for Perfetto.", rich_help_panel=opt.RUN),
    ] = None,
    json: opt.Json = False,
) -> None:
    """
    Find the best parallel degrees and GPU placement, and prove how good they are.

    Example: [bold]pipette-opt solve --example lab-16x8 -o plan.json[/]

    First and last line: whether the plan fits in memory, its distance from the best searched plan, and the error of its
    time. MFU is the model's FLOPs over the peak of the GPUs used. A token counts 6 FLOPs per weight that multiplies it,
    plus 6 x layers x query width x sequence length for causal attention; recomputation does not count. In the JSON, hfu
    counts recomputation, and attention as its kernels compute it.

    The plan is the plainest of the plans within 1 % of the fastest found. The answer also names the fastest (--prefer
    fastest).

    Ctrl-C stops the search; the best plan so far is written. Exit code 0: the gap of the search is at most --gap-limit
    (1 % if not given). 2: wrong input. 3: no feasible plan. 4: interrupted, or ended with a larger gap, with the best
    plan so far written.
    """
    begun = time.perf_counter()
    from dataclasses import asdict

    from pipette_opt.base.files import is_stdout
    from pipette_opt.base.types import Prefer as PreferWord
    from pipette_opt.base.units import above_best
    from pipette_opt.cli.output import (
        check_place,
        check_stdout,
        is_verbose,
        live_progress,
        say,
        say_written,
        show,
        show_json,
    )
    from pipette_opt.specs.objective import Objective

    given, out = out, out or Path("plan.json")
    check_place(out, trace)
    check_stdout(False, out, trace)
    opt.one_of("--objective", objective or "time", tuple(map(str, Objective)))
    opt.one_of("--prefer", prefer, get_args(PreferWord))
    job = opt.read_job(job_options)
    aim = Objective(objective or Objective.TIME)
    if job_options.measured_runs:
        from pipette_opt.library.measured import in_worlds, with_measured

        job = with_measured(job, job_options.measured_runs)
        job = in_worlds(job) if aim.is_over_worlds else job
    if regret_quantile is not None and aim is not Objective.REGRET:
        raise InputError("--regret-quantile", f"has no effect with --objective {aim}; it needs --objective regret.")

    if given is None:
        from pipette_opt.report.same_job import check_same_job

        check_same_job(out, job.inputs)

    # The solvers take seconds to load: a wrong file is refused before.
    from pipette_opt.certify.conflicts import explained
    from pipette_opt.export.script_changes import decided_options
    from pipette_opt.job.space import search_space
    from pipette_opt.library.plans import on_hosts_of, paying_options_of, plan_with_band
    from pipette_opt.library.solve import USUAL_GAP_LIMIT
    from pipette_opt.optimize import OptimizeParams
    from pipette_opt.optimize.objectives import optimize_objective
    from pipette_opt.plans.watcher import Watcher
    from pipette_opt.read.megatron_args import read_megatron_args
    from pipette_opt.read.scripts import script_environment
    from pipette_opt.report.first_screen import first_screen, next_steps
    from pipette_opt.report.plan_file import keep_plan, plan_to_dict
    from pipette_opt.report.tables import plan_tables

    space = search_space(job, space_options)
    num_workers = opt.threads(workers)
    params = opt.checked(
        OptimizeParams,
        time_limit_s=time_limit,
        gap_limit=USUAL_GAP_LIMIT if gap_limit is None else gap_limit,
        workers=num_workers,
        seed=seed,
        max_oom_risk=max_oom_risk,
        objective=aim,
        regret_quantile=regret_quantile,
        prefer=prefer,
    )
    failures = _failures(params.objective, host_mean_days, checkpoint_seconds, recovery_seconds)
    current = today = None
    if compare_current is not None:
        from pipette_opt.library.current import current_of

        today = read_megatron_args(compare_current, "the current arguments", script_environment(job_options.env))
        for note in today.notes:
            say(note)
        job = opt.trained_as(job, today)
        current = current_of(job, today, current_hosts, max_oom_risk)
    watcher = Watcher(begun=begun)
    if not is_stdout(out):
        watcher.on_plan = _writing(job.instance, out)
    with stop_on_interrupt(watcher.stop, lambda: watcher.is_prepared), live_progress(watcher, quiet=json):
        inputs = {**job.inputs, "max_oom_risk": max_oom_risk, **failures}
        order = None if current is None else current.host_order
        space, first = _known(job, space, today, order, max_oom_risk)
        params = replace(params, host_order=order or ())
        try:
            plan = optimize_objective(job.instance, space, params, watcher, inputs, first)
        except NoPlanInTimeError:
            raise
        except InfeasibleError as error:
            watcher.report("looking for the requirements that cannot be met together")
            raise explained(error, job.instance, space, max_oom_risk) from None
    plan = plan_with_band(plan, job.instance)
    if not (json and is_stdout(out)):
        keep_plan(plan, out)
    if trace is not None:
        from pipette_opt.simulate.trace import write_trace

        instance = on_hosts_of(plan, job.instance)
        write_trace(trace, instance, plan.config, plan.placement, factor=plan.estimate.factor)
    paying = paying_options_of(plan, job.instance, max_oom_risk)
    changes = _changes(plan, current, today)
    if json:
        paying_off = [asdict(option) for option in paying]
        document = {"verdict": plan.verdict, **plan_to_dict(plan), "would_pay": paying_off}
        if current is not None:
            document |= {"current": current.as_dict(), "changes": [asdict(change) for change in changes]}
        show_json(document)
    elif is_verbose():
        show(*plan_tables(plan, () if current is None else current.tables((plan, job.instance))), beside=out)
    else:
        compared = [] if current is None else current.sentences(plan, job.instance)
        steps = [] if is_stdout(out) else next_steps(plan, str(out))[: None if current is None else MAX_STEPS_COMPARED]
        screen = first_screen(plan, flags=decided_options(plan), paying=paying, today=compared, next_steps=steps)
        show(*screen, beside=out)
    if not json:
        if current is not None:
            where, most = "your launch" if today is None else today.where, None if is_verbose() else MAX_CHANGES
            show(*_changes_lines(changes, where, most), beside=out)
        say_written(out, "plan")
    proof, accepted = plan.certificate, gap_limit
    if accepted is None:
        accepted = 0.0 if watcher.stop.is_set() else opt.DONE_GAP
    stated = plan.target or proof.robust
    gap = proof.gap if stated is None else stated.gap
    if gap > accepted and (stated is not None or proof.status != "OPTIMAL"):
        cause = "stopped early" if watcher.stop.is_set() else "the search ended"
        far = above_best(gap) if plan.target is None else plan.target.distance
        limit = f", more than --gap-limit {accepted:g}" if accepted or gap_limit is not None else ""
        more = ""
        if not watcher.stop.is_set() and proof.wall_time_s >= USED_UP * time_limit:
            more = f"; the {time_limit:g} s are used up: --time-limit {MORE_TIME * time_limit:g} usually narrows this"
        say(f"{cause}: the {'fastest ' if stated is None else ''}plan found is {far}{limit}{more}")
        raise typer.Exit(STOPPED_EARLY)


def _changes(plan: "Plan", current: "Current | None", today: "MegatronArgs | None") -> "list[Change]":
    """Return the options of today's launch that the plan changes; empty if Megatron-LM cannot express the plan."""
    from pipette_opt.export.script_changes import script_changes

    if current is None or today is None:
        return []
    try:
        return script_changes(plan, today.written, today.lines, today=current.config, estimate=current.estimate)
    except InputError:
        return []


def _changes_lines(changes: "list[Change]", where: str, most: int | None) -> "list[RenderableType]":
    """
    Return the changes to a launch as lines to print.

    Parameters
    ----------
    most
        Maximum number of changes; the others are counted. ``None`` for no limit.
    """
    from pipette_opt.export.script_changes import changes_head, changes_rows, changes_text
    from pipette_opt.report.cells import hanging

    if not changes:
        return [*changes_text(changes, where)]
    shown = len(changes) if most is None else min(most, len(changes))
    return ["", changes_head(changes, where), hanging(changes_rows(changes, shown))]


def _writing(instance: "Instance", out: Path) -> "Callable[[Plan], None]":
    """Return a function that writes the best plan so far; the first failure is reported and the search continues."""
    from pipette_opt.cli.output import say
    from pipette_opt.library.plans import plan_with_band
    from pipette_opt.report.plan_file import write_plan

    failed: list[InputError] = []

    def write(plan: "Plan") -> None:
        try:
            write_plan(plan_with_band(plan, instance), out)
        except InputError as error:
            if not failed:
                say(f"{error.where}: {error.problem} The search continues, and writes its plan at the end.")
            failed.append(error)

    return write


def _known(
    job: "Job",
    space: "SearchSpace",
    today: "MegatronArgs | None",
    host_order: "Sequence[int] | None",
    max_oom_risk: float,
) -> "tuple[SearchSpace, FirstPlan | None]":
    """
    Return the search space with the layout of today's launch, and the launch as a first plan or ``None``.

    The launch is that of ``--compare-current``, or else that of the Megatron arguments in ``--model``.
    """
    from pipette_opt.cli.output import say
    from pipette_opt.library.known import with_layout_of

    arguments = today or job.arguments
    if arguments is None:
        return space, None
    space, first, why_not = with_layout_of(job.instance, space, arguments, max_oom_risk, host_order)
    if why_not:
        say(f"{arguments.where}: the search cannot start from this layout: {why_not.rstrip('.')}.")
    return space, first


def _failures(
    objective: "Objective", host_mean_days: float | None, save_s: float | None, recovery_s: float | None
) -> "dict[str, dict[str, float]]":
    """Return the failure rate of hosts as a plan records it; empty unless the objective is ``progress``."""
    from dataclasses import asdict

    from pipette_opt.plans.failures import FailureRate
    from pipette_opt.specs.objective import Objective

    given = {
        "--host-mean-days": host_mean_days,
        "--checkpoint-seconds": save_s,
        "--recovery-seconds": recovery_s,
    }
    if objective is not Objective.PROGRESS:
        for option, value in given.items():
            if value is not None:
                raise InputError(option, f"has no effect with --objective {objective}; it needs --objective progress.")
        return {}
    if host_mean_days is None:
        raise InputError(
            "--host-mean-days", "is required for --objective progress: the mean days between failures of a host."
        )
    save_s, recovery_s = 60.0 if save_s is None else save_s, 600.0 if recovery_s is None else recovery_s
    for option, value, least in (
        ("--host-mean-days", host_mean_days, 0.0),
        ("--checkpoint-seconds", save_s, 0.0),
        ("--recovery-seconds", recovery_s, -1e-9),
    ):
        if not least < value < 1e9:
            raise InputError(option, f"must be {'>' if least == 0 else '>='} 0, got {value:g}.")
    return {"failures": asdict(FailureRate(host_mean_days=host_mean_days, save_s=save_s, recovery_s=recovery_s))}

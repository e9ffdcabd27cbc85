"""``pipette-opt solve``."""

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from pipette_opt.base.errors import InputError
from pipette_opt.cli import options as opt
from pipette_opt.cli.interrupt import STOPPED_EARLY, watched

if TYPE_CHECKING:
    from collections.abc import Callable

    from rich.console import RenderableType

    from pipette_opt.export.script_changes import Change
    from pipette_opt.job.read import Job
    from pipette_opt.library.solve import Solved
    from pipette_opt.plans.plan import Plan

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
    search: opt.SearchOptions,
    compare: Annotated[
        bool,
        typer.Option(
            "--compare",
            help="Compare the plan with --launch: times, and the options to change.",
            rich_help_panel=opt.RUN,
        ),
    ] = False,
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
    fastest). With --launch, the launch that runs today, the plan is never slower than it
    if that launch fits in memory.

    Ctrl-C stops the search; the best plan so far is written. Exit code 0: the gap of the search is at most --gap-limit
    (1 % if not given). 2: wrong input. 3: no feasible plan. 4: interrupted, or ended with a larger gap, with the best
    plan so far written. 5: no plan in the time limit.
    """
    begun = time.perf_counter()
    from pipette_opt.base.files import is_stdout
    from pipette_opt.cli.output import check_outputs, say, say_written
    from pipette_opt.library.solve import solved
    from pipette_opt.report.plan_file import keep_plan
    from pipette_opt.report.same_job import check_same_job

    is_own, out = out is None, out or Path("plan.json")
    check_outputs(False, out, trace)

    def on_job(job: "Job") -> None:
        if is_own:
            check_same_job(out, job.inputs)

    with watched(quiet=json, begun=begun, keeps_plans=True) as watcher:
        if not is_stdout(out):
            watcher.on_plan = _writing(out)
        given = opt.given_of(job_options, space_options, search)
        found = solved(**given, watcher=watcher, compare=compare, on_job=on_job)
    if not (json and is_stdout(out)):
        keep_plan(found.plan, out)
    if trace is not None:
        from pipette_opt.library.plans import on_hosts_of
        from pipette_opt.simulate.trace import write_trace

        plan = found.plan
        instance = on_hosts_of(plan, found.job.instance)
        write_trace(trace, instance, plan.config, plan.placement, factor=plan.estimate.factor)
    for note in found.notes:
        say(note)
    _show(found, search.max_oom_risk, out, json=json)
    if not json:
        say_written(out, "plan")
    _exit_if_open(found.plan, search, stopped=watcher.stop.is_set())


def _show(found: "Solved", max_oom_risk: float, out: Path, *, json: bool) -> None:
    """Print the plan as JSON, as all tables, or as its first screen; with a launch, also what it changes there."""
    from dataclasses import asdict

    from pipette_opt.base.files import is_stdout
    from pipette_opt.cli.output import is_verbose, show, show_json
    from pipette_opt.export.script_changes import decided_options
    from pipette_opt.library.plans import paying_options_of
    from pipette_opt.report.first_screen import first_screen, next_steps
    from pipette_opt.report.plan_file import plan_to_dict
    from pipette_opt.report.tables import plan_tables

    plan, instance, current = found.plan, found.job.instance, found.current
    paying, changes = paying_options_of(plan, instance, max_oom_risk), _changes(found)
    if json:
        paying_off = [asdict(option) for option in paying]
        document = {"verdict": plan.verdict, **plan_to_dict(plan), "would_pay": paying_off}
        if current is not None:
            document |= {"current": current.as_dict(), "changes": [asdict(change) for change in changes or ()]}
        show_json(document)
        return
    if is_verbose():
        show(*plan_tables(plan, () if current is None else current.tables((plan, instance))), beside=out)
    else:
        compared = [] if current is None else current.sentences(plan, instance)
        steps = [] if is_stdout(out) else next_steps(plan, str(out))[: None if current is None else MAX_STEPS_COMPARED]
        screen = first_screen(plan, flags=decided_options(plan), paying=paying, today=compared, next_steps=steps)
        show(*screen, beside=out)
    if changes is not None and found.job.launch is not None:
        show(*_changes_lines(changes, found.job.launch.where, None if is_verbose() else MAX_CHANGES), beside=out)


def _exit_if_open(plan: "Plan", search: opt.SearchOptions, *, stopped: bool) -> None:
    """Exit with code 4 and a line that says why, if the gap is larger than accepted."""
    from pipette_opt.base.units import above_best
    from pipette_opt.cli.output import say

    proof, accepted, limit_s = plan.certificate, search.gap_limit, search.time_limit
    if accepted is None:
        accepted = 0.0 if stopped else opt.DONE_GAP
    stated = plan.target or proof.robust
    gap = proof.gap if stated is None else stated.gap
    if gap <= accepted or (stated is None and proof.status == "OPTIMAL"):
        return
    cause = "stopped early" if stopped else "the search ended"
    far = above_best(gap) if plan.target is None else plan.target.distance
    limit = f", more than --gap-limit {accepted:g}" if accepted or search.gap_limit is not None else ""
    more = ""
    if not stopped and proof.wall_time_s >= USED_UP * limit_s:
        more = f"; the {limit_s:g} s are used up: --time-limit {MORE_TIME * limit_s:g} usually narrows this"
    say(f"{cause}: the {'fastest ' if stated is None else ''}plan found is {far}{limit}{more}")
    raise typer.Exit(STOPPED_EARLY)


def _changes(found: "Solved") -> "list[Change] | None":
    """Return the options of today's launch that the plan changes; ``None`` if its framework cannot run the plan."""
    from pipette_opt.cli.output import say
    from pipette_opt.export.script_changes import launch_changes

    launch, current = found.job.launch, found.current
    if current is None or launch is None:
        return None
    try:
        return launch_changes(found.plan, launch, today=current.config, estimate=current.estimate)
    except InputError as error:
        say(f"{launch.where}: {launch.framework} cannot run this plan: {error}")
        return None


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


def _writing(out: Path) -> "Callable[[Plan], None]":
    """Return a function that writes the best plan so far; the first failure is reported and the search continues."""
    from pipette_opt.cli.output import say
    from pipette_opt.report.plan_file import write_plan

    failed: list[InputError] = []

    def write(plan: "Plan") -> None:
        try:
            write_plan(plan, out)
        except InputError as error:
            if not failed:
                say(f"{error.where}: {error.problem} The search continues, and writes its plan at the end.")
            failed.append(error)

    return write

"""``pipette-opt candidates``."""

from pathlib import Path
from typing import Annotated

import typer

from pipette_opt.base.errors import InputError
from pipette_opt.cli import options as opt


@opt.spread
def candidates(
    job_options: opt.JobOptions,
    space_options: opt.SpaceOptions,
    max_oom_risk: opt.MaxOomRisk = 0.01,
    top: Annotated[int, typer.Option(help="Rows shown; 0 for all.", min=0, rich_help_panel=opt.RUN)] = 30,
    why: Annotated[
        str | None,
        typer.Option(
            help="Explain instead why these are not the plan, e.g. tp=8,pp=2,recompute=full.", rich_help_panel=opt.RUN
        ),
    ] = None,
    plan: Annotated[
        Path | None, typer.Option(help="With --why: the plan to compare with.", rich_help_panel=opt.RUN)
    ] = None,
    json: opt.Json = False,
) -> None:
    """
    List every legal configuration, whether it fits, and how fast it can be at best.

    Example: [bold]pipette-opt candidates --example lab-16x8 --tensor-parallel 8[/]

    [bold]--why tp=8,pp=2[/] says of some of them: illegal (by which rule), too big (which stage), or slower (where).
    """
    from dataclasses import asdict

    from pipette_opt.base.units import counted
    from pipette_opt.cli.output import say, show, show_json
    from pipette_opt.prepare import candidate_overview
    from pipette_opt.report.lists import candidates_table

    job = opt.read_job(job_options)
    space = opt.search_space(job, space_options)
    if why is not None:
        from pipette_opt.certify.why import why as why_not
        from pipette_opt.library.plans import plan_of_job

        best = None if plan is None else plan_of_job(plan, job.instance)
        answer = why_not(job.instance, space, why, max_oom_risk, best)
        if json:
            show_json(asdict(answer))
        else:
            by = f", ruled out by {answer.ruled_out_by}" if answer.ruled_out_by else ""
            show(f"{why}: {answer.verdict}{by}", *(f"  {reason}" for reason in answer.reasons))
        return
    if plan is not None:
        raise InputError("--plan", "has no effect without --why.")
    enumeration, shown = candidate_overview(job.instance, space, max_oom_risk, top or None)
    if json:
        show_json([{**asdict(row), "config": asdict(row.config)} for row in shown])
    else:
        show(candidates_table(shown))
        say(f"{len(shown)} of {counted(len(enumeration.candidates), 'candidate')} shown, the best bound first")
        say(enumeration.explain())
        for note in job.instance.cluster.assumed:
            say(f"- {note}")

"""``pipette-opt candidates``."""

from typing import Annotated

import typer

from pipette_opt.cli import options as opt


@opt.spread
def candidates(
    job_options: Annotated[opt.JobOptions, opt.Without(("measured_runs",))],
    space_options: opt.SpaceOptions,
    max_oom_risk: opt.MaxOomRisk = 0.01,
    top: Annotated[int, typer.Option(help="Number of rows to show; 0 for all.", min=0, rich_help_panel=opt.RUN)] = 30,
    json: opt.Json = False,
) -> None:
    """
    List every legal configuration, whether it fits in memory, and a lower bound on its iteration time.

    Example: [bold]pipette-opt candidates --example lab-16x8 --tensor-parallel 8[/]

    [bold]explain[/] tells why a listed configuration is not the plan.
    """
    from dataclasses import asdict

    from pipette_opt.base.units import counted
    from pipette_opt.cli.output import say, show, show_json
    from pipette_opt.job.space import search_space
    from pipette_opt.prepare import candidate_overview
    from pipette_opt.report.lists import candidates_table

    job = opt.read_job(job_options)
    space = search_space(job, space_options)
    enumeration, shown = candidate_overview(job.instance, space, max_oom_risk, top or None)
    if json:
        show_json([{**asdict(row), "config": asdict(row.config)} for row in shown])
    else:
        show(candidates_table(shown))
        say(f"{len(shown)} of {counted(len(enumeration.candidates), 'candidate')} shown, the best bound first")
        say(enumeration.explain())
        for note in job.instance.cluster.assumed:
            say(f"- {note}")

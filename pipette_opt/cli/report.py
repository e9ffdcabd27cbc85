"""``pipette-opt report``."""

from pathlib import Path
from typing import Annotated

import typer

from pipette_opt.cli import options as opt


def report(
    plan: Annotated[Path, typer.Argument(help="Plan file to show.")],
    cluster: opt.Cluster = None,
    out: Annotated[
        Path, typer.Option("--out", "-o", help="HTML file to write; - is standard output.", rich_help_panel=opt.RUN)
    ] = Path("report.html"),
    json: opt.Json = False,
) -> None:
    """
    Write a self-contained HTML page about a plan: verdict, proof, time, memory, links, placement, schedule.

    Links, schedule and sensitivity are computed from the cluster file and the job that the plan names. If the cluster
    file is missing, the page leaves them out and says so. All other figures come from plan.json.

    Example: [bold]pipette-opt report plan.json -o report.html[/]
    """
    from pipette_opt.base.files import is_stdout
    from pipette_opt.cli.output import check_outputs, say, say_written, show_json
    from pipette_opt.library.solve import report_of
    from pipette_opt.report.page import write_page
    from pipette_opt.report.plan_file import read_plan

    check_outputs(json, out)
    verdict = read_plan(plan).verdict
    text, is_whole = report_of(plan, cluster)
    if is_stdout(out):
        typer.echo(text, nl=False)
        return
    write_page(out, text)
    if json:
        show_json({"report": str(out), "verdict": verdict, "complete": is_whole})
        return
    if not is_whole:
        say(
            "the page has no links, schedule and sensitivity, because the cluster file is missing; give its "
            "path with --cluster"
        )
    say(verdict)
    say_written(out, "report")

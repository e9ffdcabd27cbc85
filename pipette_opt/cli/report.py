"""``pipette-opt report``."""

from pathlib import Path
from typing import Annotated

import typer

from pipette_opt.cli import options as opt


def report(
    plan: Annotated[Path, typer.Argument(help="The plan to show.")],
    cluster: opt.Cluster = None,
    out: Annotated[
        Path, typer.Option("--out", "-o", help="Where the page goes; - is standard output.", rich_help_panel=opt.RUN)
    ] = Path("report.html"),
    json: opt.Json = False,
) -> None:
    """
    One page about a plan, which opens without a network: verdict, proof, time, memory, links, placement, schedule.

    Links, schedule and sensitivity are derived again from the cluster file and the job that the plan names; where that
    file is not there, the page is made without them and says so. All else is what plan.json says.

    Example: [bold]pipette-opt report plan.json -o report.html[/]
    """
    from pipette_opt.base.files import is_stdout
    from pipette_opt.cli.output import check_not_overwritten, check_place, check_stdout, say, say_written, show_json
    from pipette_opt.library.inputs import has_cluster
    from pipette_opt.library.plans import plan_and_instance
    from pipette_opt.read.files import sha256_of
    from pipette_opt.report.page import page_of, write_page
    from pipette_opt.report.plan_file import plan_verdict, read_plan

    check_place(out)
    check_stdout(json, out)
    check_not_overwritten(out, inputs=(plan, cluster))
    found, instance = read_plan(plan), None
    if cluster is not None or has_cluster(found, plan):
        found, instance = plan_and_instance(plan, cluster)
    text = page_of(found, instance, file=plan.name, sha256=sha256_of(plan))
    if is_stdout(out):
        typer.echo(text, nl=False)
        return
    write_page(out, text)
    if json:
        show_json({"report": str(out), "verdict": plan_verdict(found), "complete": instance is not None})
        return
    if instance is None:
        say("without links, schedule and sensitivity: the cluster file is not there; say where with --cluster")
    say(plan_verdict(found))
    say_written(out, "report")

"""``pipette-opt export``."""

from pathlib import Path
from typing import Annotated

import typer

from pipette_opt.cli import options as opt


def export(
    plan: Annotated[Path, typer.Argument(help="The plan to export.")],
    target: Annotated[
        str,
        typer.Option(
            "--format",
            "-f",
            help="rankmap-json, rankmap-csv, megatron, nemo, torchrun, slurm, mpi, deepspeed, torchtitan, kubernetes "
            "(a JobSet) or pytorchjob.",
        ),
    ] = "rankmap-json",
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="Folder for the files; standard output if not given.")
    ] = None,
    image: Annotated[str | None, typer.Option(help="Container image; kubernetes and pytorchjob need one.")] = None,
    cluster: Annotated[Path | None, typer.Option(help="Where the plan's cluster file is now, if it has moved.")] = None,
    json: opt.Json = False,
) -> None:
    """
    Write the files that start a plan.

    Refused if the format cannot say all of the plan, or if the plan's cluster file, link matrices or profile have
    changed since it was made.

    Example: [bold]pipette-opt export plan.json --format slurm -o launch/[/]
    """
    from pipette_opt.cli.inputs import check_inputs
    from pipette_opt.cli.output import console, say, show_json
    from pipette_opt.export.targets import export as files_of
    from pipette_opt.files import is_stdout, write_atomically
    from pipette_opt.report.plan_file import read_plan

    found = read_plan(plan)
    for missing in check_inputs(found, plan, cluster):
        say(f"{missing} is not there: not checked whether it is still what the plan was made from")
    files = files_of(found, target, image)
    if json:
        show_json(files)
        return
    if out is None or is_stdout(out):
        for name, text in files.items():
            if len(files) > 1:
                say(f"# {name}")
            console().out(text, end="" if text.endswith("\n") else "\n")
        return
    out.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        write_atomically(out / name, text)
        say(f"wrote {out / name}")

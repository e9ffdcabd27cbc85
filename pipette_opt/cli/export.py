"""``pipette-opt export``."""

from pathlib import Path
from typing import Annotated

import typer

from pipette_opt.cli import options as opt


def export(
    plan: Annotated[Path, typer.Argument(help="The plan to export.")],
    target: Annotated[
        str, typer.Option("--format", "-f", help="rankmap-json, rankmap-csv, megatron, torchrun or slurm.")
    ] = "rankmap-json",
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="Folder for the files; standard output if not given.")
    ] = None,
    json: opt.Json = False,
) -> None:
    """
    Write the files that start a plan.

    Example: [bold]pipette-opt export plan.json --format slurm -o launch/[/]
    """
    from pipette_opt.cli.output import console, say, show_json
    from pipette_opt.export.targets import export as files_of
    from pipette_opt.files import write_atomically
    from pipette_opt.report.plan_file import read_plan

    files = files_of(read_plan(plan), target)
    if json:
        show_json(files)
        return
    if out is None:
        for name, text in files.items():
            if len(files) > 1:
                say(f"# {name}")
            console().out(text, end="" if text.endswith("\n") else "\n")
        return
    out.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        write_atomically(out / name, text)
        say(f"wrote {out / name}")

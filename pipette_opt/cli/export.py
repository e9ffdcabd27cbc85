"""``pipette-opt export``."""

from pathlib import Path
from typing import Annotated

import typer

from pipette_opt.cli import options as opt
from pipette_opt.export.formats import format_names
from pipette_opt.export.launch_options import ExportOptions


@opt.spread
def export(
    plan: Annotated[Path, typer.Argument(help="Plan file to export.")],
    target: Annotated[
        str,
        typer.Option(
            "--format",
            "-f",
            help=f"Format: {', '.join(format_names())}.",
        ),
    ] = "rankmap-json",
    *,
    options: ExportOptions,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="Folder to write the files to; without it they are printed.")
    ] = None,
    launch: Annotated[
        str | None,
        typer.Option(
            help="Launch that runs today: print its options to change, add and drop instead of writing files."
        ),
    ] = None,
    env: opt.Env = None,
    cluster: Annotated[
        Path | None, typer.Option(help="Path of the plan's cluster file, if the file was moved.")
    ] = None,
    force: Annotated[
        bool,
        typer.Option(
            "--force", help="With -o: replace files in the folder that export did not write, or that were changed."
        ),
    ] = False,
    json: opt.Json = False,
) -> None:
    """
    Write the files that launch a plan.

    The export is refused if the format cannot express the whole plan or if an option has no effect on the format. It is
    also refused if the plan's cluster file, link matrices or profile have changed since the plan was made. Files in the
    folder that export did not write, or that were changed since, are kept unless --force is given.

    Example: [bold]pipette-opt export plan.json --format slurm --partition gpu -o launch/[/]

    Example: [bold]pipette-opt export plan.json --format megatron --launch train.sh[/]
    """
    from dataclasses import asdict

    from pipette_opt.base.files import is_stdout
    from pipette_opt.cli.output import answer, console, say, show_json
    from pipette_opt.export.script_changes import changes_text
    from pipette_opt.library.arguments import for_commands
    from pipette_opt.library.export import export as library_export

    found = for_commands(library_export)(
        plan,
        target,
        out=None if json or is_stdout(out) else out,
        force=force,
        launch=launch,
        env=env,
        cluster=cluster,
        **opt.given_of(options),
    )
    for note in found.notes:
        say(note)
    if launch is not None:
        if json:
            show_json([asdict(change) for change in found.changes])
        else:
            answer("\n".join(changes_text(found.changes, found.script)))
    elif json:
        show_json(found.files)
    elif out is None or is_stdout(out):
        for name, text in found.files.items():
            if len(found.files) > 1:
                say(f"# {name}")
            console().out(text, end="" if text.endswith("\n") else "\n")
    else:
        for name in found.files:
            say(f"wrote {out / name}")

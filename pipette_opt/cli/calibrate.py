"""``pipette-opt calibrate``."""

from pathlib import Path
from typing import Annotated

import typer

from pipette_opt.cli import options as opt
from pipette_opt.options.questions import CalibrateOptions


@opt.spread
def calibrate(
    runs: Annotated[Path, typer.Argument(help="File of measured runs, runs.csv; data/README.md has its format.")],
    out: Annotated[Path, typer.Option("--out", "-o", help="Stack file to write.")] = Path("stack.yaml"),
    cluster: Annotated[
        Path | None,
        typer.Option(
            help="Cluster file of the hosts that the runs used, if their links were measured.", rich_help_panel=opt.JOB
        ),
    ] = None,
    *,
    how: Annotated[CalibrateOptions, opt.Without(("seed",))],
    json: opt.Json = False,
) -> None:
    """
    Make a software stack of your own measured runs, and print the remaining error.

    One run is useful, fifty are good. Times and bands then start from the runs, as with --measured; constants are
    fitted only if the runs show a strange stack. solve, estimate, benchmark and backtest read the written
    file with --software. Rows that cannot be used and duplicate rows are listed with the reason; if no row can be
    used, nothing is written. Ctrl-C during cross-validation writes the stack, with exit code 4; an earlier Ctrl-C
    writes nothing.

    Example: [bold]pipette-opt calibrate runs.csv -o stack.yaml[/]
    """
    from pipette_opt.calibrate.left_out import left_out_entries
    from pipette_opt.calibrate.tables import errors_entry, fit_table
    from pipette_opt.cli.interrupt import STOPPED_EARLY
    from pipette_opt.cli.output import (
        check_outputs,
        say,
        say_written,
        show,
        show_json,
    )
    from pipette_opt.library.arguments import for_commands
    from pipette_opt.library.calibrate import calibrate as library_calibrate
    from pipette_opt.report.cells import as_rich

    check_outputs(json, out)
    found = for_commands(library_calibrate)(runs, out=out, cluster=cluster, **opt.given_of(how))
    fit = found.fit
    if json:
        errors = {} if fit is None else {"fit": fit.errors, "held_out": fit.held_out, "larger": fit.larger}
        show_json(
            {
                "stack": str(out),
                "errors": {key: errors_entry(error) for key, error in errors.items() if error is not None},
                "notes": list(found.notes),
                "left_out": left_out_entries(found.left_out),
            }
        )
    else:
        if fit is not None:
            show(as_rich(fit_table(fit)), beside=out)
            seen = ", ".join(f"{name} {low}-{high}" for name, (low, high) in fit.ranges.items())
            say(f"seen: {seen}; beyond this the stack extrapolates")
        for note in (*found.left_out_lines(), *found.notes):
            say(f"- {note}")
        say_written(out)
    if fit is not None and fit.interrupted:
        raise typer.Exit(STOPPED_EARLY)

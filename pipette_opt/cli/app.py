"""All commands, and the options of the program itself."""

from typing import Annotated

import typer

from pipette_opt.cli import (
    backtest,
    benchmark,
    calibrate,
    candidates,
    estimate,
    export,
    import_,
    profile,
    replan,
    solve,
    verify,
)
from pipette_opt.cli.memory import app as memory

app = typer.Typer(
    name="pipette-opt",
    help="Parallel degrees, micro-batch and GPU placement for large-model training, with a certificate.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    rich_markup_mode="rich",
)


def _show_version(wanted: bool) -> None:
    if wanted:
        from pipette_opt import __version__

        typer.echo(f"pipette-opt {__version__}")
        raise typer.Exit


@app.callback()
def _program(
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Print the version.")
    ] = False,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Log what the solver does.")] = False,
) -> None:
    from pipette_opt.cli.output import set_up_logging

    set_up_logging(verbose)


app.command("solve")(solve.solve)
app.command("estimate")(estimate.estimate)
app.command("verify")(verify.verify)
app.command("calibrate")(calibrate.calibrate)
app.command("backtest")(backtest.backtest)
app.command("replan")(replan.replan)
app.command("candidates")(candidates.candidates)
app.command("export")(export.export)
app.add_typer(benchmark.app, name="benchmark")
app.add_typer(import_.app, name="import")
app.add_typer(profile.app, name="profile")
app.add_typer(memory, name="memory")

"""The table of all commands, and the options of the program itself."""

from collections.abc import Callable, Collection
from pathlib import Path
from typing import Annotated, Any

import typer

from pipette_opt.cli import (
    backtest,
    benchmark,
    calibrate,
    capture,
    catalogue,
    estimate,
    explain,
    export,
    import_,
    init,
    links,
    pack,
    profile,
    recommend,
    replan,
    report,
    solve,
    tune,
    verify,
    whatif,
)
from pipette_opt.cli import options as opt
from pipette_opt.cli.help_text import Command

SETTINGS: dict[str, Any] = {
    "pretty_exceptions_enable": False,
    "context_settings": {"help_option_names": ["-h", "--help"]},
    "rich_markup_mode": "rich",
}
"""Settings of every typer program here: plain tracebacks, ``-h`` as well as ``--help``, rich markup in help texts."""

app = typer.Typer(
    name="pipette-opt",
    help="Find parallel degrees, micro-batch and GPU placement for large-model training, with a proof of optimality.",
    no_args_is_help=True,
    **SETTINGS,
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
    verbose: Annotated[
        bool,
        typer.Option(
            "--verbose", "-v", help="Show all tables, and log the solver's steps. May also follow commands that search."
        ),
    ] = False,
) -> None:
    from pipette_opt.cli.output import set_up_logging, set_verbose

    set_verbose(verbose)
    set_up_logging(verbose)


COMMANDS: tuple[Callable[..., Any], ...] = (
    *(solve.solve, estimate.estimate, verify.verify, calibrate.calibrate, backtest.backtest, replan.replan),
    *(report.report, explain.explain, recommend.recommend, tune.tune, links.links, whatif.whatif, export.export),
    pack.pack,
    *(capture.capture, init.init, catalogue.gpus, catalogue.models),
)
"""Commands outside of groups, named as their functions, in the order of the help."""

for _command in COMMANDS:
    _settings = {"allow_interspersed_args": False} if _command is capture.capture else None
    app.command(context_settings=_settings)(_command)
app.add_typer(benchmark.app, name="benchmark")
app.add_typer(import_.app, name="import")
app.add_typer(profile.app, name="profile")


OUTPUTS = ("out", "csv", "trace", "moves_out", "log")
"""Parameters of commands that name a file to write. ``trace`` is a flag in other programs."""


SHOWS_MORE = ("estimate", "explain", "links", "pack", "recommend", "replan", "solve", "tune", "verify", "whatif")
"""Commands with further tables or a search, for which ``-v`` may also follow the command."""


def _with_common(command: Callable[..., Any], *, shows_more: bool) -> Callable[..., Any]:
    """
    Return the command with the options ``-q``, ``-v`` if it shows more, and, if it lacks its own, ``--json``.

    The added ``--json`` prints the name of the written file and the messages that would go to standard error.
    """
    parameters = opt.parameters_of(command)
    has_json = any(parameter.name in ("json", "as_json") for parameter in parameters)

    def run(*, verbose: bool = False, quiet: bool = False, **given: Any) -> None:
        from pipette_opt.base.files import files_of_run, note_targets
        from pipette_opt.cli.output import check_stdout, manner, say, set_up_logging, show_json

        keep = not has_json and given.pop("json")
        if verbose:
            set_up_logging(verbose)
        check_stdout(keep, given.get("out") if keep else None)
        with manner(quiet=quiet, keep=keep, verbose=verbose) as messages, files_of_run() as files:
            try:
                note_targets(*(path for name in OUTPUTS if isinstance(path := given.get(name), Path)))
                command(**given)
            finally:
                if files.replaced:
                    say(f"replaced {', '.join(files.replaced)}")
        if messages:  # of several processes one speaks
            show_json({"out": str(given["out"]), "said": messages})

    added = [opt.parameter("verbose", opt.Verbose, default=False)] if shows_more else []
    added.append(opt.parameter("quiet", opt.Quiet, default=False))
    if not has_json:
        added.append(opt.parameter("json", opt.Json, default=False))
    return opt.with_parameters(run, command, [*parameters, *added])


def give_common(group: typer.Typer, shows_more: Collection[str] | None = None) -> None:
    """
    Add ``-q`` and ``--json`` to every command of a group, ``-v`` to some, and format help for 80 columns.

    Parameters
    ----------
    shows_more
        Functions of the commands with ``-v``; ``None`` for all.
    """
    for command in group.registered_commands:
        command.cls = Command
        if command.callback is not None:
            name = command.callback.__name__
            command.callback = _with_common(command.callback, shows_more=shows_more is None or name in shows_more)
    for inner in group.registered_groups:
        if inner.typer_instance is not None:
            give_common(inner.typer_instance, shows_more)


give_common(app, SHOWS_MORE)

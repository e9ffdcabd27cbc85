"""``pipette-opt tune``."""

import threading
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from pipette_opt.cli import options as opt
from pipette_opt.cli.interrupt import STOPPED_EARLY, stop_on_interrupt
from pipette_opt.export.launch_options import ExportOptions
from pipette_opt.options.trials import TRIALS, TuneOptions

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pipette_opt.library.tune import Replayed
    from pipette_opt.tune.loop import Progress, Tuned

TABLE = "A table instead of a cluster"
"""Heading of the options of the replay in the help."""

NOT_OF_TRIALS = (
    "job_name",
    "segment",
    "container_mounts",
    "rdma_resource",
    "host_network",
    "host_ipc",
    "shm_size",
)
"""Options of exports that trials do not have."""

OF_REPLAY = ("replay", "leave_out_source", "budget", "until", "software", "out", "json", "verbose", "quiet")
"""Parameters that have an effect on a table of runs."""


@opt.spread
def tune(
    context: typer.Context,
    job_options: Annotated[opt.JobOptions, opt.Without(("host_order",)), opt.OnlyInJobFile(("gpu_price",))],
    space_options: Annotated[opt.SpaceOptions, opt.OnlyInJobFile()],
    asked: TuneOptions,
    exported: Annotated[ExportOptions, opt.Without(NOT_OF_TRIALS)],
    target: Annotated[
        str | None,
        typer.Option("--format", "-f", help="Export format; by default that of --launcher.", rich_help_panel=TRIALS),
    ] = None,
    replay: Annotated[
        Path | None,
        typer.Option(
            help="File of measured runs, runs.csv, that stands for the cluster: search each of its jobs by trials.",
            rich_help_panel=TABLE,
        ),
    ] = None,
    leave_out_source: Annotated[
        bool,
        typer.Option(
            "--leave-out-source",
            help="(--replay) Use nothing that was learned from the sources of the table.",
            rich_help_panel=TABLE,
        ),
    ] = False,
    out: Annotated[
        Path | None,
        typer.Option("--out", "-o", help="Folder of the trials; with --replay, CSV file to write the trials to."),
    ] = None,
    json: opt.Json = False,
) -> None:
    """
    Search for the fastest configuration by trials on your cluster.

    Example: [bold]pipette-opt tune job.yaml --run 'sbatch --wait {script}' --log '{dir}/*.out' -o tuning/[/]

    Each trial is a short run: exported, started by --run, read from its log. The next is the configuration that
    promises most, times its odds of fitting in memory, by the predictions, the errors of public runs, and the trials so
    far. A job file may allow only some degrees. The search ends at --budget, or when in nine of ten cases the best
    measured time is within --until of the best possible. The folder holds all: started again with it, an interrupted
    search goes on and repeats no run.

    Example: [bold]pipette-opt tune --replay runs.csv -o trials.csv[/]

    A table of measured runs stands for the cluster. Rows with equal source, GPU, model, sequence length, batch, number
    of GPUs, attention kernel and precision are configurations of one job. The file has a row per trial: job, trial, row
    (0 is the first below the header), iter_time_s (empty if it ran out of memory), best_so_far_s, and regret_bound.

    Exit code 0: done. 2: wrong input. 3: no configuration fits, or no trial has a time. 4: interrupted.
    """
    from pipette_opt.base.errors import InputError
    from pipette_opt.cli.output import check_stdout
    from pipette_opt.library.arguments import for_commands
    from pipette_opt.library.tune import replayed
    from pipette_opt.library.tune import tune as library_tune

    given = opt.given_of(job_options, space_options, asked, exported)
    if replay is not None:
        for option in context.command.params:
            if option.name not in OF_REPLAY and opt.is_given(context, option.name or ""):
                wrong = option.opts[0] if option.param_type_name == "option" else "the job file"
                raise InputError(wrong, "has no effect with --replay, which tries the rows of a table.")
        table = out or Path("trials.csv")
        check_stdout(json, table)
        _show_replayed(replayed(replay, **given, leave_out_source=leave_out_source), table, json=json)
        return
    if leave_out_source:
        raise InputError("--leave-out-source", "has no effect without --replay.")
    stop = threading.Event()
    with stop_on_interrupt(stop), _live(quiet=json) as report:
        result = for_commands(library_tune)(
            **given, format=target, out=out or Path("tuning"), on_progress=report, stop=stop
        )
    _show_tuned(result, json=json)
    if stop.is_set():
        raise typer.Exit(STOPPED_EARLY)
    if result.best is None:
        raise typer.Exit(3)


@contextmanager
def _live(*, quiet: bool) -> "Iterator[Callable[[Progress], None]]":
    """Yield a function that shows a search: a line for each event, and on a terminal a line with the state."""
    from pipette_opt.cli.output import console, is_quiet, say_progress
    from pipette_opt.tune.words import event_line, state_line

    out = console(stderr=True)
    if quiet or is_quiet():
        yield lambda progress: None
        return
    say_progress("listing the configurations that may be the fastest")
    if not out.is_terminal:
        yield lambda progress: say_progress(event_line(progress)) if progress.message else None
        return
    with out.status("starting") as status:

        def report(progress: "Progress") -> None:
            if progress.message:
                out.print(event_line(progress), soft_wrap=True, markup=False)
            status.update(state_line(progress))

        yield report


def _show_tuned(result: "Tuned", *, json: bool) -> None:
    """Print the best measured configuration, how far it may be from the best, and all trials."""
    from dataclasses import asdict

    from pipette_opt.cli.output import say, show, show_json
    from pipette_opt.tune.folder import TrialRecord
    from pipette_opt.tune.words import problems, trials_table, verdict

    if json:
        show_json(
            {
                "verdict": verdict(result),
                "best": result.best.trial if isinstance(result.best, TrialRecord) else None,
                "fastest": None if result.best is None else asdict(result.best),
                "plan": None if result.plan is None else str(result.plan),
                "regret": None if result.best is None else result.regret,
                "configurations": result.num_listed,
                "ended": result.reason,
                "advice": result.advice,
                "trials": [asdict(record) for record in result.records],
                "own": [asdict(run) for run in result.own],
            }
        )
        return
    show(verdict(result), trials_table(result.records, result.own), *problems(result.records))
    if result.best is not None:
        say(f"ended: {result.reason}")
    if result.advice:
        say(result.advice)
    if result.plan is not None:
        say(f"plan: {result.plan}")


def _show_replayed(found: "Replayed", out: Path, *, json: bool) -> None:
    """Write the trials of a table, and say how many there are."""
    from dataclasses import asdict

    from pipette_opt.base.files import write_atomically
    from pipette_opt.base.units import counted
    from pipette_opt.calibrate.left_out import left_out_lines
    from pipette_opt.cli.output import say, say_written, show, show_json

    write_atomically(out, found.csv())
    if json:
        show_json(
            {"summary": found.summary(), "jobs": found.num_jobs, "trials": [asdict(step) for step in found.steps]}
        )
        return
    show(found.summary())
    for line in left_out_lines(found.left_out, found.num_rows):
        say(line)
    say(f"{counted(len(found.steps), 'trial')} of {counted(found.num_jobs, 'job')}")
    say_written(out)

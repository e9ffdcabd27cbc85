"""``pipette-opt tune``."""

from pathlib import Path
from typing import Annotated

import typer

from pipette_opt.cli import options as opt


def tune(
    replay: Annotated[
        Path,
        typer.Option(
            help="File of measured runs, runs.csv, that stands for the cluster: search each of its jobs by trials."
        ),
    ],
    out: Annotated[Path, typer.Option("--out", "-o", help="CSV file to write the trials to.")] = Path("trials.csv"),
    budget: Annotated[int, typer.Option("--budget", "--trials", help="Maximum number of trials of a job.", min=1)] = 8,
    until: Annotated[
        str | None,
        typer.Option(help="Stop when the best measured time is at most this far from the best possible, e.g. 2%."),
    ] = None,
    leave_out_source: Annotated[
        bool,
        typer.Option("--leave-out-source", help="Use nothing that was learned from the sources of the table."),
    ] = False,
    calibration: opt.Calibration = None,
    json: opt.Json = False,
) -> None:
    """
    Search for the fastest configuration by trials.

    Example: [bold]pipette-opt tune --replay runs.csv -o trials.csv[/]

    Rows of the table with equal source, GPU, model, sequence length, batch, number of GPUs, attention kernel and
    precision are configurations of one job. A row's time is read when the row is tried; rows that ran out of memory are
    trials that fail. The file has a row per trial: job, trial, row (0 is the first below the header), iter_time_s
    (empty if it ran out of memory), best_so_far_s, and regret_bound: in nine of ten worlds the best time so far is at
    most this share above the best possible.
    """
    from dataclasses import asdict

    from pipette_opt.base.files import write_atomically
    from pipette_opt.base.units import counted
    from pipette_opt.calibrate.left_out import left_out_lines
    from pipette_opt.cli.output import check_stdout, say, say_written, show_json
    from pipette_opt.library.tune import regret_of, replayed

    check_stdout(json, out)
    found = replayed(
        replay,
        budget=budget,
        until=regret_of(until),
        leave_out_source=leave_out_source,
        calibration=calibration,
    )
    write_atomically(out, found.csv())
    if json:
        show_json({"jobs": found.num_jobs, "trials": [asdict(step) for step in found.steps]})
        return
    for line in left_out_lines(found.left_out, found.num_rows):
        say(line)
    say(f"{counted(len(found.steps), 'trial')} of {counted(found.num_jobs, 'job')}")
    say_written(out)

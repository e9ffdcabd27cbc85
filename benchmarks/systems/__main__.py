"""Comparison with other systems: ``python -m benchmarks.systems``."""

import threading
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from benchmarks.command import INSTANCES
from benchmarks.systems.instances import cases
from benchmarks.systems.methods import SystemRow, run_case
from benchmarks.systems.tables import markdown
from pipette_opt.base.errors import InputError
from pipette_opt.base.files import is_stdout, write_atomically
from pipette_opt.cli import options as opt
from pipette_opt.cli.interrupt import STOPPED_EARLY, stop_on_interrupt
from pipette_opt.cli.output import check_place, check_stdout, say, show_json, write_csv
from pipette_opt.cli.program import run_command


def systems(
    count: Annotated[int, typer.Option(help="Number of jobs, drawn by --seed.", rich_help_panel=INSTANCES)] = 12,
    most_hosts: Annotated[
        int, typer.Option(help="Maximum number of hosts of a job, at most 16.", rich_help_panel=INSTANCES)
    ] = 16,
    time_limit: Annotated[
        float, typer.Option(help="Time limit of this project's search per job, seconds.", rich_help_panel=opt.RUN)
    ] = 20.0,
    workers: opt.Workers = None,
    seed: opt.Seed = 0,
    csv: Annotated[Path | None, typer.Option(help="CSV file for all choices.", rich_help_panel=opt.RUN)] = None,
    out: Annotated[Path | None, typer.Option("-o", "--out", help="File for the page.", rich_help_panel=opt.RUN)] = None,
    json: opt.Json = False,
) -> None:
    """
    Compare the choices of Pipette, AMP, Varuna, Megatron's rule, Galvatron, PrimePar and exhaustive search with ours.

    All choose for the same jobs, and one simulator times their choices. Twelve jobs take some ten minutes.

    Example: [bold]python -m benchmarks.systems --count 3 --most-hosts 4[/]
    """
    check_place(csv, out)
    check_stdout(json, csv, out)
    for option, value in (("--count", count), ("--time-limit", time_limit)):
        if not value > 0:
            raise InputError(option, f"must be > 0, got {value}.")
    if not 1 <= most_hosts <= 16:
        raise InputError("--most-hosts", f"must be from 1 to 16, got {most_hosts}.")
    given = list(cases(count, seed, most_hosts))
    if not given:
        raise InputError("--most-hosts", f"leaves no job of {count}, got {most_hosts}.")
    rows: list[SystemRow] = []
    stop = threading.Event()
    with stop_on_interrupt(stop):
        for case in given:
            say(case.name)
            found = run_case(case.name, case.instance, time_limit, opt.threads(workers), seed, stop)
            if stop.is_set():
                break
            rows += found
            if csv is not None:
                write_csv(csv, [asdict(row) for row in rows])
            if out is not None and not is_stdout(out):
                write_atomically(out, markdown(rows, seed, time_limit))
    if json:
        show_json([asdict(row) for row in rows])
    elif rows:
        typer.echo(markdown(rows, seed, time_limit))
    if stop.is_set():
        say(f"stopped early: {len({row.case for row in rows})} of {len(given)} jobs are done")
        raise typer.Exit(STOPPED_EARLY)


if __name__ == "__main__":
    run_command(systems)

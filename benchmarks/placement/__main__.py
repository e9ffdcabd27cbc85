"""Placement benchmark: ``python -m benchmarks.placement``."""

import threading
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, cast

import typer

from benchmarks.command import INSTANCES
from benchmarks.placement.clusters import CLUSTERS
from benchmarks.placement.instances import SHAPES, WEIGHTS, SetName
from benchmarks.placement.instances import instances as instances_of
from benchmarks.placement.run import key_of, run_all, warm_up
from benchmarks.placement.tables import csv_text, markdown, read_rows
from pipette_opt.base.errors import InputError
from pipette_opt.base.files import is_stdout, write_atomically
from pipette_opt.base.types import P2PMode
from pipette_opt.base.units import counted
from pipette_opt.cli import options as opt
from pipette_opt.cli.interrupt import STOPPED_EARLY, stop_on_interrupt
from pipette_opt.cli.output import check_place, check_stdout, say, show_json
from pipette_opt.cli.program import run_command


def placement(
    set_: Annotated[
        str,
        typer.Option(
            "--set",
            help="quick (a minute), full (an hour on two cores), reach (days).",
            rich_help_panel=INSTANCES,
        ),
    ] = "quick",
    instances: Annotated[
        str | None, typer.Option(help="Only these clusters, e.g. tree,measured-17,joint.", rich_help_panel=INSTANCES)
    ] = None,
    sizes: Annotated[
        str | None, typer.Option(help="Only these numbers of hosts, e.g. 16,32.", rich_help_panel=INSTANCES)
    ] = None,
    weights: Annotated[
        str | None, typer.Option(help="Only these weights, e.g. balanced,llama-3-70b.", rich_help_panel=INSTANCES)
    ] = None,
    p2p: Annotated[
        str | None, typer.Option(help="Only this send mode: blocking or async.", rich_help_panel=INSTANCES)
    ] = None,
    seeds: Annotated[
        int | None, typer.Option(help="Number of seeds of each instance.", rich_help_panel=INSTANCES)
    ] = None,
    seconds: Annotated[
        float | None, typer.Option(help="Time limit of each instance, in place of its own.", rich_help_panel=opt.RUN)
    ] = None,
    stop_at_goal: Annotated[
        bool,
        typer.Option(
            "--stop-at-goal",
            help="End each instance at its target gap; baselines get equal time.",
            rich_help_panel=opt.RUN,
        ),
    ] = False,
    workers: opt.Workers = None,
    csv: Annotated[Path | None, typer.Option(help="CSV file for all runs.", rich_help_panel=opt.RUN)] = None,
    out: Annotated[
        Path | None, typer.Option("-o", "--out", help="File for the table.", rich_help_panel=opt.RUN)
    ] = None,
    resume: Annotated[
        bool,
        typer.Option("--resume", help="Keep the runs in the --csv file.", rich_help_panel=opt.RUN),
    ] = False,
    json: opt.Json = False,
) -> None:
    """
    Run the solver on named placement instances, and the baselines with an equal time limit.

    Example: [bold]python -m benchmarks.placement --set quick --csv placement.csv[/]
    """
    check_place(csv, out)
    check_stdout(json, csv, out)
    opt.one_of("--set", set_, ("quick", "full", "reach"))
    if p2p is not None:
        opt.one_of("--p2p", p2p, ("blocking", "async"))
    for option, value in (("--seeds", seeds), ("--seconds", seconds), ("--workers", workers)):
        if value is not None and not value > 0:
            raise InputError(option, f"must be > 0, got {value}.")
    if resume and csv is None:
        raise InputError("--resume", "needs --csv, the file with the runs to keep.")
    numbers = _names("--sizes", sizes, tuple(str(size) for size in SHAPES))
    chosen = instances_of(
        cast(SetName, set_),
        clusters=_names("--instances", instances, (*CLUSTERS, "joint")),
        sizes=None if numbers is None else [int(number) for number in numbers],
        weights=_names("--weights", weights, WEIGHTS),
        modes=None if p2p is None else [cast(P2PMode, p2p)],
        seeds=seeds,
        seconds=seconds,
        stop_at_goal=stop_at_goal,
    )
    if not chosen:
        raise InputError("--instances", f"the set {set_!r} has none with this size, these weights and sends.")
    threads = opt.threads(workers)
    known = read_rows(csv) if resume and csv is not None and csv.exists() else []
    warm_up_s = warm_up(threads)
    minutes = round(2 * sum(instance.limit_s for instance in chosen) / 60)
    say(f"{counted(len(chosen), 'instance')}, at most {counted(minutes, 'minute')}")
    now = {key_of(instance) for instance in chosen}
    rows = [row for row in known if row.key() not in now]
    waiting = {row.key(): row for row in known if row.key() in now}  # not lost if the run ends before their turn
    stop, done = threading.Event(), 0
    with stop_on_interrupt(stop, lambda: bool(rows)):
        for row in run_all(chosen, workers=threads, known=known, say=say, stop=stop):
            waiting.pop(row.key(), None)
            rows.append(row)
            done += 1
            if csv is not None:
                write_atomically(csv, csv_text([*rows, *waiting.values()]))
    if stop.is_set():
        more = "" if csv is None else "; --resume goes on"
        say(f"stopped early: {done} of {counted(len(chosen), 'instance')} done{more}")
        if not rows:
            raise KeyboardInterrupt
    if not rows:
        raise InputError("--instances", "nothing was run; the data of the measured clusters is not here.")
    table = markdown(rows, warm_up_s, threads)
    if out is not None and not is_stdout(out):
        write_atomically(out, table)
    if json:
        show_json([asdict(row) for row in rows])
    else:
        typer.echo(table)
    if stop.is_set():
        raise typer.Exit(STOPPED_EARLY)


def _names(option: str, text: str | None, known: tuple[str, ...]) -> list[str] | None:
    """Return the names in a list with commas; raises ``InputError`` for an unknown name."""
    if text is None:
        return None
    names = [name.strip() for name in text.split(",") if name.strip()]
    if not names:
        raise InputError(option, f"must list at least one of {', '.join(known)}.")
    for name in names:
        opt.one_of(option, name, known)
    return names


if __name__ == "__main__":
    run_command(placement)

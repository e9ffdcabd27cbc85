"""``pipette-opt calibrate``."""

from pathlib import Path
from typing import Annotated

import typer

from pipette_opt.cli import options as opt


def calibrate(
    runs: Annotated[Path, typer.Argument(help="Measured runs, runs.csv; its format is in data/README.md.")],
    out: Annotated[Path, typer.Option("--out", "-o", help="Where the stack goes.")] = Path("stack.yaml"),
    base: Annotated[str, typer.Option(help="Stack to start from: a shipped name or a file.")] = "megatron-core",
    cluster: Annotated[
        Path | None, typer.Option(help="The hosts of the runs, if their links were measured.", rich_help_panel=opt.JOB)
    ] = None,
    name: Annotated[str | None, typer.Option(help="Name of the stack; the file's by default.")] = None,
    max_runs: Annotated[int, typer.Option(help="Of more runs, use a sample of this size.", min=3)] = 400,
    validate: Annotated[bool, typer.Option(help="Cross-validate, which takes less time than the fit.")] = True,
    seed: opt.Seed = 0,
    json: opt.Json = False,
) -> None:
    """
    Fit the constants of a software stack to your own runs, and say how far they can be trusted.

    One run is useful, fifty are good. All runs share every constant; solve, estimate, candidates, benchmark and
    backtest take the file with --calibration. Rows that cannot be used, and copies of others, are left out and named
    with the reason; without any left nothing is fitted. Ctrl-C while cross-validating writes the fit, with exit code 4;
    before, nothing is written.

    Example: [bold]pipette-opt calibrate runs.csv -o stack.yaml[/]
    """
    from dataclasses import replace

    from pipette_opt.base.errors import InputError
    from pipette_opt.base.files import check_targets, is_stdout
    from pipette_opt.base.units import counted
    from pipette_opt.calibrate.fit import calibrate_runs
    from pipette_opt.calibrate.left_out import left_out_entries, left_out_lines, unread
    from pipette_opt.calibrate.memory import fit_memory, memory_notes
    from pipette_opt.calibrate.tables import errors_entry, fit_table
    from pipette_opt.cli.interrupt import STOPPED_EARLY
    from pipette_opt.cli.output import (
        check_place,
        check_stdout,
        say,
        say_written,
        show,
        show_json,
    )
    from pipette_opt.memory.framework import numbers_of
    from pipette_opt.read.cluster import read_cluster
    from pipette_opt.read.runs import read_rows, unused_columns
    from pipette_opt.read.stack import read_stack, write_stack

    if seed < 0:
        raise InputError("--seed", f"must be >= 0, got {seed}.")
    check_place(out)
    check_stdout(json, out)
    name = name or (runs.stem if is_stdout(out) else out.stem)
    measured, bad = read_rows(runs)
    start, total, left_out = read_stack(base), len(measured) + len(bad), unread(bad)
    hosts = read_cluster(cluster) if cluster else None
    check_targets(out)
    aside = [note] if (note := unused_columns(measured)) else []
    if not measured:
        raise InputError(str(runs), "\n- ".join(["has no row that can be used.", *left_out_lines(left_out, total)]))
    memory, untold = fit_memory(measured, start)
    try:
        fit = calibrate_runs(
            measured,
            start if untold else replace(start, memory=numbers_of(memory)),
            hosts,
            max_runs=max_runs,
            seed=seed,
            validate=validate,
        )
    except InputError as error:
        if error.where != "calibrate" or untold:
            raise InputError(error.where, "\n- ".join([error.problem, *left_out_lines(left_out, total)])) from None
        source = f"memory fitted to {runs.name}, times as {start.name}"
        write_stack(replace(start, name=name, source=source, memory=numbers_of(memory)), out)
        notes = [*aside, f"times: {error.problem}", f"times stay those of {start.name}", *memory_notes(memory)]
        if json:
            show_json({"stack": str(out), "errors": {}, "notes": notes, "left_out": left_out_entries(left_out)})
        else:
            for note in (*left_out_lines(left_out, total), *notes):
                say(note)
            say_written(out)
        return
    source = f"fitted to {counted(len(fit.runs), 'run')} of {runs.name}"
    left_out += fit.left_out
    known = start.memory if untold else numbers_of(memory)
    stack = replace(fit.stack, name=name, source=source, fitted=fit.record(), memory=known)
    write_stack(stack, out)
    if json:
        errors = {"fit": fit.errors, "held_out": fit.held_out, "larger": fit.larger}
        entries = {key: errors_entry(one) for key, one in errors.items() if one is not None}
        show_json(
            {
                "stack": str(out),
                "errors": entries,
                "notes": [*aside, *fit.notes, *memory_notes(memory, untold)],
                "left_out": left_out_entries(left_out),
            }
        )
    else:
        show(fit_table(fit), beside=out)
        seen = ", ".join(f"{name} {low}-{high}" for name, (low, high) in fit.ranges.items())
        say(f"seen: {seen}; beyond this the stack extrapolates")
        for note in (*left_out_lines(left_out, total), *aside, *fit.notes, *memory_notes(memory, untold)):
            say(f"- {note}")
        say_written(out)
    if fit.interrupted:
        raise typer.Exit(STOPPED_EARLY)

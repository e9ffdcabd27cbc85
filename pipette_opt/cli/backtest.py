"""``pipette-opt backtest``."""

from pathlib import Path
from typing import Annotated

import typer

from pipette_opt.base.risk import USUAL_RISK
from pipette_opt.cli import options as opt


def backtest(
    runs: Annotated[Path, typer.Argument(help="File of measured runs, runs.csv; data/README.md has its format.")],
    software: opt.Software = None,
    out: Annotated[Path | None, typer.Option("--out", "-o", help="CSV file to write the predictions to.")] = None,
    plot: Annotated[
        Path | None, typer.Option(help="SVG file to write a scatter plot to; by default next to the predictions.")
    ] = None,
    cluster: Annotated[
        Path | None,
        typer.Option(
            help="Cluster file of the hosts that the runs used, if their links were measured.", rich_help_panel=opt.JOB
        ),
    ] = None,
    max_oom_risk: opt.MaxOomRisk = USUAL_RISK,
    anchor: Annotated[
        str | None,
        typer.Option(
            help="A row whose time is known (0 is the first below the header), or each: every run of a job in turn; "
            "errors and bands are then those of the other runs.",
            metavar="ROW|each",
        ),
    ] = None,
    leave_out_source: Annotated[
        bool, typer.Option("--leave-out-source", help="Use nothing that was learned from the sources of the table.")
    ] = False,
    json: opt.Json = False,
) -> None:
    """
    Compare predictions with measured runs, and print the errors.

    The first table has a row per group of runs: mean and p90 error, median ratio of predicted to measured time, rank
    correlation, regret and pick. Regret: how much slower than the best measured configuration is the one predicted
    fastest. Pick: the same among configurations predicted to fit in memory, which may have run out of memory. The
    second table compares these predictions with four other closed-form models. Rows that cannot be predicted are listed
    with the reason.

    Memory columns of the file: predicted_peak_mem_gib is the peak that a log should show; upper_peak_mem_gib is
    exceeded with probability --max-oom-risk; oom_probability is the probability that the job runs out of memory.

    Columns low_s and high_s: nine of ten runs like this one take a time between them.

    Example: [bold]pipette-opt backtest runs.csv --software stack.yaml -o predictions.csv[/]
    """
    from dataclasses import asdict
    from functools import partial

    from pipette_opt.base.errors import InputError
    from pipette_opt.base.files import is_stdout, write_atomically
    from pipette_opt.base.units import whole_number
    from pipette_opt.calibrate.anchored import anchored
    from pipette_opt.calibrate.files import predictions_csv, scatter_svg
    from pipette_opt.calibrate.left_out import LeftOut, left_out_entries, left_out_lines, unread
    from pipette_opt.calibrate.memory import memory_columns
    from pipette_opt.calibrate.metrics import slow_note
    from pipette_opt.calibrate.predict import predict_runs
    from pipette_opt.calibrate.tables import form_rows, form_table, group_rows, group_table
    from pipette_opt.cli.output import (
        check_place,
        check_stdout,
        say,
        say_written,
        show,
        show_json,
    )
    from pipette_opt.read.cluster import read_cluster
    from pipette_opt.read.runs import read_rows, unused_columns
    from pipette_opt.read.stack import read_stack

    row = None if anchor in (None, "each") else whole_number(anchor or "")
    if anchor not in (None, "each") and row is None:
        raise InputError("--anchor", f"must be the number of a row or each, got {anchor!r}.")
    if not 0 < max_oom_risk < 1:
        raise InputError("--max-oom-risk", f"must be in (0, 1), got {max_oom_risk}.")
    if out is not None and not is_stdout(out):
        plot = plot or out.with_suffix(".svg")
    check_place(out, plot)
    check_stdout(json, out, plot)
    stack = read_stack(software) if software else read_stack()
    measured, bad = read_rows(runs)
    hosts = read_cluster(cluster) if cluster else None
    memory = partial(memory_columns, memory_constants=stack.memory, max_oom_risk=max_oom_risk)
    predictions = predict_runs(measured, stack, hosts, memory=memory)
    predictions, known = anchored(
        predictions,
        stack,
        hosts,
        anchor="each" if anchor == "each" else row,
        leave_out_source=leave_out_source,
    )
    left_out = unread(bad)
    untimed = [LeftOut(prediction.run.row, prediction.reason) for prediction in predictions if prediction.reason]
    total = len(measured) + len(bad)
    lines = [*left_out_lines(left_out, total), *left_out_lines(untimed, total, "without a predicted time")]
    if all(prediction.reason and not prediction.memory for prediction in predictions):
        raise InputError(str(runs), "\n- ".join(["has no row that can be predicted; the reasons are:", *lines]))
    if out is not None:
        write_atomically(out, predictions_csv(predictions, left_out))
    if plot is not None:
        write_atomically(plot, scatter_svg(predictions, f"{runs.name}, {stack.name}"))
    slow = slow_note([(prediction.iter_time_s, prediction.measured_s) for prediction in predictions])
    notes = [note for note in (unused_columns(measured), slow, known.line() if known else "") if note]
    if json:
        show_json(
            {
                "groups": group_rows(predictions, max_oom_risk),
                "forms": form_rows(predictions),
                "rows": total,
                "skipped": left_out_entries([*left_out, *untimed]),
                "known": None if known is None else asdict(known),
                "notes": notes,
            }
        )
        return
    stdout = next((path for path in (out, plot) if is_stdout(path)), None)
    show(group_table(predictions, max_oom_risk), form_table(predictions), beside=stdout)
    for line in (*lines, *notes):
        say(line)
    for path in (out, plot):
        if path is not None:
            say_written(path)

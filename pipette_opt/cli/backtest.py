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
    cluster: Annotated[
        Path | None,
        typer.Option(
            help="Cluster file of the hosts that the runs used, if their links were measured.", rich_help_panel=opt.JOB
        ),
    ] = None,
    max_oom_risk: opt.MaxOomRisk = USUAL_RISK,
    json: opt.Json = False,
) -> None:
    """
    Compare predictions with measured runs, and print the errors.

    The table has a row per group of runs: mean and p90 error, median ratio of predicted to measured time, rank
    correlation, regret and pick. Regret: how much slower than the best measured configuration is the one predicted
    fastest. Pick: the same among configurations predicted to fit in memory, which may have run out of memory. Rows that
    cannot be predicted are listed with the reason.

    Memory columns of the file: predicted_peak_mem_gib is the peak that a log should show; upper_peak_mem_gib is
    exceeded with probability --max-oom-risk; oom_probability is the probability that the job runs out of memory.

    Columns low_s and high_s: nine of ten runs like this one take a time between them.

    Example: [bold]pipette-opt backtest runs.csv --software stack.yaml -o predictions.csv[/]
    """
    from functools import partial

    from pipette_opt.base.errors import InputError
    from pipette_opt.base.files import is_stdout, write_atomically
    from pipette_opt.calibrate.bands import with_bands
    from pipette_opt.calibrate.files import predictions_csv
    from pipette_opt.calibrate.left_out import LeftOut, left_out_entries, left_out_lines, unread
    from pipette_opt.calibrate.memory import memory_columns
    from pipette_opt.calibrate.predict import predict_runs
    from pipette_opt.calibrate.tables import group_rows, group_table
    from pipette_opt.cli.output import (
        check_outputs,
        say,
        say_written,
        show,
        show_json,
    )
    from pipette_opt.read.cluster import read_cluster
    from pipette_opt.read.runs import read_rows, unused_columns
    from pipette_opt.read.stack import read_stack
    from pipette_opt.report.cells import as_rich

    if not 0 < max_oom_risk < 1:
        raise InputError("--max-oom-risk", f"must be in (0, 1), got {max_oom_risk}.")
    check_outputs(json, out)
    stack = read_stack(software) if software else read_stack()
    measured, bad = read_rows(runs)
    hosts = read_cluster(cluster) if cluster else None
    memory = partial(memory_columns, memory_constants=stack.memory, max_oom_risk=max_oom_risk)
    predictions = with_bands(predict_runs(measured, stack, hosts, memory=memory), stack, hosts)
    left_out = unread(bad)
    untimed = [LeftOut(prediction.run.row, prediction.reason) for prediction in predictions if prediction.reason]
    total = len(measured) + len(bad)
    lines = [*left_out_lines(left_out, total), *left_out_lines(untimed, total, "without a predicted time")]
    if all(prediction.reason and not prediction.memory for prediction in predictions):
        raise InputError(str(runs), "\n- ".join(["has no row that can be predicted; the reasons are:", *lines]))
    if out is not None:
        write_atomically(out, predictions_csv(predictions, left_out))
    unused = unused_columns(measured)
    notes = [unused] if unused else []
    if json:
        show_json(
            {
                "groups": group_rows(predictions, max_oom_risk),
                "rows": total,
                "skipped": left_out_entries([*left_out, *untimed]),
                "notes": notes,
            }
        )
        return
    show(as_rich(group_table(predictions, max_oom_risk)), beside=out if is_stdout(out) else None)
    for line in (*lines, *notes):
        say(line)
    if out is not None:
        say_written(out)

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
    from pipette_opt.base.files import is_stdout
    from pipette_opt.calibrate.left_out import left_out_entries
    from pipette_opt.calibrate.tables import group_rows, group_table
    from pipette_opt.cli.output import check_outputs, say, say_written, show, show_json
    from pipette_opt.library.arguments import for_commands
    from pipette_opt.library.backtest import backtest as library_backtest
    from pipette_opt.report.cells import as_rich

    check_outputs(json, out)
    found = for_commands(library_backtest)(runs, software=software, out=out, cluster=cluster, max_oom_risk=max_oom_risk)
    if json:
        show_json(
            {
                "groups": group_rows(found.predictions, max_oom_risk),
                "rows": found.num_rows,
                "skipped": left_out_entries([*found.left_out, *found.untimed]),
                "notes": list(found.notes),
            }
        )
        return
    show(as_rich(group_table(found.predictions, max_oom_risk)), beside=out if is_stdout(out) else None)
    for line in found.lines:
        say(line)
    if out is not None:
        say_written(out)

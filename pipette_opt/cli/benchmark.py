"""``pipette-opt benchmark``."""

import time
from pathlib import Path
from typing import Annotated

import typer

from pipette_opt.cli import options as opt
from pipette_opt.cli.interrupt import exit_if_stopped, watched
from pipette_opt.options.questions import NOT_COMPARED

ONLY_IN_JOB_FILES = (
    *("gpu_price", "attention_kernel", "fp8_recipe"),
    *("moe_token_dispatcher", "overlap_moe_expert_parallel_comm", "cuda_graph"),
)
"""Details of a job that ``benchmark solve`` reads from job files only, and prices, which no method minimises."""

app = typer.Typer(help="Compare the solver with baselines.", no_args_is_help=True)


@app.callback()
def _benchmark() -> None:
    """Compare the solver with baselines."""


@app.command("solve")
@opt.spread
def solve(
    job_options: Annotated[opt.JobOptions, opt.Without(NOT_COMPARED), opt.OnlyInJobFile(ONLY_IN_JOB_FILES)],
    space_options: Annotated[opt.SpaceOptions, opt.Without(NOT_COMPARED)],
    time_limit: opt.TimeLimit = 30.0,
    *,
    limits: opt.LimitOptions,
    csv: Annotated[
        Path | None, typer.Option(help="Also write the table to this CSV file.", rich_help_panel=opt.RUN)
    ] = None,
    json: opt.Json = False,
) -> None:
    """
    Compare the solver with Pipette's annealing, AMP, Varuna and listed hosts on one job, with equal seconds.

    All methods choose among the same splits of the layers: the usual ones, those of AMP's dynamic programme, and those
    of the CP-SAT model over all configurations. The simulator times every plan, and the fastest is the best.

    Ctrl-C prints the methods that are done by then, with exit code 4.

    Example: [bold]pipette-opt benchmark solve --example lab-16x8 --time-limit 30[/]
    """
    begun = time.perf_counter()
    from dataclasses import asdict

    from pipette_opt.baselines.compare import METHODS
    from pipette_opt.baselines.table import benchmark_table
    from pipette_opt.cli.output import check_place, say, show, show_json, write_csv
    from pipette_opt.library.arguments import for_commands
    from pipette_opt.library.benchmark import compare

    check_place(csv)
    with watched(quiet=json, begun=begun) as watcher:
        given = opt.given_of(job_options, space_options, limits)
        rows = for_commands(compare)(**given, time_limit_s=time_limit, on_progress=watcher)
    if csv is not None and rows:
        write_csv(csv, [asdict(row) for row in rows])
    if json:
        show_json([asdict(row) for row in rows])
    else:
        show(benchmark_table(rows))
        if csv is not None and rows:
            say(f"written to {csv}")
    exit_if_stopped(watcher, f"{len(rows)} of {len(METHODS)} methods are done")

"""``pipette-opt benchmark``."""

import time
from pathlib import Path
from typing import Annotated

import typer

from pipette_opt.base.risk import USUAL_RISK
from pipette_opt.cli import options as opt

WITHOUT_EFFECT = ("measured_runs", "host_order", "tp_comm_overlap", "micro_batches", "expert_loads")
"""Options of a job that ``benchmark solve`` does not offer: no baseline knows them, or the comparison fixes them."""

FIXED = (
    "max_gpus",
    "virtual_pipeline",
    "context_a2a",
    "data_parallel_sharding_strategy",
    "num_distributed_optimizer_instances",
    "recompute",
    "offload",
    "context_parallel",
    "expert_parallel",
    "expert_tensor_parallel",
    "overlap_grad_reduce",
    "overlap_param_gather",
    "ddp_bucket_size",
    "overlap_p2p_communication",
)
"""Options of the search space that ``benchmark solve`` does not offer, because the baselines cannot search them."""

app = typer.Typer(help="Compare the solver with baselines.", no_args_is_help=True)


@app.callback()
def _benchmark() -> None:
    """Compare the solver with baselines."""


@app.command("solve")
@opt.spread
def solve(
    job_options: Annotated[opt.JobOptions, opt.Without(WITHOUT_EFFECT)],
    space_options: Annotated[opt.SpaceOptions, opt.Without(FIXED)],
    max_oom_risk: opt.MaxOomRisk = USUAL_RISK,
    time_limit: opt.TimeLimit = 30.0,
    workers: opt.Workers = None,
    seed: opt.Seed = 0,
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
    from dataclasses import asdict, replace

    from pipette_opt.baselines.compare import METHODS, compare_methods, prepare_all
    from pipette_opt.baselines.table import benchmark_table
    from pipette_opt.cli.interrupt import STOPPED_EARLY, stop_on_interrupt
    from pipette_opt.cli.output import check_place, live_progress, say, show, show_json, write_csv
    from pipette_opt.job.space import search_space
    from pipette_opt.optimize import OptimizeParams
    from pipette_opt.plans.watcher import Watcher

    check_place(csv)
    job = opt.read_job(job_options)
    space = search_space(
        replace(job, tp_comm_overlap=False),
        replace(space_options, virtual_pipeline=(1,), context_parallel=(1,), overlap_grad_reduce=False),
    )
    params = opt.checked(
        OptimizeParams,
        time_limit_s=time_limit,
        workers=opt.threads(workers),
        seed=seed,
        max_oom_risk=max_oom_risk,
    )
    watcher = Watcher(begun=begun)
    with live_progress(watcher, quiet=json):
        prepared = prepare_all(job.instance, space, params, watcher)
        with stop_on_interrupt(watcher.stop):
            rows = compare_methods(prepared, params, watcher)
    if csv is not None and rows:
        write_csv(csv, [asdict(row) for row in rows])
    if json:
        show_json([asdict(row) for row in rows])
    else:
        show(benchmark_table(rows))
        if csv is not None and rows:
            say(f"written to {csv}")
    if watcher.stop.is_set():
        say(f"stopped early: {len(rows)} of {len(METHODS)} methods are done")
        raise typer.Exit(STOPPED_EARLY)

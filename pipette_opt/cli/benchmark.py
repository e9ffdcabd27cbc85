"""``pipette-opt benchmark``."""

from pathlib import Path
from typing import Annotated

import typer

from pipette_opt.cli import options as opt

app = typer.Typer(help="The solver beside the baselines.", no_args_is_help=True)


@app.callback()
def _benchmark() -> None:
    """The solver beside the baselines."""


@app.command("solve")
def solve(
    cluster: opt.Cluster = None,
    model: opt.Model = None,
    global_batch_size: opt.GlobalBatchSize = None,
    seq_length: opt.SeqLength = None,
    example: opt.Example = None,
    calibration: opt.Calibration = None,
    num_gpus: opt.NumGpus = None,
    exclude_hosts: opt.ExcludeHosts = None,
    launcher: opt.Launcher = "slurm",
    p2p: opt.P2P = "blocking",
    tensor_parallel: opt.TensorParallel = None,
    pipeline_parallel: opt.PipelineParallel = None,
    data_parallel: opt.DataParallel = None,
    micro_batch_size: opt.MicroBatchSize = None,
    max_oom_risk: opt.MaxOomRisk = 0.01,
    time_limit: opt.TimeLimit = 30.0,
    workers: opt.Workers = None,
    seed: opt.Seed = 0,
    csv: Annotated[Path | None, typer.Option(help="Also write the table here.", rich_help_panel=opt.RUN)] = None,
    json: opt.Json = False,
) -> None:
    """
    Solver, annealing and the identity order on one instance, with equal seconds.

    Example: [bold]pipette-opt benchmark solve --example lab-16x8 --time-limit 30[/]
    """
    from dataclasses import asdict

    from pipette_opt.cli.output import live_progress, say, show, show_json
    from pipette_opt.compare import compare_methods
    from pipette_opt.optimize import OptimizeParams, Watcher, prepare
    from pipette_opt.report.tables import benchmark_table

    job = opt.read_job(
        cluster=cluster,
        model=model,
        global_batch_size=global_batch_size,
        seq_length=seq_length,
        example=example,
        calibration=calibration,
        num_gpus=num_gpus,
        exclude_hosts=exclude_hosts,
        launcher=launcher,
        p2p=p2p,
    )
    space = opt.search_space(
        job,
        tensor_parallel=tensor_parallel,
        pipeline_parallel=pipeline_parallel,
        data_parallel=data_parallel,
        virtual_pipeline="1",
        micro_batch_size=micro_batch_size,
    )
    params = opt.checked(
        OptimizeParams,
        time_limit_s=time_limit,
        workers=opt.cores() if workers is None else workers,
        seed=seed,
        max_oom_risk=max_oom_risk,
    )
    watcher = Watcher()
    with live_progress(watcher, quiet=json):
        rows = compare_methods(prepare(job.instance, space, params, watcher), params)
    if csv is not None:
        _write_csv(csv, [asdict(row) for row in rows])
    if json:
        show_json([asdict(row) for row in rows])
    else:
        show(benchmark_table(rows))
        if csv is not None:
            say(f"written to {csv}")


def _write_csv(path: Path, rows: list[dict[str, object]]) -> None:
    import csv
    import io

    from pipette_opt.files import write_atomically

    text = io.StringIO()
    writer = csv.DictWriter(text, fieldnames=list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    write_atomically(path, text.getvalue())

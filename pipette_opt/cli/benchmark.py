"""``pipette-opt benchmark``."""

import time
from pathlib import Path
from typing import Annotated

import typer

from pipette_opt.base.errors import InputError
from pipette_opt.cli import options as opt
from pipette_opt.cli.moved import CommandGroup

INSTANCES = "The instances"

FIXED = (
    "virtual_pipeline",
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
"""Options of the search space that ``benchmark solve`` lacks: what the baselines know is compared."""

app = typer.Typer(cls=CommandGroup, help="The solver beside the baselines.", no_args_is_help=True)


@app.callback()
def _benchmark() -> None:
    """The solver beside the baselines."""


@app.command("solve")
@opt.spread
def solve(
    job_options: opt.JobOptions,
    space_options: Annotated[opt.SpaceOptions, opt.Without(FIXED)],
    max_oom_risk: opt.MaxOomRisk = 0.01,
    time_limit: opt.TimeLimit = 30.0,
    workers: opt.Workers = None,
    seed: opt.Seed = 0,
    csv: Annotated[Path | None, typer.Option(help="Also write the table here.", rich_help_panel=opt.RUN)] = None,
    json: opt.Json = False,
) -> None:
    """
    Solver, annealing and the identity order on one instance, with equal seconds.

    All choose among the usual splits of the layers, those of AMP's programme and those of the joint model.

    Ctrl-C gives what is done by then, with exit code 4.

    Example: [bold]pipette-opt benchmark solve --example lab-16x8 --time-limit 30[/]
    """
    begun = time.perf_counter()
    from dataclasses import asdict, replace

    from pipette_opt.cli.interrupt import STOPPED_EARLY, stop_on_interrupt
    from pipette_opt.cli.output import check_place, live_progress, say, show, show_json, write_csv
    from pipette_opt.lab.compare import METHODS, compare_methods, prepare_all
    from pipette_opt.optimize import OptimizeParams
    from pipette_opt.plans.watcher import Watcher
    from pipette_opt.report.lists import benchmark_table

    check_place(csv)
    job = opt.read_job(job_options)
    space = opt.search_space(
        replace(job, tp_comm_overlap=False),
        replace(space_options, virtual_pipeline="1", context_parallel="1", overlap_grad_reduce=False),
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
            rows = compare_methods(prepared, params, watcher.stop)
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


@app.command("annealing")
def annealing(
    seconds: Annotated[float, typer.Option(help="For each measurement.", rich_help_panel=opt.RUN)] = 0.3,
    json: opt.Json = False,
) -> None:
    """
    Moves that the annealers make in a second on one core.

    Example: [bold]pipette-opt benchmark annealing --seconds 1[/]
    """
    from dataclasses import asdict

    from rich.table import Table

    from pipette_opt.cli.output import show, show_json
    from pipette_opt.lab.placement_bench.speed import speeds
    from pipette_opt.lab.placement_bench.tables import environment

    if not seconds > 0:
        raise InputError("--seconds", f"must be > 0, got {seconds}.")
    rows = speeds(seconds)
    if json:
        show_json([asdict(row) for row in rows])
        return
    table = Table(caption=environment(), caption_justify="left")
    for name in ("cluster", "shape", "sends", "tuned", "general kernel", "Pipette's"):
        table.add_column(name, justify="left" if name in ("cluster", "shape", "sends") else "right")
    for row in rows:
        figures = (row.tuned_per_s, row.general_per_s, row.pipette_per_s)
        table.add_row(row.cluster, row.shape, row.p2p, *(f"{figure / 1e6:.2f} M/s" for figure in figures))
    show(table)


@app.command("placement")
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
        str | None, typer.Option(help="Only these, e.g. balanced,llama-3-70b.", rich_help_panel=INSTANCES)
    ] = None,
    p2p: Annotated[str | None, typer.Option(help="Only blocking, or only async.", rich_help_panel=INSTANCES)] = None,
    seeds: Annotated[int | None, typer.Option(help="So many of each.", rich_help_panel=INSTANCES)] = None,
    seconds: Annotated[
        float | None, typer.Option(help="For each, in place of its own.", rich_help_panel=opt.RUN)
    ] = None,
    stop_at_goal: Annotated[
        bool,
        typer.Option(
            "--stop-at-goal",
            help="End each as soon as its goal is met; the baselines have as many seconds.",
            rich_help_panel=opt.RUN,
        ),
    ] = False,
    workers: opt.Workers = None,
    csv: Annotated[Path | None, typer.Option(help="Also write every run here.", rich_help_panel=opt.RUN)] = None,
    out: Annotated[
        Path | None, typer.Option("-o", "--out", help="Write the table here.", rich_help_panel=opt.RUN)
    ] = None,
    resume: Annotated[
        bool,
        typer.Option(
            "--resume", help="Keep the runs that --csv has, others of the set as well.", rich_help_panel=opt.RUN
        ),
    ] = False,
    json: opt.Json = False,
) -> None:
    """
    Named placement instances: what the solver finds and proves, and the baselines in the same seconds.

    Example: [bold]pipette-opt benchmark placement --set quick --csv placement.csv[/]
    """
    import threading
    from dataclasses import asdict
    from typing import cast

    from pipette_opt.base.files import is_stdout, write_atomically
    from pipette_opt.base.types import P2PMode
    from pipette_opt.base.units import counted
    from pipette_opt.cli.interrupt import STOPPED_EARLY, stop_on_interrupt
    from pipette_opt.cli.output import check_place, check_stdout, say, show_json
    from pipette_opt.lab.placement_bench.clusters import CLUSTERS
    from pipette_opt.lab.placement_bench.instances import SHAPES, WEIGHTS, SetName
    from pipette_opt.lab.placement_bench.instances import instances as instances_of
    from pipette_opt.lab.placement_bench.run import key_of, run_all, warm_up
    from pipette_opt.lab.placement_bench.tables import csv_text, markdown, read_rows

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
    minutes = round(2 * sum(one.limit_s for one in chosen) / 60)
    say(f"{counted(len(chosen), 'instance')}, at most {counted(minutes, 'minute')}")
    now = {key_of(one) for one in chosen}
    rows = [row for row in known if row.key() not in now]
    waiting = {row.key(): row for row in known if row.key() in now}  # not lost if the run ends before their turn
    stop, done = threading.Event(), 0
    with stop_on_interrupt(stop):
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
    """The names of a list; each must be known."""
    if text is None:
        return None
    names = [name.strip() for name in text.split(",") if name.strip()]
    if not names:
        raise InputError(option, f"must list at least one of {', '.join(known)}.")
    for name in names:
        opt.one_of(option, name, known)
    return names

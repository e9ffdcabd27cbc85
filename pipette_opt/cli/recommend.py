"""``pipette-opt recommend``."""

import re
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated

import typer

from pipette_opt.base.errors import InputError
from pipette_opt.cli import options as opt
from pipette_opt.cli.interrupt import STOPPED_EARLY, stop_on_interrupt

if TYPE_CHECKING:
    from pipette_opt.replan.recommend import Place

SECONDS = {"h": 3600.0, "d": 86400.0, "w": 604800.0}
"""Seconds of a unit of time."""

ROW_S = 5.0
"""Seconds of each number and kind of hosts, unless a time limit is given. Chosen."""


@opt.spread
def recommend(
    job_options: Annotated[opt.JobOptions, opt.Without(("num_gpus", "gpu_price"))],
    space_options: opt.SpaceOptions,
    hosts: Annotated[
        str | None,
        typer.Option(help="Numbers of hosts, e.g. 4,8,16; all there are, half, a quarter, ... by default."),
    ] = None,
    tokens: Annotated[float | None, typer.Option(help="Of the whole run, e.g. 1e12.")] = None,
    deadline: Annotated[str | None, typer.Option(help="Of the whole run: 36h, 30d or 6w.")] = None,
    gpu_price: opt.GpuPrices = None,
    max_oom_risk: opt.MaxOomRisk = 0.01,
    time_limit: Annotated[
        float | None,
        typer.Option(help="Seconds of all rows; 5 for each by default.", min=0.1, rich_help_panel=opt.RUN),
    ] = None,
    workers: opt.Workers = None,
    seed: opt.Seed = 0,
    json: opt.Json = False,
) -> None:
    """
    Which hosts to take: the fewest GPUs for a deadline, the cheapest, the fastest; over numbers and kinds of hosts.

    The hosts are those of a cluster, of which the best so many are taken, or equal ones: --nodes says how many at most,
    and --gpu which kinds, several separated by commas.

    Example: [bold]pipette-opt recommend --nodes 16 --gpu h100,a100 --model llama-3-8b --global-batch-size 512
    --seq-length 8192 --tokens 1e12 --deadline 30d --gpu-price h100=2.9 --gpu-price a100=1.8[/]
    """
    begun = time.perf_counter()
    from dataclasses import asdict

    from pipette_opt.base.units import counted
    from pipette_opt.cli.output import live_progress, say, show, show_json
    from pipette_opt.optimize import OptimizeParams
    from pipette_opt.plans.watcher import Watcher
    from pipette_opt.replan.recommend import choices, in_words, offers
    from pipette_opt.report.questions import offers_table

    if tokens is not None and not 0 < tokens < 1e20:
        raise InputError("--tokens", f"must be > 0 and below 1e20, got {tokens:g}.")
    if deadline is not None and tokens is None:
        raise InputError("--deadline", "needs --tokens, the length of the run.")
    deadline_s = None if deadline is None else _seconds(deadline)
    places, job = _places(job_options, hosts, gpu_price or [])
    space = opt.search_space(job, space_options)
    params = opt.checked(
        OptimizeParams,
        time_limit_s=time_limit or ROW_S * len(places),
        workers=opt.threads(workers),
        seed=seed,
        max_oom_risk=max_oom_risk,
    )
    watcher = Watcher(begun=begun)
    with stop_on_interrupt(watcher.stop), live_progress(watcher, quiet=json):
        found = offers(places, space, tokens, params, watcher)
    if json:
        chosen = {word: found.index(one) for word, one in choices(found, deadline_s).items()}
        show_json({"offers": [asdict(one) for one in found], "choices": chosen})
    else:
        show(offers_table(found), "", *(f"- {line}" for line in in_words(found, deadline_s)))
    if watcher.stop.is_set():
        say(f"stopped early: {len(found)} of {counted(len(places), 'row')} are there")
        raise typer.Exit(STOPPED_EARLY)


def _seconds(text: str) -> float:
    """Seconds of a duration such as ``30d``."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([hdw])", text.strip())
    if match is None or float(match[1]) <= 0:
        raise InputError("--deadline", f"must be such as 36h, 30d or 6w, got {text!r}.")
    return float(match[1]) * SECONDS[match[2]]


def _places(options: opt.JobOptions, hosts: str | None, prices: list[str]) -> "tuple[list[Place], opt.Job]":
    """Every kind and number of hosts, the kinds in turn, and a job of the first kind."""
    from pipette_opt.cli.prices import priced
    from pipette_opt.replan.recommend import Place, numbers_of_hosts

    named = [name.strip() for name in (options.gpu or "").split(",") if name.strip()]
    kinds: list[str | None] = [*named] or [None]
    jobs = [opt.read_job(replace(options, gpu=kind)) for kind in kinds]
    found = []
    for job in jobs:
        instance, _ = priced(job.instance, prices)
        cluster = instance.cluster
        name = " and ".join(gpu.name for gpu in cluster.gpu_kinds)
        for count in opt.sizes("--hosts", hosts) or numbers_of_hosts(cluster.num_nodes):
            if count > cluster.num_nodes:
                raise InputError("--hosts", f"must be at most the {cluster.num_nodes} hosts there are, got {count}.")
            found.append(Place(name=name, instance=instance, num_hosts=count))
    return found, replace(jobs[0], num_gpus=None)

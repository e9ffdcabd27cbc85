"""``pipette-opt recommend``."""

import time
from typing import Annotated

import typer

from pipette_opt.base.risk import USUAL_RISK
from pipette_opt.cli import options as opt
from pipette_opt.cli.interrupt import STOPPED_EARLY, stop_on_interrupt


@opt.spread
def recommend(
    job_options: Annotated[opt.JobOptions, opt.Without(("num_gpus", "gpu_price", "host_order"))],
    space_options: opt.SpaceOptions,
    num_hosts: Annotated[
        str | None,
        typer.Option(
            help="Numbers of hosts to compare, e.g. 4,8,16; by default all hosts, half of them, a quarter, ..."
        ),
    ] = None,
    tokens: Annotated[float | None, typer.Option(help="Tokens of the whole training run, e.g. 1e12.")] = None,
    deadline: Annotated[str | None, typer.Option(help="Maximum duration of the training run: 36h, 30d or 6w.")] = None,
    gpu_price: opt.GpuPrices = None,
    max_oom_risk: opt.MaxOomRisk = USUAL_RISK,
    time_limit: Annotated[
        float | None,
        typer.Option(
            help="Seconds for all searches together; by default 5 for each row.", min=0.1, rich_help_panel=opt.RUN
        ),
    ] = None,
    workers: opt.Workers = None,
    json: opt.Json = False,
) -> None:
    """
    Recommend hosts: the fewest GPUs for a deadline, the cheapest and the fastest choice, over host counts and GPU
    types.

    With --cluster the best hosts of the cluster are taken, for each number of hosts. Without it all hosts are equal:
    --nodes is the largest number, and --gpu lists GPU types, separated by commas.

    Example: [bold]pipette-opt recommend --nodes 16 --gpu h100,a100-80gb --model llama-3-8b --global-batch-size 512
    --seq-length 8192 --tokens 1e12 --deadline 30d --gpu-price h100=2.9 --gpu-price a100-80gb=1.8[/]
    """
    begun = time.perf_counter()
    from dataclasses import asdict

    from pipette_opt.base.units import counted
    from pipette_opt.cli.output import live_progress, say, show, show_json
    from pipette_opt.library.arguments import for_commands
    from pipette_opt.library.recommend import recommend as library_recommend
    from pipette_opt.plans.watcher import Watcher
    from pipette_opt.replan.question_tables import offers_table

    watcher = Watcher(begun=begun)
    with stop_on_interrupt(watcher.stop), live_progress(watcher, quiet=json):
        found = for_commands(library_recommend)(
            **opt.given_of(job_options),
            **opt.given_of(space_options),
            num_hosts=num_hosts,
            tokens=tokens,
            deadline=deadline,
            gpu_price=gpu_price,
            max_oom_risk=max_oom_risk,
            time_limit_s=time_limit,
            workers=workers,
            on_progress=watcher,
        )
    if json:
        chosen = {word: found.offers.index(offer) for word, offer in found.choices.items()}
        show_json({"offers": [asdict(offer) for offer in found.offers], "choices": chosen})
    else:
        show(*(f"- {line}" for line in found.sentences), offers_table(found.offers))
    if watcher.stop.is_set():
        say(f"stopped early: {len(found.offers)} of {counted(found.num_places, 'row')} are there")
        raise typer.Exit(STOPPED_EARLY)

"""``pipette-opt recommend``."""

import time
from typing import Annotated

from pipette_opt.cli import options as opt
from pipette_opt.cli.interrupt import exit_if_stopped, watched
from pipette_opt.options.questions import RecommendOptions


@opt.spread
def recommend(
    job_options: Annotated[opt.JobOptions, opt.Without(("num_gpus", "host_order"))],
    space_options: Annotated[opt.SpaceOptions, opt.OnlyInJobFile()],
    asked: RecommendOptions,
    limits: Annotated[opt.LimitOptions, opt.Without(("seed",))],
    json: opt.Json = False,
) -> None:
    """
    Recommend hosts: the fewest GPUs for a deadline, the cheapest and the fastest choice, over host counts and GPU
    types.

    With --cluster the best hosts of the cluster are taken, for each number of hosts. Without it all hosts are equal:
    --nodes is the largest number, and --gpu lists GPU types, separated by commas. Every degree is searched, or those
    that a job file allows.

    Example: [bold]pipette-opt recommend --nodes 16 --gpu h100,a100-80gb --model llama-3-8b --global-batch-size 512
    --seq-length 8192 --tokens 1e12 --deadline 30d --gpu-price h100=2.9 --gpu-price a100-80gb=1.8[/]
    """
    begun = time.perf_counter()
    from dataclasses import asdict

    from pipette_opt.base.units import counted
    from pipette_opt.cli.output import show, show_json
    from pipette_opt.library.arguments import for_commands
    from pipette_opt.library.recommend import recommend as library_recommend
    from pipette_opt.replan.question_tables import offers_table

    with watched(quiet=json, begun=begun) as watcher:
        given = opt.given_of(job_options, space_options, asked, limits)
        found = for_commands(library_recommend)(**given, on_progress=watcher)
    if json:
        chosen = {word: found.offers.index(offer) for word, offer in found.choices.items()}
        show_json({"offers": [asdict(offer) for offer in found.offers], "choices": chosen})
    else:
        show(*(f"- {line}" for line in found.sentences), offers_table(found.offers))
    exit_if_stopped(watcher, f"{len(found.offers)} of {counted(found.num_places, 'row')} are there")

"""``pipette-opt whatif``."""

import time
from pathlib import Path
from typing import Annotated

import typer

from pipette_opt.base.risk import USUAL_RISK
from pipette_opt.cli import options as opt
from pipette_opt.cli.interrupt import STOPPED_EARLY, stop_on_interrupt

HOSTS, CHANGES = "Hosts and links", "The job"

TITLES = {
    "without": "One host less, the most expensive loss first",
    "repaired": "One host repaired, the largest gain first",
    "more hosts": "More hosts",
    "number of GPUs": "Another number of GPUs",
    "links": "Other links",
    "GPU": "Another kind of GPU",
    "training": "Another job",
}
"""Titles of the groups of questions, in the order of the tables."""


def whatif(
    plan: Annotated[Path, typer.Argument(help="Plan file to ask about.")],
    cluster: Annotated[
        Path | None,
        typer.Option(
            help="Cluster file of today, e.g. measured again; by default the plan's.", rich_help_panel=opt.JOB
        ),
    ] = None,
    without: Annotated[
        list[str] | None,
        typer.Option(
            help="Hosts that are lost together, e.g. gpu07 or gpu[07-08]; `each` asks for every host alone.",
            rich_help_panel=HOSTS,
        ),
    ] = None,
    repair: Annotated[
        list[str] | None,
        typer.Option(
            help="A host, or a link such as gpu07:gpu09, becomes as fast as the median; `each` asks for every "
            "host alone.",
            rich_help_panel=HOSTS,
        ),
    ] = None,
    add_hosts: Annotated[
        str | None,
        typer.Option(
            help="Numbers of hosts to add, e.g. 1,2,4; added hosts are like the median of the cluster.",
            rich_help_panel=HOSTS,
        ),
    ] = None,
    num_gpus: Annotated[
        str | None, typer.Option(help="Other numbers of GPUs on the same hosts, e.g. 64,96.", rich_help_panel=HOSTS)
    ] = None,
    link_speed: Annotated[
        str | None,
        typer.Option(help="Factors on the bandwidth of all links between hosts, e.g. 0.5,2.", rich_help_panel=HOSTS),
    ] = None,
    gpu: Annotated[
        str | None, typer.Option(help="Other GPU types in all hosts, e.g. h100,h200.", rich_help_panel=HOSTS)
    ] = None,
    global_batch_size: Annotated[
        str | None, typer.Option(help="Other global batch sizes, e.g. 256,1024.", rich_help_panel=CHANGES)
    ] = None,
    seq_length: Annotated[
        str | None, typer.Option(help="Other sequence lengths in tokens, e.g. 4096,8192.", rich_help_panel=CHANGES)
    ] = None,
    precision: Annotated[
        str | None, typer.Option(help="Other precisions: bf16, fp16, fp32 or fp8.", rich_help_panel=CHANGES)
    ] = None,
    gpu_price: opt.GpuPrices = None,
    measured_runs: opt.MeasuredRuns = None,
    env: opt.Env = None,
    max_oom_risk: opt.MaxOomRisk = USUAL_RISK,
    time_limit: Annotated[
        float | None,
        typer.Option(
            help="Seconds for all questions together; by default 0.3 per lost host and 4 per other job.",
            min=0.1,
            rich_help_panel=opt.RUN,
        ),
    ] = None,
    workers: opt.Workers = None,
    json: opt.Json = False,
) -> None:
    """
    Predict how a plan changes: hosts lost or repaired, other links, GPUs, batches, precisions and prices.

    Without any question: each host lost, each host repaired, one more host. Each row has the best plan found, the time
    of the unchanged plan if it can run on the changed job, and a lower bound on the time of all searched plans.

    Example: [bold]pipette-opt whatif plan.json --without each --global-batch-size 256,1024 --gpu-price 2.5[/]

    Ctrl-C keeps the answers found so far, with exit code 4.
    """
    begun = time.perf_counter()
    from dataclasses import asdict

    from pipette_opt.base.units import counted, difference
    from pipette_opt.cli.output import live_progress, say, show, show_json
    from pipette_opt.library.arguments import for_commands
    from pipette_opt.library.whatif import whatif as library_whatif
    from pipette_opt.plans.watcher import Watcher
    from pipette_opt.replan.question_tables import answers_table

    watcher = Watcher(begun=begun)
    with stop_on_interrupt(watcher.stop), live_progress(watcher, quiet=json):
        found = for_commands(library_whatif)(
            plan,
            cluster=cluster,
            without=without,
            repair=repair,
            add_hosts=add_hosts,
            num_gpus=num_gpus,
            link_speed=link_speed,
            gpu=gpu,
            global_batch_size=global_batch_size,
            seq_length=seq_length,
            precision=precision,
            gpu_price=gpu_price,
            measured_runs=measured_runs,
            env=env,
            max_oom_risk=max_oom_risk,
            time_limit_s=time_limit,
            workers=workers,
            on_progress=watcher,
        )
    if json:
        today, *answers = [asdict(answer) | {"is_proven": answer.is_proven} for answer in (found.today, *found.answers)]
        show_json({"plan": today, "answers": answers, "changed": list(found.changed)})
    else:
        for line in found.changed:
            show(f"- since the plan was made: {line}")
        if not found.changed and not found.is_as_recorded:
            ratio = (found.today.simulated_s or found.recorded_s) / found.recorded_s
            now = difference(ratio, "slower than", "faster than", "as fast as")
            show(f"- by this version the plan is {now} recorded: the plan's proof is not used here")
        show(*(f"- {line}" for line in found.sentences))
        show(answers_table("Today", [found.today]))
        for group, title in TITLES.items():
            answers_of_group = [answer for answer in found.answers if answer.group == group]
            if group == "without":
                answers_of_group.sort(key=lambda answer: -1.0 if answer.change is None else answer.change)
            elif group == "repaired":
                answers_of_group.sort(key=lambda answer: 1.0 if answer.change is None else -answer.change)
            if answers_of_group:
                show(answers_table(title, answers_of_group, found.today.config))
        show("", *(f"- {line}" for line in found.notes))
    if watcher.stop.is_set():
        say(f"stopped early: {len(found.answers)} of {counted(found.num_questions, 'question')} are answered")
        raise typer.Exit(STOPPED_EARLY)

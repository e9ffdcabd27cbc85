"""``pipette-opt whatif``."""

import time
from pathlib import Path
from typing import Annotated

import typer

from pipette_opt.cli import options as opt
from pipette_opt.cli.interrupt import STOPPED_EARLY, stop_on_interrupt

HOSTS, CHANGES = "Hosts and links", "The job"

TITLES = {
    "without": "A host less, the dearest loss first",
    "repaired": "Repaired, the most useful first",
    "more hosts": "More hosts",
    "number of GPUs": "Another number of GPUs",
    "links": "Other links",
    "GPU": "Another kind of GPU",
    "training": "Another job",
}
"""Titles of the groups of questions, in the order of the tables."""


def whatif(
    plan: Annotated[Path, typer.Argument(help="The plan to ask about.")],
    cluster: Annotated[
        Path | None, typer.Option(help="The cluster as it is now, e.g. measured again.", rich_help_panel=opt.JOB)
    ] = None,
    without: Annotated[
        list[str] | None,
        typer.Option(help="Hosts lost together, e.g. gpu07 or gpu[07-08]; each alone: each.", rich_help_panel=HOSTS),
    ] = None,
    repair: Annotated[
        list[str] | None,
        typer.Option(
            help="A host, or a link such as gpu07:gpu09, as fast as others usually are; each: every host.",
            rich_help_panel=HOSTS,
        ),
    ] = None,
    add_hosts: Annotated[
        str | None, typer.Option(help="So many usual hosts more, e.g. 1,2,4.", rich_help_panel=HOSTS)
    ] = None,
    num_gpus: Annotated[
        str | None, typer.Option(help="GPUs of the same hosts, e.g. 64,96.", rich_help_panel=HOSTS)
    ] = None,
    link_speed: Annotated[
        str | None,
        typer.Option(help="All links between hosts so many times as fast, e.g. 0.5,2.", rich_help_panel=HOSTS),
    ] = None,
    gpu: Annotated[
        str | None, typer.Option(help="Another kind of GPU in all hosts, e.g. h100,h200.", rich_help_panel=HOSTS)
    ] = None,
    global_batch_size: Annotated[str | None, typer.Option(help="E.g. 256,1024.", rich_help_panel=CHANGES)] = None,
    seq_length: Annotated[str | None, typer.Option(help="E.g. 4096,8192.", rich_help_panel=CHANGES)] = None,
    precision: Annotated[str | None, typer.Option(help="Of bf16, fp16, fp32 and fp8.", rich_help_panel=CHANGES)] = None,
    gpu_price: opt.GpuPrices = None,
    max_oom_risk: opt.MaxOomRisk = 0.01,
    time_limit: Annotated[
        float | None,
        typer.Option(
            help="Seconds of all questions; by default 0.3 for a lost host and 4 for another job.",
            min=0.1,
            rich_help_panel=opt.RUN,
        ),
    ] = None,
    workers: opt.Workers = None,
    seed: opt.Seed = 0,
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

    from pipette_opt.base.units import counted
    from pipette_opt.cli.output import live_progress, say, show, show_json
    from pipette_opt.library.whatif import answered
    from pipette_opt.plans.watcher import Watcher
    from pipette_opt.report.questions import answers_table

    asked = {
        "without": without,
        "repair": repair,
        "add_hosts": add_hosts,
        "num_gpus": num_gpus,
        "link_speed": link_speed,
        "gpu": gpu,
        "global_batch_size": global_batch_size,
        "seq_length": seq_length,
        "precision": precision,
    }
    watcher = Watcher(begun=begun)
    with stop_on_interrupt(watcher.stop), live_progress(watcher, quiet=json):
        found = answered(
            plan,
            cluster,
            asked,
            gpu_price=gpu_price or (),
            max_oom_risk=max_oom_risk,
            time_limit_s=time_limit,
            workers=workers,
            seed=seed,
            watcher=watcher,
        )
    if json:
        today, *answers = [asdict(answer) | {"is_proven": answer.is_proven} for answer in (found.today, *found.answers)]
        show_json({"plan": today, "answers": answers, "changed": list(found.changed)})
    else:
        for line in found.changed:
            show(f"- since the plan was made: {line}")
        if not found.changed and not found.is_as_recorded:
            show(
                f"- the plan says {found.recorded_s:.4f} s, this version {found.today.iteration_time_s:.4f} s: what it "
                "proved does not count here"
            )
        show(answers_table("Today", [found.today]))
        for group, title in TITLES.items():
            answers_of_group = [answer for answer in found.answers if answer.group == group]
            if group == "without":
                answers_of_group.sort(key=lambda answer: -1.0 if answer.change is None else answer.change)
            elif group == "repaired":
                answers_of_group.sort(key=lambda answer: 1.0 if answer.change is None else -answer.change)
            if answers_of_group:
                show(answers_table(title, answers_of_group, found.today.config))
        show("", *found.sentences)
    if watcher.stop.is_set():
        say(f"stopped early: {len(found.answers)} of {counted(found.num_questions, 'question')} are answered")
        raise typer.Exit(STOPPED_EARLY)

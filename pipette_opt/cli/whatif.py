"""``pipette-opt whatif``."""

import time
from pathlib import Path
from typing import Annotated

import typer

from pipette_opt.cli import options as opt
from pipette_opt.cli.interrupt import exit_if_stopped, watched
from pipette_opt.options.questions import WhatifOptions

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


@opt.spread
def whatif(
    plan: Annotated[Path, typer.Argument(help="Plan file to ask about.")],
    asked: WhatifOptions,
    limits: Annotated[opt.LimitOptions, opt.Without(("seed",))],
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
    from pipette_opt.cli.output import show, show_json
    from pipette_opt.library.arguments import for_commands
    from pipette_opt.library.whatif import whatif as library_whatif
    from pipette_opt.replan.question_tables import answers_table

    with watched(quiet=json, begun=begun) as watcher:
        found = for_commands(library_whatif)(plan, **opt.given_of(asked, limits), on_progress=watcher)
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
    exit_if_stopped(watcher, f"{len(found.answers)} of {counted(found.num_questions, 'question')} are answered")

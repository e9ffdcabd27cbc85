"""``pipette-opt whatif``."""

import time
from pathlib import Path
from typing import Annotated

import typer

from pipette_opt.cli import options as opt
from pipette_opt.cli.interrupt import STOPPED_EARLY, stop_on_interrupt
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
    asked: Annotated[WhatifOptions, opt.Without(("seed",))],
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
            **opt.given_of(asked),
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

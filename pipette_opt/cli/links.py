"""``pipette-opt links``: slow links and their cause, and the gain from repairs."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from pipette_opt.base.errors import InputError
from pipette_opt.base.risk import USUAL_RISK
from pipette_opt.cli import options as opt

if TYPE_CHECKING:
    from pipette_opt.plans.plan import Plan
    from pipette_opt.specs import Instance


def links(
    clusters: Annotated[
        list[Path], typer.Argument(help="Cluster file, or several of the same hosts, the oldest first.")
    ],
    plan: Annotated[
        Path | None,
        typer.Option(help="Plan file: also print the gain that the repair of each slow host brings to this plan."),
    ] = None,
    max_oom_risk: opt.MaxOomRisk = USUAL_RISK,
    workers: opt.Workers = None,
    json: opt.Json = False,
) -> None:
    """
    Name the host, NIC or GPU behind slow links; with several files also show which links changed or drift.

    A host is named if its own contribution to the rates of its links is far below that of other hosts. Medians are
    compared, so a minority of faulty hosts changes nothing. Two files are compared pair by pair; for more files the
    slope of each rate over all files counts.

    Example: [bold]pipette-opt links cluster.yaml --plan plan.json[/]
    """
    from dataclasses import asdict

    from pipette_opt.cli.output import show, show_json
    from pipette_opt.read.cluster import read_cluster
    from pipette_opt.read.link_changes import changes_in_words
    from pipette_opt.read.link_health import health

    snapshots = [read_cluster(path) for path in clusters]
    changed = changes_in_words(snapshots) if len(snapshots) > 1 else []
    found = health(snapshots[-1])
    brings = []
    if plan is not None:
        from pipette_opt.library.plans import plan_on_cluster

        old, instance, _ = plan_on_cluster(plan, clusters[-1])
        brings = what_repairs_bring(old, instance, found.slow_hosts, max_oom_risk, opt.threads(workers), quiet=json)
    if json:
        show_json({**asdict(found), "slow_hosts": list(found.slow_hosts), "changed": changed, "repairs": brings})
        return
    if changed:
        show(f"From {clusters[0]} to {clusters[-1]}", *(f"- {line}" for line in changed), "")
    if not snapshots[-1].links_measured:
        raise InputError(str(clusters[-1]), "has no measured links; measure them with `pipette-opt profile links`.")
    show(*(f"- {line}" for line in (*found.sentences, *brings)))


def what_repairs_bring(
    plan: "Plan", instance: "Instance", hosts: "Sequence[str]", max_oom_risk: float, workers: int, *, quiet: bool
) -> list[str]:
    """Return a sentence for each host with the gain that its repair brings to the plan, the largest gain first."""
    from pipette_opt.base.units import MIN_DIFFERENCE, difference
    from pipette_opt.cli.interrupt import stop_on_interrupt
    from pipette_opt.cli.output import live_progress
    from pipette_opt.optimize import OptimizeParams
    from pipette_opt.plans.watcher import Watcher
    from pipette_opt.replan.whatif import WhatIf

    watcher = Watcher()
    asking = WhatIf(plan, instance, OptimizeParams(max_oom_risk=max_oom_risk, workers=workers), watcher)
    with stop_on_interrupt(watcher.stop), live_progress(watcher, quiet=quiet):
        answers = asking.ask(asking.repairs(hosts))
    answers.sort(key=lambda answer: -(answer.change or 0.0))
    gains = [
        f"{answer.name}: {difference(1 + answer.change, 'more', 'fewer', 'as many')} tokens per second."
        for answer in answers
        if answer.change is not None and answer.change >= MIN_DIFFERENCE
    ]
    left = [host for host in hosts if not any(line.startswith(f"{host} repaired") for line in gains)]
    return [*gains, *([f"The repair of {', '.join(left)} does not make this job faster."] if left else [])]

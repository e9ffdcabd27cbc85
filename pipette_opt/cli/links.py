"""``pipette-opt links``: slow links and their cause, and the gain from repairs."""

from pathlib import Path
from typing import Annotated

import typer

from pipette_opt.base.errors import InputError
from pipette_opt.cli import options as opt
from pipette_opt.cli.interrupt import watched


@opt.spread
def links(
    clusters: Annotated[
        list[Path], typer.Argument(help="Cluster file, or several of the same hosts, the oldest first.")
    ],
    plan: Annotated[
        Path | None,
        typer.Option(help="Plan file: also print the gain that the repair of each slow host brings to this plan."),
    ] = None,
    *,
    limits: Annotated[opt.LimitOptions, opt.Without(("seed",))],
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
    from pipette_opt.library.arguments import for_commands
    from pipette_opt.library.links import links as library_links

    with watched(quiet=json) as watcher:
        found = for_commands(library_links)(clusters, plan, **opt.given_of(limits), on_progress=watcher)
    if json:
        health = {**asdict(found.health), "slow_hosts": list(found.health.slow_hosts)}
        show_json({**health, "changed": list(found.changed), "repairs": list(found.repairs)})
        return
    if found.changed:
        show(f"From {clusters[0]} to {clusters[-1]}", *(f"- {line}" for line in found.changed), "")
    if not found.is_measured:
        raise InputError(str(clusters[-1]), "has no measured links; measure them with `pipette-opt profile links`.")
    show(*(f"- {line}" for line in (*found.health.sentences, *found.repairs)))

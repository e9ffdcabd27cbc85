"""Speed of the annealers: ``python -m benchmarks.annealing``."""

from dataclasses import asdict
from typing import Annotated

import typer
from rich.table import Table

from benchmarks.placement.speed import speeds
from benchmarks.placement.tables import environment
from pipette_opt.base.errors import InputError
from pipette_opt.cli import options as opt
from pipette_opt.cli.output import show, show_json
from pipette_opt.cli.program import run_command


def annealing(
    seconds: Annotated[
        float, typer.Option(help="Duration of each measurement, seconds.", rich_help_panel=opt.RUN)
    ] = 0.3,
    json: opt.Json = False,
) -> None:
    """
    Print the moves per second of each annealer on one core.

    Example: [bold]python -m benchmarks.annealing --seconds 1[/]
    """
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


if __name__ == "__main__":
    run_command(annealing)

"""``python -m models.memory.collect``: trace random stages, and write the training data."""

import os
from pathlib import Path
from typing import Annotated

import typer

from models.memory.dataset import collect_traces
from models.memory.progress import shown_progress
from pipette_opt.base.units import counted
from pipette_opt.cli.output import answer, check_file, check_place
from pipette_opt.cli.program import run_command

NUM_POINTS = 3000
"""Number of points in the shipped dataset."""


def collect(
    out: Annotated[Path, typer.Option("--out", "-o", help="CSV file; an unfinished file is continued.")] = Path(
        "traces.csv"
    ),
    num_points: Annotated[int, typer.Option(help="Number of points in the complete file.", min=1)] = NUM_POINTS,
    seed: Annotated[int, typer.Option(help="Seed of the points.", min=0)] = 0,
    workers: Annotated[int | None, typer.Option(help="Number of processes; by default one per core.", min=1)] = None,
) -> None:
    """
    Trace random stages without a GPU and write the training data.

    Example: [bold]python -m models.memory.collect -o traces.csv[/]
    """
    check_file(out, "an unfinished one is continued")
    check_place(out)
    processes = workers or os.cpu_count() or 1
    with shown_progress("tracing") as report:
        done = collect_traces(out, num_points=num_points, seed=seed, workers=processes, progress=report)
    answer(f"{counted(done, 'point')} traced, {out} holds all {num_points}.")


if __name__ == "__main__":
    run_command(collect)

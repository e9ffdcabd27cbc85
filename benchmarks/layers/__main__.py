"""Strategies for each layer on Galvatron's costs: ``python -m benchmarks.layers``."""

import threading
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from benchmarks.command import INSTANCES
from benchmarks.layers.compare import compare_layers
from benchmarks.layers.profile import read_profile
from benchmarks.measured import measured_folder
from pipette_opt.base.errors import InputError
from pipette_opt.base.units import percent
from pipette_opt.cli import options as opt
from pipette_opt.cli.interrupt import STOPPED_EARLY, stop_on_interrupt
from pipette_opt.cli.output import check_place, check_stdout, say, show, show_json, write_csv
from pipette_opt.cli.program import run_command
from pipette_opt.report.cells import columns_table, seconds_text, spaced

PROFILE = "galvatron_llama2_7b_profiles.json"
"""Galvatron's published profile, in the folder of measured runs."""


def layers(
    profile: Annotated[
        Path | None,
        typer.Option(
            help="Galvatron's profiles, joined; by default the one of llama2-7b in $PIPETTE_OPT_SHARED/measured.",
            rich_help_panel=INSTANCES,
        ),
    ] = None,
    budgets: Annotated[
        str, typer.Option(help="Memory of a GPU in GB; several with commas.", rich_help_panel=INSTANCES)
    ] = "8,12,14,16,18,20,24",
    batches: Annotated[
        str, typer.Option(help="Global batch sizes; several with commas.", rich_help_panel=INSTANCES)
    ] = "8,16,32,64",
    num_layers: Annotated[int, typer.Option(help="Number of layers of the model.", rich_help_panel=INSTANCES)] = 32,
    stages: Annotated[
        int | None, typer.Option(help="Only this number of pipeline stages.", rich_help_panel=INSTANCES)
    ] = None,
    time_limit: Annotated[
        float, typer.Option(help="Time limit for each budget, seconds.", rich_help_panel=opt.RUN)
    ] = 10.0,
    workers: opt.Workers = 1,
    seed: opt.Seed = 0,
    csv: Annotated[Path | None, typer.Option(help="CSV file for the table.", rich_help_panel=opt.RUN)] = None,
    json: opt.Json = False,
) -> None:
    """
    Compare Galvatron's strategy for each layer with the proven optimum, on Galvatron's own costs.

    The cluster is one host of eight GPUs. Strategies are tensor, sequence or data parallelism, ZeRO-2 or ZeRO-3,
    recomputed or not.

    Example: [bold]python -m benchmarks.layers --budgets 16,20,24 --batches 16[/]
    """
    check_place(csv)
    check_stdout(json, csv)
    given = profile or measured_folder() / PROFILE
    if profile is None and not given.exists():
        raise InputError("--profile", f"is needed: there is no {given}; set PIPETTE_OPT_SHARED or give the file.")
    if num_layers < 1:
        raise InputError("--num-layers", f"must be >= 1, got {num_layers}.")
    read = read_profile(given, num_layers)
    if stages is not None and (stages not in (1, 2, 4, 8) or stages > num_layers):
        raise InputError("--stages", f"must be 1, 2, 4 or 8, and at most the {num_layers} layers, got {stages}.")
    if not time_limit > 0:
        raise InputError("--time-limit", f"must be > 0, got {time_limit}.")
    of_batches = opt.sizes("--batches", batches) or ()
    of_budgets = _numbers("--budgets", budgets)
    rows, stop = [], threading.Event()
    with stop_on_interrupt(stop):
        for row in compare_layers(read, of_batches, of_budgets, stages, time_limit, opt.threads(workers), seed, stop):
            rows.append(row)
            say(f"batch {row.batch}, {row.budget_gb:g} GB: {row.ours}")
    if csv is not None and rows:
        write_csv(csv, [asdict(row) for row in rows])
    if json:
        show_json([asdict(row) for row in rows])
    else:
        headers = (
            "batch >",
            "budget >",
            "usable >",
            "Galvatron >",
            "ours >",
            "faster >",
            "gap >",
            "searched >",
            "ours >",
        )
        table = columns_table(*headers)
        for row in rows:
            table.add_row(
                *(str(row.batch), f"{row.budget_gb:g} GB", f"{row.usable_mb} MB"),
                *(seconds_text(row.galvatron_s), seconds_text(row.ours_s), percent(row.faster), f"{row.gap:.0e}"),
                *(f"{row.galvatron_search_s:.1f} s", f"{row.ours_search_s:.1f} s"),
            )
        table.caption = "its search: all budgets of a batch together; -: proven that nothing fits"
        show(spaced(table))
    if stop.is_set():
        say(f"stopped early: {len(rows)} of {len(of_batches) * len(of_budgets)} rows are done")
        raise typer.Exit(STOPPED_EARLY)


def _numbers(option: str, text: str) -> list[float]:
    """Return positive numbers from a text with commas; raises ``InputError`` otherwise."""
    found = []
    for word in text.split(","):
        try:
            number = float(word)
        except ValueError:
            number = 0.0
        if not 0 < number < 1e6:
            raise InputError(option, f"must be positive numbers separated by commas, got {word.strip()!r}.")
        found.append(number)
    return found


if __name__ == "__main__":
    run_command(layers)

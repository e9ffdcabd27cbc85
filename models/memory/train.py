"""``python -m models.memory.train``: train the memory predictor's network, or fine-tune it on measured runs."""

from dataclasses import replace
from pathlib import Path
from typing import Annotated

import pandas as pd
import typer

from models.memory.card import markdown_table, model_card, tuning_card
from models.memory.dataset import TRACES, read_rows
from models.memory.fit import FitParams, fit, fit_small_predict_large, load_dataset
from models.memory.progress import shown_progress
from models.memory.tune import Lessons
from models.memory.tuning import tune_memory, tuning_rows
from pipette_opt.base.errors import InputError
from pipette_opt.base.files import write_atomically
from pipette_opt.cli.output import answer, check_file, check_place
from pipette_opt.cli.program import run_command
from pipette_opt.memory.predictor import MemoryPredictor
from pipette_opt.memory.weights import write_weights
from pipette_opt.read.runs import read_runs
from pipette_opt.read.stack import read_stack, write_stack


def train(
    data: Annotated[
        Path | None,
        typer.Option(help="File of models.memory.collect; by default traces.csv here, or models/memory/traces.csv.gz."),
    ] = None,
    runs: Annotated[
        Path | None, typer.Option(help="Measured runs (runs.csv) to fine-tune on, instead of training anew.")
    ] = None,
    weights: Annotated[
        Path | None, typer.Option(help="Weights that --runs starts from; by default the shipped ones.")
    ] = None,
    base: Annotated[str, typer.Option(help="Stack whose memory constants the fit starts from.")] = "megatron-core",
    out: Annotated[Path, typer.Option("--out", "-o", help="Weights file; the model card is written beside it.")] = Path(
        "memory.npz"
    ),
    seed: Annotated[int, typer.Option(help="Seed of the train-test split and of the initial weights.", min=0)] = 0,
) -> None:
    """
    Train the memory predictor's network and write its weights and model card.

    With --runs, fit the memory constants of a stack to your own runs, and fine-tune the network on the errors that
    remain. Both are written (memory.npz, memory.yaml), with their errors on runs and larger jobs that were left out.

    Example: [bold]python -m models.memory.train --data traces.csv -o memory.npz[/]
    """
    check_file(out, "the card is written beside it")
    out.parent.mkdir(parents=True, exist_ok=True)
    check_place(out)
    here = Path("traces.csv")
    chosen = data or (here if here.is_file() else TRACES)
    if runs is not None:
        _tune(runs, chosen, weights, base, out)
        return
    if weights is not None:
        raise InputError("--weights", "is where fine-tuning starts; give --runs too.")
    dataset, params = load_dataset(chosen), FitParams(seed=seed)
    with shown_progress("training") as report:
        result = fit(dataset, params, report)
    shift = fit_small_predict_large(dataset, params)
    seeds = ", ".join(sorted({row["seed"] for row in read_rows(chosen)}))
    write_weights(out, result.network)
    write_atomically(out.with_suffix(".md"), model_card(result, shift, seed=seeds))
    answer(markdown_table(result.errors))
    answer(f"wrote {out} and {out.with_suffix('.md')} from {chosen}")


def _tune(runs: Path, data: Path, weights: Path | None, base: str, out: Path) -> None:
    """Fit constants to measured runs, tune the network on them, and write both."""
    measured, stack, start = read_runs(runs), read_stack(base), MemoryPredictor.load(weights)
    dataset = load_dataset(data)
    traces = Lessons(features=dataset.features, log_ratio=dataset.log_ratio)
    with shown_progress("tuning") as report:
        tuning = tune_memory(measured, stack, start, traces, progress=report)
    table = markdown_table(pd.DataFrame(tuning_rows(tuning)))
    source = f"memory fitted to {runs.name}, with the network {out.name}"
    write_weights(out, tuning.predictor.network)
    found = replace(stack, name=out.stem, source=source, memory=tuning.memory_constants)
    write_stack(found, out.with_suffix(".yaml"))
    card = tuning_card(table, runs=runs.name, num_runs=tuning.num_runs, improves=tuning.improves)
    write_atomically(out.with_suffix(".md"), card)
    answer(table)
    if not tuning.improves:
        answer("tuning does not help on runs left out: the network stays as it was, the constants are fitted")
    answer(f"wrote {out}, {out.with_suffix('.yaml')} and {out.with_suffix('.md')}")


if __name__ == "__main__":
    run_command(train)

"""``python -m models.memory.train``: train the memory predictor's network."""

from pathlib import Path
from typing import Annotated

import typer

from models.memory.card import markdown_table, model_card
from models.memory.dataset import TRACES, read_rows
from models.memory.files import write_weights
from models.memory.fit import FitParams, fit, fit_small_predict_large, load_dataset
from models.memory.progress import shown_progress
from pipette_opt.base.files import write_atomically
from pipette_opt.cli.output import answer, check_file, check_place
from pipette_opt.cli.program import run_command


def train(
    data: Annotated[
        Path | None,
        typer.Option(help="File of models.memory.collect; by default traces.csv here, or models/memory/traces.csv.gz."),
    ] = None,
    out: Annotated[Path, typer.Option("--out", "-o", help="Weights file; the model card is written beside it.")] = Path(
        "memory.npz"
    ),
    seed: Annotated[int, typer.Option(help="Seed of the train-test split and of the initial weights.", min=0)] = 0,
) -> None:
    """
    Train the memory predictor's network and write its weights and model card.

    Example: [bold]python -m models.memory.train --data traces.csv -o memory.npz[/]
    """
    check_file(out, "the card is written beside it")
    out.parent.mkdir(parents=True, exist_ok=True)
    check_place(out)
    here = Path("traces.csv")
    chosen = data or (here if here.is_file() else TRACES)
    dataset, params = load_dataset(chosen), FitParams(seed=seed)
    with shown_progress("training") as report:
        result = fit(dataset, params, report)
    shift = fit_small_predict_large(dataset, params)
    seeds = ", ".join(sorted({row["seed"] for row in read_rows(chosen)}))
    write_weights(out, result.network)
    write_atomically(out.with_suffix(".md"), model_card(result, shift, seed=seeds))
    answer(markdown_table(result.errors))
    answer(f"wrote {out} and {out.with_suffix('.md')} from {chosen}")


if __name__ == "__main__":
    run_command(train)

"""Figures of the page on fine-tuning, on small tables."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from benchmarks.finetune import Boundary, after_one, boundaries, other_gpus, predicted, ranked
from pipette_opt.read.runs import MeasuredRun, read_row
from pipette_opt.read.stack import read_stack

STACK = read_stack()

CELLS = {
    "source": "own",
    "gpu": "A100-40GB",
    "num_gpus": "1",
    "model": "llama-2-7b",
    "method": "lora",
    "framework": "litgpt",
    "sharding": "none",
    "seq_len": "1304",
    "packing": "no",
    "mbs": "1",
    "oom": "False",
}
"""A row that ran."""


def run_with(**cells: str) -> MeasuredRun:
    """The run of a row with other cells."""
    return read_row("runs.csv, line 2", 0, {**CELLS, **cells}, Path())


def timed(*errors: float, **columns: Sequence[Any]) -> pd.DataFrame:
    """Timed runs with these errors."""
    usual = {"source": ["own"] * len(errors), "submitter": ["us"] * len(errors), "gpu": list(range(len(errors)))}
    return pd.DataFrame({"time error": errors, **usual, **columns})


def test_a_known_run_scales_the_others_of_its_source() -> None:
    """By hand: 1.2 over 1.5 and back; the run of another source scales none."""
    found = after_one(timed(0.2, 0.5, 3.0, source=["own", "own", "theirs"]))
    assert found.tolist() == pytest.approx([1 - 1.2 / 1.5, 1.5 / 1.2 - 1])


def test_submitters_are_known_by_their_other_gpus() -> None:
    """Each run has the mean over the others; equal GPUs and other submitters do not count."""
    found = other_gpus(timed(0.0, 0.1, 0.1, 0.0, submitter=["us", "us", "us", "them"], gpu=["a", "b", "b", "c"]))
    assert found.tolist() == pytest.approx([0.1 / 1.1, 0.1, 0.1])


def test_sources_with_few_times_have_no_rank() -> None:
    """Three are ranked, two are not."""
    rows = timed(*[0.0] * 5, source=["a", "a", "a", "b", "b"], seconds=[1, 2, 3, 1, 2], predicted_s=[1, 3, 2, 1, 2])
    assert [(name, rank, len(group)) for name, rank, group in ranked(rows)] == [("a", pytest.approx(0.5), 3)]


@pytest.mark.parametrize(("fits", "error"), [(1, -0.5), (2, 0.0), (3, 0.0), (4, 1 / 3), (6, 1.0)])
def test_errors_of_boundaries(fits: int, error: float) -> None:
    """Nothing between what ran and what did not is wrong; the size that did not run is."""
    assert Boundary(run_with(), "mbs", 2, 4, fits).error == pytest.approx(error)


def test_boundaries_are_between_rows_that_differ_in_a_size() -> None:
    """A larger micro-batch ran out; another model, and a row that ran alone, are no boundary."""
    runs = [
        run_with(mbs="2", peak_mem_gib="27"),
        run_with(),
        run_with(mbs="4", oom="True"),
        run_with(model="phi-1.5", mbs="8", oom="True"),
        run_with(model="llama-2-13b"),
    ]
    (found,) = boundaries(runs, STACK)
    assert (found.column, found.ran, found.failed) == ("mbs", 2, 4)
    assert 2 <= found.fits <= 4


def test_intervals_hold_their_prediction(tmp_path: Path) -> None:
    """A row has its peak between the ends; one that cannot be predicted has none."""
    path = tmp_path / "runs.csv"
    lines = [",".join(CELLS), ",".join(CELLS.values()), ",".join((CELLS | {"model": "ours"}).values())]
    path.write_text("\n".join(lines) + "\n")
    rows = predicted(path, STACK)
    assert rows["low"][0] < rows["predicted_gib"][0] < rows["high"][0]
    assert rows[["low", "high", "predicted_gib"]].isna().all(axis=1).tolist() == [False, True]

"""
Comparison with runs that people report in forum threads: ``python -m benchmarks.backtest.field``.

Rows name a model and its degrees; no constant is fitted to them. The page is ``benchmarks/results/field.md``.
"""

import argparse
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path

import numpy as np

from benchmarks.backtest.sources import measured_runs
from benchmarks.measured import measured_folder
from benchmarks.page import RESULTS, run_page
from pipette_opt.base.units import GIB
from pipette_opt.calibrate.memory import memory_columns
from pipette_opt.calibrate.predict import Prediction, predict_runs
from pipette_opt.read.run_launches import recomputation_word
from pipette_opt.read.stack import read_stack

ROOT = Path(__file__).resolve().parents[2]

MEASURED = measured_folder() / "field_cases.csv"

LIKELY = 0.5
"""Probability of running out of memory from which on a job counts as predicted to run out."""


def predictions(path: Path = MEASURED) -> list[Prediction]:
    """Return the predicted time and memory of every row, by the shipped stack."""
    stack = read_stack()
    memory = partial(memory_columns, memory_constants=stack.memory, max_oom_risk=0.01)
    return list(predict_runs(measured_runs(path), stack, memory=memory))


def page(found: Sequence[Prediction]) -> str:
    """Return the page: a summary, then a table of all rows."""
    timed = [prediction.error for prediction in found if prediction.error is not None]
    tested = [prediction for prediction in found if prediction.memory and prediction.run.oom is not None]
    right = sum(says_oom(prediction) == prediction.run.oom for prediction in tested)
    lines = [
        "# Runs reported in forum threads",
        "",
        f"{sum(prediction.iter_time_s is not None for prediction in found)} of {len(found)} rows have a predicted "
        "time. Where a time",
        f"was measured, predictions are off by {np.mean(np.abs(timed)):.1%} on average; the median of predicted over",
        f"measured is {1 + np.median(timed):.2f}. Whether a job fits is predicted right for {right} of {len(tested)}.",
        "Nothing was fitted to these rows. Made by `python -m benchmarks.backtest.field`.",
        "",
        f"| {' | '.join(HEADINGS)} |",
        "|---|---|---|---|---|---|---:|---:|---:|---:|---:|---|---:|",
        *map(_line, found),
        "",
        *NOTES,
    ]
    return "\n".join(lines) + "\n"


HEADINGS = (
    *("source", "GPUs", "model", "batch", "degrees", "recompute", "measured", "predicted", "ratio"),
    *("peak", "predicted", "ran out", "predicted"),
)
"""Columns of the table."""

DEGREES = ("tp", "pp", "dp", "vpp", "ep")
"""Columns of degrees."""

NOTES = (
    "- Times in seconds for an iteration, peaks in GiB; sources without a printed peak have none. The prediction of",
    "  running out is a probability.",
    "- `ops` is torchtitan's `selective`: the results of every second product stay, and all else is computed again.",
    "- The last row has the time of a fine-tuning loop, which is more than an iteration.",
)
"""Notes below the table."""


def says_oom(prediction: Prediction) -> bool:
    """Return whether a job is predicted to run out of memory."""
    return prediction.memory["oom_probability"] >= LIKELY


def _line(prediction: Prediction) -> str:
    run = prediction.run
    cells = {
        name: run.cells.get(name, "").removesuffix(".0") for name in (*DEGREES, "gbs", "seq_len", "mbs", "zero_stage")
    }
    kept = [f"{name}{cells[name]}" for name in DEGREES if cells[name] not in ("", "1")]
    kept += [f"zero{cells['zero_stage']}"] if cells["zero_stage"] not in ("", "0") else []
    return (
        f"| {run.source.split(' (')[0].split(',')[0]} | {run.num_gpus} {run.gpu_name} | {run.model} | "
        f"{cells['gbs']} x {cells['seq_len']}, mbs {cells['mbs']} | {' '.join(kept)} | "
        f"{recomputation_word(run.cells.get('recompute') or 'none') or 'none'} | "
        f"{_number(prediction.measured_s)} | {_number(prediction.iter_time_s)} | "
        f"{'' if prediction.error is None else f'{1 + prediction.error:.2f}'} | "
        f"{'' if run.peak_mem_bytes is None else f'{run.peak_mem_bytes / GIB:.1f}'} | "
        f"{_number(prediction.memory.get('predicted_peak_mem_gib'))} | "
        f"{'' if run.oom is None else 'yes' if run.oom else 'no'} | "
        f"{'' if not prediction.memory else format(prediction.memory['oom_probability'], '.0%')} |"
    )


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.3g}"


def make(given: argparse.Namespace) -> Iterator[str]:
    """Yield the page."""
    yield page(predictions())


if __name__ == "__main__":
    run_page(make, out=RESULTS / "field.md")

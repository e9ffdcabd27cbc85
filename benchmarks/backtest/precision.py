"""
Comparison with published times of jobs in fewer than 16 bits: ``python -m benchmarks.backtest.precision``.

No constant is fitted to these rows: MLPerf Training, NVIDIA's performance tables, and the cards of Megatron-Bridge. The
page is ``benchmarks/results/precision.md``.
"""

import argparse
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from benchmarks.backtest import vendor
from benchmarks.backtest.sources import measured_runs
from benchmarks.measured import measured_folder
from benchmarks.page import RESULTS, run_page
from pipette_opt.calibrate.predict import predict_runs
from pipette_opt.read.stack import read_stack

ROOT = Path(__file__).resolve().parents[2]

MEASURED = measured_folder()

WORDS = {"fp8-hybrid": "fp8", "fp8-mx": "mxfp8"}
"""Common name of precisions with several names."""

LARGEST_ERROR = 5.0
"""Maximum absolute error of a row; a larger error means that the row was misread."""


def runs() -> vendor.Runs:
    """Return all rows, of dense models and of models with experts."""
    tables = measured_runs(MEASURED / "nvidia_perf_tables.csv")
    parts = [
        vendor.mlperf(measured_runs(MEASURED / "mlperf_training.csv")),
        vendor.dense(tables),
        vendor.experts(tables),
    ]
    further = [measured_runs(MEASURED / name) for name in ("megatron_bridge_cards.csv", "mlperf_v51.csv")]
    return [run for pair in parts for part in pair for run in part] + [run for part in further for run in part]


def make(given: argparse.Namespace) -> Iterator[str]:
    """Yield the page with a table by precision and GPU."""
    found: dict[tuple[str, str], list[float]] = defaultdict(list)
    for prediction in predict_runs(runs(), read_stack()):
        narrow = prediction.run.precision not in ("", "bf16", "fp16", "fp32")
        if (
            narrow
            and prediction.run.gpu is not None
            and prediction.error is not None
            and abs(prediction.error) < LARGEST_ERROR
        ):
            found[WORDS.get(prediction.run.precision, prediction.run.precision), prediction.run.gpu.gpu.name].append(
                prediction.error
            )
    lines = [
        "# Jobs in fewer than 16 bits",
        "",
        "Predicted over published iteration times, less one, with the shipped constants; no row of these was fitted",
        "to. Made by `python -m benchmarks.backtest.precision`. fp8: scales are not named, or delayed; fp8-cs: of the",
        "tensor at hand; mxfp8, nvfp4: of blocks. Several rows may be submissions of one job.",
        "",
        "| precision | GPU | rows | mean | mean of sizes |",
        "|---|---|---:|---:|---:|",
    ]
    for (precision, gpu), errors in sorted(found.items()):
        lines.append(f"| {precision} | {gpu} | {len(errors)} | {np.mean(errors):+.1%} | {np.abs(errors).mean():.1%} |")
    for precision in sorted({key[0] for key in found}):
        errors = [error for key, group in found.items() if key[0] == precision for error in group]
        lines.append(
            f"| **{precision}** | all | {len(errors)} | {np.mean(errors):+.1%} | {np.abs(errors).mean():.1%} |"
        )
    yield "\n".join(lines) + "\n"


if __name__ == "__main__":
    run_page(make, out=RESULTS / "precision.md")

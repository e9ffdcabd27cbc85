"""
Public runs of fine-tuning, predicted as their rows stand: ``python -m benchmarks.finetune [--out PAGE]``.

It reads ``finetune_memory.csv`` and ``mlperf_v51_lora.csv`` of the shared folder. No constant is fitted to their rows,
so each publisher is left out of its own prediction.
"""

import argparse
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pandas as pd

from benchmarks.measured import measured_folder
from benchmarks.page import RESULTS, made_by, run_page
from pipette_opt.library.backtest import backtest

TABLES = ("finetune_memory.csv", "mlperf_v51_lora.csv")
"""Tables of public runs in the shared folder."""

SAFE = 0.1
"""Risk of running out of memory up to which a plan is called safe: the default of ``--max-oom-risk``."""


def predicted(path: Path) -> pd.DataFrame:
    """Return the rows of a table with the columns of their predictions."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "predictions.csv"
        backtest(path, out=out)
        found = pd.read_csv(out)
    table = pd.read_csv(path)
    return pd.concat([table, found[[name for name in found if name not in table]]], axis=1)


def make(_: argparse.Namespace) -> Iterator[str]:
    """Yield the page."""
    rows = pd.concat([predicted(measured_folder() / name) for name in TABLES], ignore_index=True)
    rows["method"] = rows["method"].fillna("lora")
    rows["framework"] = rows["framework"].fillna("MLPerf 5.1").str.partition(" ")[0]
    rows["peak"] = rows["predicted_peak_mem_gib"] / rows["peak_mem_gib"] - 1
    rows["time"] = rows["predicted_iter_time_s"] / rows["iter_time_s"] - 1
    yield "\n".join(
        [
            "# Fine-tuning",
            "",
            _answer(rows),
            "",
            *_table(rows[rows["peak"].notna()].assign(kind=rows["peak_kind"].fillna("not said")), "peak", "kind"),
            *_table(rows[rows["time"].notna()].assign(kind=rows["num_gpus"].astype("Int64")), "time", "kind", "GPUs"),
            *_boundaries(rows),
            "- A row counts as it stands; rows without GPU, length or micro-batch, and offloaded ones, are left out.",
            "- Lengths of unpacked rows are the longest sample's: such rows took less time than full sequences do.",
            "- litgpt's peaks in 4 bits are higher by about the inputs of all products, as if these were kept.",
            "- torchtune's recipes also chunk the loss and step in the backward pass, which columns do not say.",
            "- Stack: that of the row's framework; Hugging Face's trainers are priced by DeepSpeed's defaults.",
            f"- {made_by()}",
            "",
        ]
    )


def _answer(rows: pd.DataFrame) -> str:
    peaks, large = rows["peak"].dropna().abs(), rows[rows["framework"] == "MLPerf"]["time"].dropna().abs()
    count = rows["predicted_peak_mem_gib"].notna().sum()
    return (
        f"Of {len(rows)} public rows, {count} have a predicted peak. The median error of {len(peaks)} measured peaks "
        f"is {peaks.median():.0%}. {len(large)} runs of MLPerf 5.1 (LoRA of Llama-2-70B on 8 GPUs) are off by "
        f"{large.mean():.0%} on average."
    )


def _table(rows: pd.DataFrame, error: str, kind: str, title: str = "kind of peak") -> list[str]:
    lines = [f"| framework | method | {title} | rows | {error}: median error | predicted over measured, median |"]
    lines.append("|---|---|---|---|---|---|")
    for keys, group in rows.groupby(["framework", "method", kind], sort=True):
        names = " | ".join(map(str, keys))  # type: ignore[arg-type]
        errors = group[error]
        lines.append(f"| {names} | {len(group)} | {errors.abs().median():.0%} | {1 + errors.median():.2f} |")
    return [*lines, ""]


def _boundaries(rows: pd.DataFrame) -> list[str]:
    failed = rows[(rows["oom"].astype(str).isin(["1.0", "True"])) & rows["oom_probability"].notna()]
    ran = rows[(rows["oom"].astype(str).isin(["0.0", "False"])) & rows["oom_probability"].notna()]
    safe = failed[failed["oom_probability"] <= SAFE]
    return [
        f"Of {len(failed)} runs that ran out of memory, {len(safe)} are called safe (a risk of at most {SAFE:.0%}); of "
        f"{len(ran)} that ran, {(ran['oom_probability'] > 0.5).sum()} are called lost (a risk above 50 %).",
        "",
    ]


if __name__ == "__main__":
    run_page(make, out=RESULTS / "finetune.md")

"""
Public runs of fine-tuning, predicted as their rows stand: ``python -m benchmarks.finetune [--out PAGE]``.

It reads ``finetune_memory.csv`` and ``mlperf_v51_lora.csv`` of the shared folder. No constant is fitted to their rows,
so each publisher is left out of its own prediction.
"""

import argparse
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd

from benchmarks.measured import completed, measured_folder
from benchmarks.page import RESULTS, made_by, run_page
from pipette_opt.calibrate.cases import Case, Skipped, make_cases
from pipette_opt.calibrate.memory import memory_columns, memory_run
from pipette_opt.calibrate.memory_runs import predict_memory
from pipette_opt.calibrate.memory_spread import error_quantile
from pipette_opt.calibrate.predict import predict_runs
from pipette_opt.read.runs import MeasuredRun, read_rows
from pipette_opt.read.stack import read_stack
from pipette_opt.specs import StackSpec

TABLES = ("finetune_memory.csv", "mlperf_v51_lora.csv")
"""Tables of public runs in the shared folder."""

MLPERF = "MLPerf 5.1"
"""Name of the rows with a submitter."""

SAFE = 0.1
"""Risk of running out of memory up to which a plan is called safe: the default of ``--max-oom-risk``."""

TAIL = 0.05
"""Probability of a peak below, and of a peak above, an interval that has nine in ten."""

DESCRIBED = ("gpu", "method", "seq_len", "mbs")
"""Cells without which no row is predicted."""

SIZES = ("mbs", "seq_len")
"""Columns that a boundary is in: samples of a micro-batch, tokens of a sample."""

FEWEST = 3
"""Fewest timed runs of a source that are ranked."""


def predicted(path: Path, stack: StackSpec) -> pd.DataFrame:
    """Return a line for each row that can be read: the run, what was measured, and what is predicted of it."""
    runs, _ = read_rows(path)
    found = predict_runs(runs, stack, memory=partial(memory_columns, memory_constants=stack.memory))
    lines = []
    for run, case, prediction in zip(runs, make_cases(runs, stack), found, strict=True):
        peak = None if run.peak_mem_bytes is None else run.peak_mem_bytes / 2**30
        low, high = _interval(case)
        lines.append(
            {
                "run": run,
                "source": MLPERF if run.cells.get("submitter") else run.source,
                "submitter": run.cells.get("submitter", ""),
                "gpu": run.gpu_name,
                "framework": (run.cells.get("framework") or MLPERF).partition(" ")[0],
                "method": run.cells.get("method") or "lora",
                "kind": run.cells.get("peak_kind") or "not said",
                "GPUs": run.num_gpus,
                "precision": run.precision,
                "peak": peak,
                "predicted_gib": prediction.memory.get("predicted_peak_mem_gib"),
                "low": low,
                "high": high,
                "risk": prediction.memory.get("oom_probability"),
                "oom": run.oom,
                "seconds": prediction.measured_s,
                "predicted_s": prediction.iter_time_s,
            }
        )
    return pd.DataFrame(lines)


def _interval(case: Case | Skipped) -> tuple[float, float]:
    """Return the ends of the interval that has nine in ten peaks of runs like this, GiB; not numbers without a case."""
    if isinstance(case, Skipped):
        return np.nan, np.nan
    constants = case.instance.stack.memory
    memory = predict_memory(constants, memory_run(case))
    width = np.exp(error_quantile(constants, TAIL) * np.hypot(memory.shift * memory.taken_spread, memory.taken_unknown))
    return float(memory.taken_gib / width), float(memory.taken_gib * memory.more * width)


def make(_: argparse.Namespace) -> Iterator[str]:
    """Yield the page."""
    stack = read_stack()
    rows = pd.concat([predicted(measured_folder() / name, stack) for name in TABLES], ignore_index=True)
    rows["peak error"] = rows["predicted_gib"] / rows["peak"] - 1
    rows["time error"] = rows["predicted_s"] / rows["seconds"] - 1
    peaks, timed = rows[rows["peak error"].notna()], rows[rows["time error"].notna()]
    edges = boundaries([run for run in rows["run"] if not run.cells.get("submitter")], stack)
    yield "\n".join(
        [
            "# Fine-tuning",
            "",
            _answer(rows, peaks, timed),
            "",
            "| question | answer |",
            "|---|---|",
            *_answers(rows, peaks, timed, edges),
            "",
            *_edge_lines(edges),
            *_source_lines(timed),
            *_table(peaks, "peak error", "kind", "kind of peak"),
            *_table(timed, "time error", "GPUs", "GPUs"),
            "- A row counts as it stands, by the defaults of its framework; notes are not read.",
            "- Without packing, samples are shorter than the length that counts: these rows took less time.",
            "- Notes of torchtune's rows name compiled code and losses; a loss in 8 chunks counts for all of them.",
            "- Notes of ms-swift's rows name Liger kernels; an eager loss counts for all of them.",
            "- MLPerf: frozen weights in 16 bits and their fp8 copies are counted, more than most GPUs hold; no "
            "column says how they were stored.",
            "- Two rows of MLPerf name no precision and count as bf16: they are predicted 70 % too slow.",
            f"- {made_by()}",
            "",
        ]
    )


def _answer(rows: pd.DataFrame, peaks: pd.DataFrame, timed: pd.DataFrame) -> str:
    of_kind, others = (peaks[(peaks["kind"] == "not said") == silent]["peak error"].abs() for silent in (False, True))
    failed = rows[rows["oom"].eq(True) & rows["risk"].notna()]
    safe = int((failed["risk"] <= SAFE).sum())
    return (
        f"Peaks of public runs of fine-tuning are off by {of_kind.median():.0%} where the source says what it measured "
        f"(median of {len(of_kind)}), and by {others.median():.0%} where it does not ({len(others)}). Of {len(failed)} "
        f"runs that ran out of memory, {safe} are called safe. Seconds are off by "
        f"{timed['time error'].abs().median():.0%} (median of {len(timed)}), and by {after_one(timed).median():.0%} "
        "once one run of the source is known."
    )


def _answers(rows: pd.DataFrame, peaks: pd.DataFrame, timed: pd.DataFrame, edges: list["Boundary"]) -> Iterator[str]:
    cells = pd.read_csv(measured_folder() / TABLES[0], dtype=str)
    described = int(cells[list(DESCRIBED)].notna().all(axis=1).sum())
    found = rows[rows["predicted_gib"].notna() & rows["submitter"].eq("")]
    yield f"| rows with {', '.join(DESCRIBED)}: with a predicted peak | {len(found)} of {described} |"
    inside = (peaks["peak"] >= peaks["low"]) & (peaks["peak"] <= peaks["high"])
    width = ((peaks["high"] / peaks["low"]) ** 0.5).median()
    yield f"| peaks inside the interval for nine in ten | {_share(inside)}; it is a factor {width:.1f} either way |"
    off = np.array([abs(edge.error) for edge in edges])
    yield (
        f"| boundaries (below) within 15 % | {int((off <= 0.15).sum())} of {len(off)}, largest error {off.max():.0%} |"
    )
    ran = rows[rows["oom"].eq(False) & rows["risk"].notna()]
    lost, large = ran["risk"] > 0.5, ran["submitter"].ne("")
    yield (
        f"| runs that ran, called lost (a risk above 50 %) | {int(lost[~large].sum())} of {int((~large).sum())}; of "
        f"MLPerf {int(lost[large].sum())} of {int(large.sum())} |"
    )
    of_mlperf = timed[timed["submitter"].ne("")]
    moved, named = (other_gpus(group) for group in (of_mlperf, of_mlperf[of_mlperf["precision"].ne("")]))
    yield (
        f"| MLPerf 5.1, LoRA of Llama-2-70B on 8 GPUs: mean error of seconds | "
        f"{of_mlperf['time error'].abs().mean():.0%} of {len(of_mlperf)} |"
    )
    yield (
        f"| the same after a run of the submitter on another type of GPU | {moved.mean():.0%} of {len(moved)}; "
        f"{named.mean():.0%} of {len(named)} that name their precision |"
    )


def _share(holds: pd.Series) -> str:
    return f"{int(holds.sum())} of {len(holds)} ({holds.mean():.0%})"


def _source_lines(timed: pd.DataFrame) -> Iterator[str]:
    yield "| source | timed | seconds: rank (Spearman) | median error | once one run of the source is known |"
    yield "|---|---|---|---|---|"
    for name, rank, group in ranked(timed):
        errors = group["time error"].abs().median(), after_one(group).median()
        yield f"| {name} | {len(group)} | {rank:.2f} | {errors[0]:.0%} | {errors[1]:.0%} |"
    yield ""


def ranked(timed: pd.DataFrame) -> Iterator[tuple[str, float, pd.DataFrame]]:
    """Yield each source with enough timed runs: its name, the rank correlation of its seconds, and its rows."""
    for name, group in timed.groupby("source", sort=True):
        if len(group) >= FEWEST:
            yield str(name), float(group["seconds"].corr(group["predicted_s"], method="spearman")), group


def after_one(timed: pd.DataFrame) -> pd.Series:
    """Return the errors of seconds, each scaled by another run of its source, every other in turn."""
    return _scaled(timed, lambda run, other: bool(run["source"] == other["source"]))


def other_gpus(timed: pd.DataFrame) -> pd.Series:
    """Return the error of each run, a mean over the runs of its submitter on other types of GPU that scale it."""

    def is_other(run: pd.Series, other: pd.Series) -> bool:
        return bool(run["submitter"] == other["submitter"] and run["gpu"] != other["gpu"])

    return _scaled(timed, is_other).groupby(level=0).mean()


def _scaled(timed: pd.DataFrame, may_scale: Callable[[pd.Series, pd.Series], bool]) -> pd.Series:
    """Return absolute errors by run, scaled by each other run that may scale it."""
    runs = [run for _, run in timed.iterrows()]
    errors = [
        (number, abs((1 + run["time error"]) / (1 + other["time error"]) - 1))
        for number, run in enumerate(runs)
        for place, other in enumerate(runs)
        if place != number and may_scale(run, other)
    ]
    return pd.Series([error for _, error in errors], index=[number for number, _ in errors], dtype=float)


class Boundary(NamedTuple):
    """
    Sizes of a source's rows that differ in nothing else, one of which ran and one of which did not.

    Parameters
    ----------
    column
        Column of the size, of ``SIZES``.
    ran, failed
        Largest size that ran, and smallest that ran out of memory.
    fits
        Largest size with a predicted risk of at most a half.
    """

    run: MeasuredRun
    column: str
    ran: int
    failed: int
    fits: int

    @property
    def error(self) -> float:
        """Predicted over measured largest size, minus one; 0 between what ran and what did not."""
        if self.fits < self.ran:
            return self.fits / self.ran - 1
        return max(self.fits / (self.failed - 1) - 1, 0.0)


def boundaries(runs: list[MeasuredRun], stack: StackSpec) -> list[Boundary]:
    """Return the boundaries among the runs of a table."""
    found = []
    for column in SIZES:
        measured = (*SIZES, "gbs", "iter_time_s", "tokens_per_s_per_gpu", "peak_mem_gib", "peak_kind", "oom", "notes")
        rest = [name for name in (column, *measured) if name not in SIZES or name == column]
        groups: dict[tuple[tuple[str, str], ...], list[MeasuredRun]] = {}
        for run in runs:
            if _is_described(run):
                key = tuple(sorted((name, cell) for name, cell in run.cells.items() if name not in rest))
                groups.setdefault(key, []).append(run)
        for group in groups.values():
            ran = [_size(run, column) for run in group if run.oom is False]
            failed = [_size(run, column) for run in group if run.oom]
            if ran and failed and max(ran) < min(failed):
                fits = _largest(group[0], column, 64 * min(failed), stack)
                found.append(Boundary(group[0], column, max(ran), min(failed), fits))
    return found


def _is_described(run: MeasuredRun) -> bool:
    return all(run.cells.get(name) for name in DESCRIBED)


def _size(run: MeasuredRun, column: str) -> int:
    return int(float(run.cells[column]))


def _largest(run: MeasuredRun, column: str, limit: int, stack: StackSpec) -> int:
    """Return the largest size of a run, 0 to ``limit``, that is predicted to fit rather than not."""
    low, high = 0, limit
    while low < high:
        size = (low + high + 1) // 2
        replicas = int(float(run.cells["gbs"])) // _size(run, "mbs")
        batch = {"gbs": str(size * replicas)} if column == "mbs" else {}
        other = completed(run, {column: str(size), "iter_time_s": "", "tokens_per_s_per_gpu": "", **batch})
        columns = memory_columns(make_cases([other], stack)[0], stack.memory)
        low, high = (size, high) if columns["oom_probability"] <= 0.5 else (low, size - 1)
    return low


def _edge_lines(edges: list[Boundary]) -> Iterator[str]:
    yield "| boundary | size | ran | ran out | predicted largest |"
    yield "|---|---|---|---|---|"
    for edge in edges:
        cells = edge.run.cells
        name = f"{cells['framework']}, {cells['method']} of {edge.run.model}, {edge.run.num_gpus} {edge.run.gpu_name}"
        yield f"| {name} | {edge.column} | {edge.ran} | {edge.failed} | {edge.fits} |"
    yield ""


def _table(rows: pd.DataFrame, error: str, kind: str, title: str) -> Iterator[str]:
    yield f"| framework | method | {title} | rows | {error}: median | predicted over measured, median |"
    yield "|---|---|---|---|---|---|"
    for keys, group in rows.groupby(["framework", "method", kind], sort=True):
        names, errors = " | ".join(map(str, keys)), group[error]
        yield f"| {names} | {len(group)} | {errors.abs().median():.0%} | {1 + errors.median():.2f} |"
    yield ""


if __name__ == "__main__":
    run_page(make, out=RESULTS / "finetune.md")

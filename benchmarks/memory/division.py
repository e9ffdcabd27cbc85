"""
Division of a memory peak between formula and network: errors where the formula counts less and the network more.

``python -m benchmarks.memory.division`` trains a network for each division and prints three tables: traces that no
network has seen, by number of training traces; kinds of stages left out of the training; and peaks that Megatron-LM and
SimuMax measured. With ``-o benchmarks/results/memory-division.md`` it writes the page.
"""

import datetime
import os
import platform
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Annotated

import numpy as np
import pandas as pd
import typer

from benchmarks.backtest.sources import measured_runs
from benchmarks.measured import measured_folder
from benchmarks.memory.parts import SOURCES
from benchmarks.memory.stacks import STACKS, log_ratios
from models.memory.dataset import TRACES
from models.memory.fit import Dataset, FitParams, Traces, load_traces, split_rows, train_network
from models.memory.progress import shown_progress
from pipette_opt.base.files import write_atomically
from pipette_opt.base.types import BoolArray, FloatArray, IntArray
from pipette_opt.calibrate.cases import Case, make_cases
from pipette_opt.calibrate.memory import memory_run, shipped_predictor
from pipette_opt.cli.output import answer, check_place
from pipette_opt.cli.program import run_command
from pipette_opt.memory.features import table_features
from pipette_opt.memory.formula import FormulaBytes, formula_bytes
from pipette_opt.memory.predictor import MemoryPredictor
from pipette_opt.memory.stage_rows import StageTable, join_tables
from pipette_opt.read.stack import read_stack

Correction = Callable[[StageTable, FormulaBytes], FloatArray]
"""Trained network: ``log(peak / formula)`` of every row of a table."""

Row = dict[str, str]
"""Row of a table: text by column."""

TRAIN_SIZES = (600, 1200, 2400)
"""Numbers of training traces in the learning curve; the shipped network has the last. Chosen."""

LEFT_OUT = (
    ("layers with experts", "family", ("moe",)),
    ("uniform recomputation", "recompute", ("full uniform",)),
    ("a split context", "context", ("split",)),
    ("fp8 products", "products", ("fp8",)),
)
"""Kinds of stages that are left out of the training: name, column of ``Traces.slices``, values."""

MEASURED = (*SOURCES, ("Megatron-LM's tests", *STACKS["Megatron-LM's tests, H100"]))
"""Name, file and row filter of measured peaks whose tensors are Megatron-Core's."""


EXPLANATION = (
    "long: all terms, as shipped. held: without the working memory of a pass or step. short: weights, gradients, "
    "optimizer states and activations kept for micro-batches in flight. Traces have neither latent attention nor "
    "recurrent layers nor multi-token prediction: the long formula counts them. Measured peaks: nothing is fitted to "
    "them. Each network has the shipped network's features and was trained once."
)
"""Explanation of the tables."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Division:
    """
    Formula, and the network that corrects it.

    Parameters
    ----------
    formula
        Name: long (as shipped), held (without working memory), short (weights, gradients, states, kept activations).
    count
        Function from all terms to the bytes that this formula counts.
    """

    formula: str
    count: Callable[[FormulaBytes], FloatArray]

    @property
    def label(self) -> Row:
        """Names of formula and network."""
        return {"formula": self.formula, "network": f"MLP {', '.join(map(str, FitParams().hidden))}"}

    def bytes_of(self, formula: FormulaBytes) -> FloatArray:
        """Return the bytes that the formula counts, at least 1, shape ``(num_rows,)``."""
        return np.maximum(self.count(formula), 1.0)


def _short(formula: FormulaBytes) -> FloatArray:
    return formula.static + formula.saved


LONG = Division(formula="long", count=lambda formula: formula.total)
SHORT = Division(formula="short", count=_short)
DIVISIONS = (LONG, Division(formula="held", count=lambda formula: formula.held), SHORT)
"""Divisions from the longest formula to the shortest."""


def train(division: Division, traces: Traces, rows: IntArray, params: FitParams | None = None) -> Correction:
    """Return the network of a division, trained on some rows of the traces."""
    formula = formula_bytes(traces.table)
    features = table_features(traces.table, formula)
    dataset = Dataset(features=features, formula=division.bytes_of(formula), peak=traces.peak, slices=traces.slices)
    network = train_network(dataset, rows, params or FitParams())
    return lambda table, terms: network.log_ratio(table_features(table, terms))


def errors_percent(
    division: Division, traces: Traces, rows: IntArray, correction: Correction | None = None
) -> FloatArray:
    """Return the absolute errors of some rows, percent of the peak; without ``correction``, those of the formula."""
    formula = formula_bytes(traces.table)
    predicted = division.bytes_of(formula)
    if correction is not None:
        predicted = predicted * np.exp(correction(traces.table, formula))
    errors: FloatArray = np.abs(predicted / traces.peak - 1)[rows] * 100
    return errors


def unseen_row(division: Division, traces: Traces, rows: IntArray, unseen: IntArray, correction: Correction) -> Row:
    """Return the errors on unseen traces, of the formula alone and with a network that was trained on ``rows``."""
    alone, corrected = (_summary(errors_percent(division, traces, unseen, each)) for each in (None, correction))
    return {**division.label, "training traces": str(len(rows))} | (
        _columns("formula alone", alone) | _columns("with network", corrected)
    )


def left_out_row(
    division: Division, traces: Traces, kind: tuple[str, str, tuple[str, ...]], params: FitParams | None = None
) -> Row:
    """Return the errors on a kind of stages, for a network trained on all other stages."""
    name, column, values = kind
    is_left_out = traces.slices[column].isin(values).to_numpy()
    correction = train(division, traces, np.flatnonzero(~is_left_out), params)
    alone, corrected = (
        _summary(errors_percent(division, traces, np.flatnonzero(is_left_out), each)) for each in (None, correction)
    )
    return {"left out": name, "traces": str(int(is_left_out.sum())), **division.label} | (
        _columns("formula alone", alone) | _columns("with network", corrected)
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class DividedPredictor(MemoryPredictor):
    """Memory predictor with another division of the counted tensors, and the shipped constants."""

    division: Division
    correction: Correction | None

    def _counted(self, table: StageTable, formula: FormulaBytes) -> tuple[FloatArray, BoolArray]:
        counted = self.division.bytes_of(formula)
        if self.correction is not None:
            counted = counted * np.exp(self.correction(table, formula))
        return counted, np.zeros(table.num_rows, dtype=bool)


def measured_row(name: str, cases: Sequence[Case], division: Division, correction: Correction) -> Row:
    """Return the errors on measured peaks, with nothing fitted to them."""
    shipped = shipped_predictor()
    row = {"measured": name, "peaks": str(len(cases)), **division.label}
    for title, each in (("formula alone", None), ("with network", correction)):
        predictor = DividedPredictor(
            network=shipped.network, memory_constants=shipped.memory_constants, division=division, correction=each
        )
        ratios = log_ratios([memory_run(case, predictor) for case in cases])
        row |= _columns(title, _summary(np.abs(np.expm1(-ratios)) * 100))
    return row


def measured_cases(folder: Path) -> dict[str, list[Case]]:
    """Return the measured peaks of ``MEASURED`` by name, from the files that exist."""
    found = {}
    for name, file, choose in MEASURED:
        if (folder / file).is_file():
            runs = [run for run in measured_runs(folder / file) if choose(run) and run.peak_mem_bytes is not None]
            found[name] = [case for case in make_cases(runs, read_stack()) if isinstance(case, Case)]
    return found


def _summary(errors: FloatArray) -> FloatArray:
    """Return mean, 99th percentile and maximum."""
    return np.array([errors.mean(), np.quantile(errors, 0.99), errors.max()])


def _columns(title: str, errors: FloatArray) -> Row:
    names = ("mean", "p99", "max")
    return {f"{title}: {name}": f"{error:.3g} %" for name, error in zip(names, errors, strict=True)}


def joined(traces: Sequence[Traces]) -> Traces:
    """Return the points of several sets of traces as one set, in order."""
    return Traces(
        table=join_tables([each.table for each in traces]),
        peak=np.concatenate([each.peak for each in traces]),
        slices=pd.concat([each.slices for each in traces], ignore_index=True),
    )


def divide(
    more: Annotated[Path | None, typer.Option(help="Further traces, from which networks only learn.")] = None,
    out: Annotated[Path | None, typer.Option("-o", "--out", help="File for the page with all tables.")] = None,
) -> None:
    """
    Divide the memory peak between formula and network in several ways, and compare the errors (half an hour).

    Example: [bold]python -m benchmarks.memory.division[/]
    """
    check_place(out)
    shipped = load_traces(TRACES)
    traces = joined([shipped, load_traces(more)]) if more else shipped
    known, unseen = split_rows(len(shipped.peak), FitParams())
    sizes = [known[:size] for size in TRAIN_SIZES]
    if more:
        sizes.append(np.concatenate([known, np.arange(len(shipped.peak), len(traces.peak))]))
    folder = measured_folder()
    cases = measured_cases(folder) if folder.is_dir() else {}
    tables: dict[str, list[Row]] = {"Unseen traces": [], "Kinds left out": [], "Measured peaks": []}
    work = [(division, rows) for division in (LONG, SHORT) for rows in sizes[:-1]]
    work += [(division, sizes[-1]) for division in DIVISIONS]
    with shown_progress("trained networks") as report:
        for done, (division, rows) in enumerate(work, start=1):
            correction = train(division, traces, rows)
            tables["Unseen traces"].append(unseen_row(division, traces, rows, unseen, correction))
            if rows is sizes[-1]:
                tables["Measured peaks"] += [
                    measured_row(name, runs, division, correction) for name, runs in cases.items()
                ]
            report(done, len(work) + len(LEFT_OUT) * 2)
        for done, (kind, division) in enumerate(product(LEFT_OUT, (LONG, SHORT)), start=1 + len(work)):
            tables["Kinds left out"].append(left_out_row(division, traces, kind))
            report(done, len(work) + len(LEFT_OUT) * 2)
    page = "\n".join(f"## {title}\n\n{_table(rows)}\n" for title, rows in tables.items() if rows)
    if out is None:
        answer(page)
        return
    where = (
        f"{datetime.date.today()}, Python {platform.python_version()}, {os.cpu_count()} cores of {platform.machine()}"
    )
    command = f"python -m benchmarks.memory.division{' --more TRACES' if more else ''} -o PAGE"
    head = f"# Memory: formula and network divided\n\n{_answer(tables)}\n{where}: `{command}`.\n\n{EXPLANATION}"
    write_atomically(out, f"{head}\n\n{page}")
    answer(f"wrote {out}")


def _answer(tables: Mapping[str, Sequence[Row]]) -> str:
    """Return the comparison of the short division with the long one in three lines."""

    def pair(title: str, column: str, **wanted: str) -> str:
        found = []
        for division in (SHORT, LONG):
            named = division.label | wanted
            rows = [row for row in tables[title] if all(row[name] == value for name, value in named.items())]
            found.append(rows[-1][f"with network: {column}"] if rows else "unknown")
        return f"{found[0]} ({found[1]} with the long formula)"

    left_out = LEFT_OUT[0][0]
    return (
        f"- Unseen traces, short formula with a network: {pair('Unseen traces', 'mean')} off in the mean, "
        f"{pair('Unseen traces', 'p99')} at p99.\n"
        f"- SimuMax's measured peaks: {pair('Measured peaks', 'mean', measured='SimuMax')} off in the mean.\n"
        f"- With {left_out} left out of the training, p99 on them: "
        f"{pair('Kinds left out', 'p99', **{'left out': left_out})}.\n"
    )


def _table(rows: Sequence[Row]) -> str:
    lines = [list(rows[0]), ["---"] * len(rows[0]), *(list(row.values()) for row in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


if __name__ == "__main__":
    run_command(divide)

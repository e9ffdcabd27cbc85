"""Division of a peak between formula and network, on stages whose peak is that of the long formula."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from benchmarks.memory.division import (
    LEFT_OUT,
    LONG,
    SHORT,
    errors_percent,
    left_out_row,
    measured_cases,
    train,
    unseen_row,
)
from models.memory.fit import FitParams, Traces
from models.memory.sample import sample_point
from pipette_opt.memory.formula import formula_bytes
from pipette_opt.memory.stage_rows import join_tables
from pipette_opt.memory.table import stage_table

pytest.importorskip("torch")
pytestmark = pytest.mark.search

NUM_POINTS = 30
QUICK = FitParams(steps=150)


@pytest.fixture(scope="module")
def traces() -> Traces:
    """Return random stages whose peak is that of the long formula; one in three is of the family moe."""
    points = [sample_point(0, index) for index in range(NUM_POINTS)]
    tables = [stage_table(each.model, each.training, [each.config], stage=each.stage) for each in points]
    table = join_tables(tables)
    slices = pd.DataFrame({"family": [("gpt", "llama", "moe")[index % 3] for index in range(NUM_POINTS)]})
    return Traces(table=table, peak=formula_bytes(table).total, slices=slices)


def test_formulas_alone(traces: Traces) -> None:
    """The long formula is exact here; the short formula lacks the working memory."""
    rows = np.arange(NUM_POINTS)
    assert errors_percent(LONG, traces, rows).max() == pytest.approx(0.0, abs=1e-9)
    assert errors_percent(SHORT, traces, rows).mean() > 5


def test_networks_learn_working_memory(traces: Traces) -> None:
    """A few steps of training remove most of the error of the short formula on the stages that were seen."""
    rows = np.arange(NUM_POINTS)
    correction = train(SHORT, traces, rows, QUICK)
    assert errors_percent(SHORT, traces, rows, correction).mean() < errors_percent(SHORT, traces, rows).mean() / 2


def test_rows_name_division_and_errors(traces: Traces) -> None:
    """Rows say what was trained on how many traces, and the error of the formula alone."""
    rows = np.arange(20)
    row = unseen_row(SHORT, traces, rows, np.arange(20, NUM_POINTS), train(SHORT, traces, rows, QUICK))
    assert (row["formula"], row["network"], row["training traces"]) == ("short", "MLP 24, 24", "20")
    kind = left_out_row(SHORT, traces, LEFT_OUT[0], QUICK)
    assert (kind["left out"], kind["traces"]) == ("layers with experts", "10")
    assert float(kind["formula alone: mean"].removesuffix(" %")) > 0


def test_no_measured_runs(tmp_path: Path) -> None:
    """A folder without measured runs gives no rows."""
    assert measured_cases(tmp_path) == {}

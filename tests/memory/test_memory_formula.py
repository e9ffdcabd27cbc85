"""The closed formula and the features against traces."""

import numpy as np
import pytest

from pipette_opt.memory.features import FEATURE_NAMES, FEATURES, features, table_features
from pipette_opt.memory.formula import formula_bytes, parameters
from pipette_opt.memory.sample import Point, sample_point
from pipette_opt.memory.table import StageTable, join_tables, stage_table
from pipette_opt.memory.trace import StageTrace, trace_stage

POINTS = [sample_point(99, index) for index in range(16)]


@pytest.fixture(scope="module")
def traces() -> list[StageTrace]:
    """Traces of the points."""
    return [trace_stage(point.model, point.training, point.config, point.stage) for point in POINTS]


def table_of(points: list[Point]) -> StageTable:
    """Rows of the points."""
    return join_tables([stage_table(p.model, p.training, [p.config], stage=p.stage) for p in points])


def test_static_terms_are_exact(traces: list[StageTrace]) -> None:
    """Parameters agree to the last one, static bytes up to the rounding of storages."""
    table = table_of(POINTS)
    formula = formula_bytes(table)
    wanted = np.array([trace.num_parameters for trace in traces])
    np.testing.assert_array_equal(parameters(table), wanted)
    np.testing.assert_allclose(formula.static, [trace.static_bytes for trace in traces], rtol=2e-3)


def test_formula_is_close_to_the_trace(traces: list[StageTrace]) -> None:
    """On random points of every kind the formula is within 20 %, and within 2 % on average."""
    total = formula_bytes(table_of(POINTS)).total
    error = np.abs(np.log(total / [trace.peak_bytes for trace in traces]))
    assert error.max() < 0.2
    assert error.mean() < 0.02


def test_features_of_one_stage_are_the_row_of_the_table() -> None:
    """Asking for one stage, or for all at once, gives the same numbers, all finite."""
    for point in POINTS[:10]:
        microbatches = point.config.num_microbatches(point.training.global_batch_size)
        one = features(point.model, point.training, point.config, point.stage, microbatches)
        table = stage_table(point.model, point.training, [point.config])
        rows = table_features(table, formula_bytes(table))
        assert rows.shape == (point.config.pipeline_model_parallel_size, len(FEATURES))
        np.testing.assert_array_equal(rows[point.stage], one)
        assert np.isfinite(one).all()


def test_feature_names_are_distinct() -> None:
    """One name, one unit each."""
    assert len(set(FEATURE_NAMES)) == len(FEATURES)
    assert all(name and unit for name, unit in FEATURES)


def test_shares_add_up() -> None:
    """Static, workspace, saved, the larger of recomputed and head, and working make the whole."""
    formula = formula_bytes(table_of(POINTS))
    assert (formula.working >= 0).all()
    np.testing.assert_allclose(formula.total, formula.held + formula.working)

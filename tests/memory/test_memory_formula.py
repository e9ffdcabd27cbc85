"""The closed formula and the features against traces."""

from dataclasses import replace

import numpy as np
import pytest
from factories import LLAMA_8B, make_config

from models.memory.files import join_tables
from models.memory.sample import Point, sample_point
from models.memory.trace import StageTrace, trace_stage
from pipette_opt.base.types import RecomputeGranularity
from pipette_opt.memory.features import FEATURE_NAMES, FEATURES, table_features
from pipette_opt.memory.formula import formula_bytes, parameters
from pipette_opt.memory.stage_rows import StageTable
from pipette_opt.memory.table import stage_table
from pipette_opt.specs import TrainingSpec

EXPERTS = {"num_experts": 4, "moe_ffn_hidden_size": 1024}
POINTS = [sample_point(99, index) for index in range(16)]


@pytest.fixture(scope="module")
def traces() -> list[StageTrace]:
    """Traces of the points."""
    return [trace_stage(point.model, point.training, point.config, point.stage) for point in POINTS]


def table_of(points: list[Point]) -> StageTable:
    """Rows of the points."""
    return join_tables([stage_table(p.model, p.training, [p.config], stage=p.stage) for p in points])


@pytest.mark.search
def test_static_terms_are_exact(traces: list[StageTrace]) -> None:
    """Parameters agree to the last one, static bytes up to the rounding of storages."""
    table = table_of(POINTS)
    formula = formula_bytes(table)
    wanted = np.array([trace.num_parameters for trace in traces])
    np.testing.assert_array_equal(parameters(table), wanted)
    np.testing.assert_allclose(formula.static, [trace.static_bytes for trace in traces], rtol=2e-3)


@pytest.mark.search
def test_formula_is_close_to_the_trace(traces: list[StageTrace]) -> None:
    """On random points of every kind the formula is within 20 %, and within 2 % on average."""
    total = formula_bytes(table_of(POINTS)).total
    error = np.abs(np.log(total / [trace.peak_bytes for trace in traces]))
    assert error.max() < 0.2
    assert error.mean() < 0.02


def test_features_of_one_stage_are_the_row_of_the_table() -> None:
    """A table of one stage, or of all at once, gives the same numbers, all finite."""
    for point in POINTS[:10]:
        microbatches = point.config.num_microbatches(point.training.global_batch_size)
        alone = stage_table(
            point.model, point.training, [point.config], stage=point.stage, num_microbatches=microbatches
        )
        one = table_features(alone, formula_bytes(alone))[0]
        table = stage_table(point.model, point.training, [point.config])
        rows = table_features(table, formula_bytes(table))
        assert rows.shape == (point.config.pipeline_model_parallel_size, len(FEATURES))
        np.testing.assert_array_equal(rows[point.stage], one)
        assert np.isfinite(one).all()


def test_feature_names_are_distinct() -> None:
    """One name, one unit each."""
    assert len(set(FEATURE_NAMES)) == len(FEATURES)
    assert all(name and unit for name, unit in FEATURES)


@pytest.mark.search
@pytest.mark.parametrize(
    ("options", "layers", "chunks"),
    [
        ({}, (3, 4, 4, 3), 2),
        (EXPERTS, (1, 2, 2, 1), 2),
        (EXPERTS, (7, 8), 4),
        ({}, (3, 3), 4),
    ],
)
@pytest.mark.parametrize("recompute", [None, "selective", "full"])
def test_chunks_with_a_layer_less(
    layers: tuple[int, ...], chunks: int, recompute: RecomputeGranularity | None, options: dict[str, int]
) -> None:
    """Embedding or head in the place of a layer, also of the only one: exact states, peaks within half a percent."""
    model = replace(LLAMA_8B, num_layers=sum(layers), **options)  # type: ignore[arg-type]
    job = TrainingSpec(global_batch_size=32, seq_length=2048)
    chosen = make_config(
        tp=2,
        pp=len(layers),
        mbs=4,
        layers_per_stage=layers,
        virtual_pipeline_model_parallel_size=chunks,
        recompute_granularity=recompute,
        sequence_parallel=True,
    )
    table = stage_table(model, job, [chosen])
    traces = [trace_stage(model, job, chosen, stage) for stage in range(len(layers))]
    np.testing.assert_array_equal(parameters(table), [trace.num_parameters for trace in traces])
    formula = formula_bytes(table)
    np.testing.assert_allclose(formula.static, [trace.static_bytes for trace in traces], rtol=1e-4)
    np.testing.assert_allclose(formula.total, [trace.peak_bytes for trace in traces], rtol=0.005)


def test_shares_add_up() -> None:
    """Static, workspace, saved, the larger of recomputed and head, and working make the whole."""
    formula = formula_bytes(table_of(POINTS))
    assert (formula.working >= 0).all()
    np.testing.assert_allclose(formula.total, formula.held + formula.working)

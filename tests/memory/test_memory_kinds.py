"""Memory of stages whose layers are of several kinds, by hand."""

from dataclasses import replace

import numpy as np
import pytest
from factories import TINY, make_config

from pipette_opt.costs.stage import stage_parameters
from pipette_opt.memory.formula import formula_bytes, parameters
from pipette_opt.memory.stage_rows import StageTable
from pipette_opt.memory.table import stage_table
from pipette_opt.read.model import read_model
from pipette_opt.specs import Mamba, ModelSpec, TrainingSpec

TRAINING = TrainingSpec(global_batch_size=8, seq_length=512)
PLAIN = replace(
    TINY,
    normalization="RMSNorm",
    add_bias_linear=False,
    add_qkv_bias=False,
    position_embedding_type="none",
    hidden_dropout=0.0,
    attention_dropout=0.0,
)
SIZES = Mamba(num_heads=32, head_dim=64, num_groups=8, state_dim=128)


def rows(model: ModelSpec, **options: object) -> StageTable:
    """One row for each stage."""
    return stage_table(model, TRAINING, [make_config(num_layers=model.num_layers, **options)], num_microbatches=4)


def hybrid(pattern: str) -> ModelSpec:
    """A hybrid with the sizes of the tiny model."""
    return replace(
        PLAIN, num_layers=len(pattern), hybrid_layer_pattern=pattern, mamba=SIZES if "M" in pattern else None
    )


@pytest.mark.parametrize(
    "model",
    [
        *(read_model(name) for name in ("nemotron-h-8b", "nemotron-3-nano-30b-a3b", "qwen3-next-80b-a3b")),
        *(read_model(name) for name in ("gpt-oss-20b", "llama-4-scout", "llama-4-maverick")),
    ],
    ids=lambda model: model.name,
)
def test_weights_are_those_that_times_count(model: ModelSpec) -> None:
    """Of every stage, with two tensor ranks and experts on four: both sides count the same parameters."""
    options = {"tp": 2, "pp": 4, "dp": 4, "num_layers": model.num_layers, "sequence_parallel": True}
    chosen = make_config(**options, expert_model_parallel_size=4 if model.num_experts else 1)
    table = stage_table(model, TRAINING, [chosen], num_microbatches=4)
    counted = stage_parameters(model, chosen).total
    np.testing.assert_allclose(parameters(table), counted, rtol=1e-12)


def test_branches_add_up() -> None:
    """Attention and an MLP apart keep what a layer of both keeps, and hold the same weights."""
    both, apart = formula_bytes(rows(replace(PLAIN, num_layers=1))), formula_bytes(rows(hybrid("*-")))
    assert both.saved[0] == apart.saved[0]
    assert both.static[0] == apart.static[0]
    mixed = formula_bytes(rows(hybrid("M*-"))).saved[0]
    assert mixed == apart.saved[0] + formula_bytes(rows(hybrid("M"))).saved[0]


def test_full_recomputation_brings_back_one_branch() -> None:
    """Every layer keeps its input; the one at work brings back the larger of its branches, not all of them."""
    again = {"recompute_granularity": "full", "recompute_method": "uniform", "recompute_num_layers": 1}
    formula = formula_bytes(rows(hybrid("M-"), **again))
    assert formula.saved[0] == 2 * 512 * PLAIN.hidden_size * 2
    alone = [formula_bytes(rows(hybrid(pattern))).saved[0] for pattern in ("M", "--", "-")]
    assert formula.recomputed[0] == max(alone[0], alone[2])


@pytest.mark.parametrize("pattern", ["M*--", "MMMM", "M-*-", "****"])
def test_full_recomputation_brings_back_the_largest_layers(pattern: str) -> None:
    """Four layers at once are the four largest of the chunk, each kind as often as the chunk has it."""
    again = {"recompute_granularity": "full", "recompute_method": "uniform", "recompute_num_layers": 4}
    formula = formula_bytes(rows(hybrid(2 * pattern), **again))
    of_kind = {kind: formula_bytes(rows(hybrid(kind))).saved[0] for kind in "M*-"}
    sizes = sorted((of_kind[kind] for kind in 2 * pattern), reverse=True)
    assert formula.recomputed[0] == sum(sizes[:4])


def test_only_layers_of_the_stage_work() -> None:
    """Scores take no working memory on a stage without attention, and as much as in a model of attention on others."""
    unfused = replace(TRAINING, attention_kernel="unfused")
    config = make_config(num_layers=4, pp=2)
    mixed, attention, mamba = (
        formula_bytes(stage_table(hybrid(pattern), unfused, [config])).layer_work.tolist()
        for pattern in ("--**", "****", "MMMM")
    )
    assert mixed[1] == attention[1] > 2 * mixed[0]
    assert mamba[0] < attention[0]


def test_experts_in_every_second_layer() -> None:
    """A stage keeps what its own layers keep; with block recomputation those of the last layers of its chunk."""
    mixture = replace(PLAIN, num_layers=8, num_experts=8, moe_ffn_hidden_size=512, moe_layer_freq=(0, 1) * 4)
    dense, experts = (
        formula_bytes(rows(one)).saved[0]
        for one in (
            replace(PLAIN, num_layers=1),
            replace(mixture, num_layers=1, moe_layer_freq=None, num_dense_layers=0),
        )
    )
    stages = formula_bytes(rows(mixture, pp=2, layers_per_stage=(3, 5)))
    assert stages.saved.tolist() == [2 * (2 * dense + experts), 2 * dense + 3 * experts]
    block = {"recompute_granularity": "full", "recompute_method": "block", "recompute_num_layers": 2}
    kept = formula_bytes(rows(mixture, pp=2, layers_per_stage=(3, 5), **block)).saved
    inputs = 2 * 512 * PLAIN.hidden_size * 2
    # Of the first stage's layers D E D the last is kept, of the second's E D E D E the last three.
    assert kept.tolist() == [2 * (inputs + dense), inputs + dense + 2 * experts]

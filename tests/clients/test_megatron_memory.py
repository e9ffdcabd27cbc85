"""A rank of megatron-core's own model, run without a GPU, takes what the formula counts."""

from dataclasses import replace

import pytest
from clients_here import require_megatron_release
from factories import LLAMA_8B, make_config
from megatron_rank import measure_rank

from pipette_opt.memory.formula import formula_bytes
from pipette_opt.memory.table import stage_table
from pipette_opt.parallel import ParallelConfig
from pipette_opt.specs import ModelSpec, TrainingSpec

require_megatron_release()

pytestmark = [
    pytest.mark.client("megatron.core"),
    # What megatron-core says on import without Transformer Engine and Apex, and torch about its use of torch.jit.
    pytest.mark.filterwarnings("ignore"),
]

SMALL = replace(LLAMA_8B, num_layers=4)
GPT = replace(
    SMALL,
    gated_linear_unit=False,
    add_bias_linear=True,
    add_qkv_bias=True,
    normalization="LayerNorm",
)
JOB = TrainingSpec(global_batch_size=16, seq_length=2048)
SHARDED = make_config(2, 2, 2, 1, 4, sequence_parallel=True, use_distributed_optimizer=True)


@pytest.mark.parametrize(
    ("model", "chosen", "stage"),
    [
        (SMALL, make_config(1, 1, 1, 1, 4), 0),
        (SMALL, make_config(2, 1, 1, 2, 4), 0),
        (SMALL, make_config(2, 2, 1, 1, 4, sequence_parallel=True), 0),
        (SMALL, SHARDED, 1),
        (SMALL, make_config(1, 2, 1, 1, layers_per_stage=(3, 1)), 0),
        (GPT, make_config(2, 1, 1, 1, 4, sequence_parallel=True), 0),
    ],
)
def test_megatron_takes_what_the_formula_counts(model: ModelSpec, chosen: ParallelConfig, stage: int) -> None:
    """Megatron-core's modules, without the placeholders that Transformer Engine keeps: within half a percent."""
    formula = formula_bytes(stage_table(model, JOB, [chosen]))
    counted = float((formula.total - formula.placeholders)[stage])
    assert measure_rank(model, JOB, chosen, stage) == pytest.approx(counted, rel=0.005)

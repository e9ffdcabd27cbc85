"""What a peak is made of: parts that add up to it, and that are right by hand."""

from dataclasses import replace

import numpy as np
import pytest
from factories import LLAMA_8B, make_config

from models.memory.sample import sample_point
from pipette_opt.base.units import GIB
from pipette_opt.memory.components import COMPONENTS
from pipette_opt.memory.formula import formula_bytes
from pipette_opt.memory.predictor import MemoryPredictor
from pipette_opt.memory.table import stage_table
from pipette_opt.read.stack import read_stack
from pipette_opt.specs import TrainingSpec
from pipette_opt.specs.memory_constants import REGRESSORS, MemoryConstants

JOB = TrainingSpec(global_batch_size=64, seq_length=4096)


def stack_of(seed: int) -> MemoryConstants:
    """A stack with random constants."""
    rng = np.random.default_rng(seed)
    limited = {
        "counted": rng.uniform(0.8, 1.2),
        "parameter_bytes": rng.uniform(-2, 1),
        "fp32_shards": rng.uniform(0, 1),
    }
    return MemoryConstants(**limited, **{name: rng.uniform(0, 2) for name in REGRESSORS if name not in limited})


@pytest.mark.search
@pytest.mark.parametrize("number", range(12))
def test_parts_add_up(number: int) -> None:
    """Random stages under random stacks and the shipped ones: parts are not negative, their sum is the prediction."""
    point = sample_point(7, number)
    for memory_constants in (
        MemoryConstants(),
        stack_of(number),
        *(read_stack(name).memory for name in ("nanotron", "deepspeed", "torchtitan")),
    ):
        (found,) = MemoryPredictor.load(memory_constants=memory_constants).predict(
            point.model, point.training, [point.config]
        )
        assert found.components.shape == (point.config.pipeline_model_parallel_size, len(COMPONENTS))
        np.testing.assert_array_equal(found.components.sum(axis=1), found.predicted_bytes)
        assert (found.components >= 0).all()


def test_parts_by_hand() -> None:
    """Llama 3 8B on one GPU in bf16: 2, 4 and 12 bytes a parameter; with ZeRO 1 on 8 replicas 12 / 8."""
    size = LLAMA_8B.num_parameters
    for dp, optimizer in ((1, 12.0), (8, 1.5)):
        one = make_config(1, 1, dp, 1, 32, use_distributed_optimizer=dp > 1)
        (found,) = MemoryPredictor.load().predict(LLAMA_8B, JOB, [one])
        parts = found.components_of(0)
        assert [parts[name] / size for name in COMPONENTS[:3]] == pytest.approx([2.0, 4.0, optimizer], rel=1e-6)
        formula = formula_bytes(stage_table(LLAMA_8B, JOB, [one]))
        assert parts["activations"] == pytest.approx(float(formula.saved[0] + formula.head[0]), rel=1e-6)
        assert parts["other"] == pytest.approx((0.0625 + 0.667 * (dp > 1)) * GIB, rel=1e-6)


def test_where_the_optimizer_step_is_fullest_there_are_no_activations() -> None:
    """Many bytes of a step and next to no activations: buffers are the step's."""
    step = replace(JOB, seq_length=128, accumulate_allreduce_grads_in_fp32=False)
    one = make_config(1, 1, 1, 1, 32, recompute_granularity="full")
    (found,) = MemoryPredictor.load().predict(LLAMA_8B, step, [one])
    parts, formula = found.components_of(0), formula_bytes(stage_table(LLAMA_8B, step, [one]))
    assert formula.step_is_fullest.all()
    assert parts["activations"] == 0
    assert parts["buffers"] == pytest.approx(float(formula.step_work[0] + formula.placeholders[0]), rel=0.02)


def test_placeholders_are_a_layer() -> None:
    """One empty gradient for each shape: as large as the matrices of a layer in bf16, whatever the number of layers."""
    h, ffn, kv = 4096, 14336, 1024
    wanted = 2 * (h * (h + 2 * kv) + h * h + 3 * h * ffn)
    for layers in (1, 32):
        table = stage_table(replace(LLAMA_8B, num_layers=layers), JOB, [make_config(1, 1, 1, 1, layers)])
        assert formula_bytes(table).placeholders[0] == wanted

"""Constants of a stack: what they weigh by hand, and what files may say."""

from dataclasses import replace

import numpy as np
import pytest

from pipette_opt.errors import InputError
from pipette_opt.memory.framework import COLUMNS, Framework, framework_of, needed, numbers_of
from pipette_opt.memory.predictor import MemoryPredictor
from pipette_opt.parallel import ParallelConfig
from pipette_opt.specs import ModelSpec, TrainingSpec
from pipette_opt.units import GIB

MODEL = ModelSpec(
    name="small-llama",
    num_layers=8,
    hidden_size=1024,
    ffn_hidden_size=4096,
    num_attention_heads=16,
    num_query_groups=16,
    kv_channels=64,
    vocab_size=32768,
    max_position_embeddings=2048,
    gated_linear_unit=True,
    untie_embeddings_and_output_weights=True,
    add_bias_linear=False,
    add_qkv_bias=False,
    normalization="RMSNorm",
    position_embedding_type="rope",
)
TRAINING = TrainingSpec(global_batch_size=64, seq_length=2048)
CONFIG = ParallelConfig(
    tensor_model_parallel_size=2,
    pipeline_model_parallel_size=2,
    data_parallel_size=4,
    micro_batch_size=2,
    layers_per_stage=(4, 4),
    sequence_parallel=True,
)


def columns(config: ParallelConfig = CONFIG, training: TrainingSpec = TRAINING) -> dict[str, np.ndarray]:
    """GiB of one unit of each constant, by stage."""
    table = MemoryPredictor.load().columns(MODEL, training, [config])
    return dict(zip(COLUMNS, table.T, strict=True))


def test_units_weigh_what_they_say() -> None:
    """
    By hand: stage 0 has 4 layers of (4 h^2 + 3 h f + norms) and the table, split over two ranks.

    4 * 1024^2 + 3 * 1024 * 4096 = 16777216 a layer; a gathered micro-batch is 4096 tokens * 1024 * 2 bytes.
    """
    found = columns()
    parameters = 4 * (16777216 / 2 + 2 * 1024) + 32768 * 1024 / 2
    assert found["parameter_bytes"][0] * GIB == pytest.approx(parameters)
    assert found["gradient_copy_bytes"][0] * GIB == pytest.approx(parameters)
    assert found["step_bytes"].tolist() == [0.0, 0.0]
    assert found["gathered_buffers"].tolist() == pytest.approx([4096 * 1024 * 2 / GIB] * 2)
    assert found["gathered_per_layer"].tolist() == pytest.approx([8 * 4096 * 2048 / GIB, 4 * 4096 * 2048 / GIB])
    assert found["run_ahead_buffers"].tolist() == [0.0, 0.0]
    assert found["logit_bytes"].tolist() == pytest.approx([0.0, 4096 * 32768 / 2 / GIB])
    assert found["whole_logit_bytes"].tolist() == pytest.approx([0.0, 4096 * 32768 / GIB])
    assert found["table_bytes"].tolist() == pytest.approx([32768 * 1024 / 2 / GIB, 0.0])
    assert found["norm_bytes"].tolist() == [0.0, 0.0]
    assert found["base_gib"].tolist() == [1.0, 1.0]


def test_sharded_optimizer_swaps_copies_for_the_step() -> None:
    """With it, what the step leaves counts; without it, the second copy of gradients, if anyone is there to share."""
    sharded = columns(replace(CONFIG, use_distributed_optimizer=True))
    assert sharded["gradient_copy_bytes"].tolist() == [0.0, 0.0]
    assert (sharded["step_bytes"] > 0).all()
    alone = columns(replace(CONFIG, data_parallel_size=1))
    assert alone["gradient_copy_bytes"].tolist() == [0.0, 0.0]


def test_unfused_norms_and_recomputation() -> None:
    """Unfused norms weigh two inputs a layer and pass; with recomputed layers none."""
    unfused = replace(TRAINING, fused_norm=False)
    assert columns(training=unfused)["norm_bytes"][1] * GIB == pytest.approx(2 * 4 * 2048 * 1024)
    assert columns(replace(CONFIG, recompute_granularity="full"), unfused)["norm_bytes"].tolist() == [0.0, 0.0]


def test_piles_only_behind_a_pipeline_inside_hosts() -> None:
    """Outputs pile up with a pipeline and tensor ranks inside a host; without a pipeline the host runs ahead."""
    single = replace(CONFIG, pipeline_model_parallel_size=1, layers_per_stage=(8,))
    assert columns(single)["pile_up_buffers"][0] == 0
    assert columns(single)["run_ahead_buffers"][0] > 0
    across = MemoryPredictor.load().columns(MODEL, TRAINING, [CONFIG], gpus_per_node=1)
    assert across[:, COLUMNS.index("pile_up_buffers")].tolist() == [0.0, 0.0]


def test_need_leaves_out_what_is_returned() -> None:
    """Step leftovers and piles are not needed."""
    vector = Framework(step_bytes=3.0, pile_up_buffers=2.0, activations=0.2).vector()
    kept = dict(zip(COLUMNS, needed(vector), strict=True))
    assert (kept["step_bytes"], kept["pile_up_buffers"], kept["activations"]) == (0.0, 0.0, 0.2)


def test_numbers_go_through_a_file() -> None:
    """What is written is read, errors included."""
    framework = Framework(activations=0.25, unusable_gib=3.0, errors=(-0.1, 0.0, 0.2))
    assert framework_of(numbers_of(framework)) == framework
    assert framework_of(None) == Framework()


@pytest.mark.parametrize(
    ("numbers", "message"),
    [
        ({"activation": 0.2}, "no constant activation"),
        ({"unusable_gib": -1.0}, "unusable_gib must be >= 0"),
        ({"spread": float("nan")}, "spread must be"),
    ],
)
def test_wrong_numbers_are_refused(numbers: dict[str, float], message: str) -> None:
    """Unknown names and impossible values, by name."""
    with pytest.raises(InputError, match=message):
        framework_of(numbers, "stack.yaml")


def test_a_predictor_with_a_framework_is_coherent() -> None:
    """At the upper bound of a risk, the probability is that risk; more room, less of it."""
    predictor = MemoryPredictor.load(framework=Framework(activations=0.3, spread=0.05))
    (prediction,) = predictor.predict(MODEL, TRAINING, [CONFIG], max_oom_risk=0.02)
    risk = predictor.oom_probability(prediction.predicted_bytes, prediction.upper_bytes)
    assert risk == pytest.approx([0.02, 0.02], rel=1e-3)
    assert (predictor.oom_probability(prediction.predicted_bytes, prediction.upper_bytes * 2) < 0.001).all()
    (plain,) = MemoryPredictor.load(framework=Framework()).predict(MODEL, TRAINING, [CONFIG])
    assert (prediction.predicted_bytes > plain.predicted_bytes).all()

"""Nanotron's order of allocations, against hand counts of what must be there."""

from dataclasses import replace

import pytest

from pipette_opt.memory_training.allocator import DeviceFullError
from pipette_opt.memory_training.nanotron import replay_nanotron
from pipette_opt.parallel import ParallelConfig
from pipette_opt.specs import ModelSpec, TrainingSpec

LAYERS, HIDDEN, FFN, VOCAB, TOKENS = 4, 1024, 4096, 32768, 2 * 2048

MODEL = ModelSpec(
    name="m",
    num_layers=LAYERS,
    hidden_size=HIDDEN,
    ffn_hidden_size=FFN,
    num_attention_heads=16,
    num_query_groups=16,
    kv_channels=64,
    max_position_embeddings=2048,
    vocab_size=VOCAB,
    gated_linear_unit=True,
    untie_embeddings_and_output_weights=False,
)
TRAINING = TrainingSpec(global_batch_size=8, seq_length=2048, attention_kernel="flash")
ALONE = ParallelConfig(
    tensor_model_parallel_size=1,
    pipeline_model_parallel_size=1,
    data_parallel_size=1,
    micro_batch_size=2,
    layers_per_stage=(LAYERS,),
)
SPLIT = replace(ALONE, tensor_model_parallel_size=4, sequence_parallel=True)

PARAMETERS = LAYERS * (4 * HIDDEN**2 + 3 * HIDDEN * FFN) + VOCAB * HIDDEN
SAVED = LAYERS * (TOKENS * (2 * 8 * HIDDEN + 2 * 4 * FFN) + 4 * TOKENS * 16)
"""Two norms' inputs and outputs, queries, keys, values, context; gates, their activation and the product; the sums."""

LOSS = 8 * TOKENS * VOCAB


def allocated(config: ParallelConfig, queue: int = 0) -> int:
    """Peak of what is in use."""
    return replay_nanotron(MODEL, TRAINING, config, queue=queue).peaks.allocated_bytes


def test_one_rank_against_a_hand_count() -> None:
    """18 bytes a parameter, what layers keep, two fp32 copies of the logits: within 2 % of inputs and statistics."""
    assert allocated(ALONE) == pytest.approx(18 * PARAMETERS + SAVED + LOSS, rel=0.02)


def test_a_queue_is_nothing_to_a_rank_that_is_alone() -> None:
    """No collective uses its buffers."""
    assert allocated(ALONE, queue=1024) == allocated(ALONE)


def test_tensor_ranks_share_all_but_gathered_buffers() -> None:
    """A quarter of it, and two or three whole micro-batches."""
    whole = 2 * TOKENS * HIDDEN
    more = allocated(SPLIT) - (18 * PARAMETERS + SAVED + LOSS) / 4
    assert 1.5 * whole < more < 4 * whole


def test_hosts_ahead_pile_up_what_is_scattered() -> None:
    """Two for each layer of each pass, one for the embeddings: more with a longer queue, up to all of an iteration."""
    whole = 2 * TOKENS * HIDDEN
    peaks = [replay_nanotron(MODEL, TRAINING, SPLIT, queue=queue).peaks.reserved_bytes for queue in (0, 100, 10**6)]
    assert peaks[0] < peaks[1] < peaks[2]
    assert peaks[2] - peaks[0] < 2 * 3 * (4 * LAYERS + 2) * whole


def test_replicas_have_buckets() -> None:
    """2 bytes a parameter more, if each has all of the optimizer's state."""
    replicas = replace(ALONE, data_parallel_size=4)
    assert allocated(replicas) - allocated(ALONE) == pytest.approx(2 * PARAMETERS, rel=1e-3)


def test_replicas_that_share_the_state_have_none() -> None:
    """With four, 9 of the 12 bytes a parameter that they share are elsewhere, and the 2 of the buckets are nowhere."""
    replicas = replace(ALONE, data_parallel_size=4)
    sharded = replace(replicas, use_distributed_optimizer=True)
    assert allocated(replicas) - allocated(sharded) == pytest.approx((9 + 2) * PARAMETERS, rel=0.02)


def test_the_step_of_a_shared_state_gathers_twice() -> None:
    """Two replicas, hardly a token: 2 + 4 + 12 / 2 bytes a parameter stay, 2 / 2 are sent, 2 and 2 received."""
    sharded = replace(ALONE, data_parallel_size=2, micro_batch_size=1, use_distributed_optimizer=True)
    short = replace(TRAINING, seq_length=64)
    peak = replay_nanotron(MODEL, short, sharded, queue=0).peaks.allocated_bytes
    assert peak == pytest.approx((12 + 5) * PARAMETERS, rel=1e-3)


def test_an_own_head_is_one_table_more() -> None:
    """18 bytes for each of its parameters."""
    untied = replace(MODEL, untie_embeddings_and_output_weights=True)
    more = replay_nanotron(untied, TRAINING, ALONE, queue=0).peaks.allocated_bytes - allocated(ALONE)
    assert more == pytest.approx(18 * VOCAB * HIDDEN, rel=1e-3)


def test_a_full_device_takes_back_or_fails() -> None:
    """Between what is in use on time and what is reserved ahead it waits; below it fails."""
    on_time = replay_nanotron(MODEL, TRAINING, SPLIT, queue=0).peaks
    late = replay_nanotron(MODEL, TRAINING, SPLIT, queue=10**6).peaks
    middle = (on_time.reserved_bytes + late.reserved_bytes) // 2
    assert replay_nanotron(MODEL, TRAINING, SPLIT, queue=10**6, capacity_bytes=middle).num_waits > 0
    with pytest.raises(DeviceFullError):
        replay_nanotron(MODEL, TRAINING, SPLIT, capacity_bytes=on_time.allocated_bytes // 2)


def test_pipelines_are_refused() -> None:
    """Their hosts wait for each other."""
    pipeline = replace(ALONE, pipeline_model_parallel_size=2, layers_per_stage=(2, 2))
    with pytest.raises(ValueError, match="must be 1, got 2"):
        replay_nanotron(MODEL, TRAINING, pipeline)
